"""Where a value or a gradient stopped being finite: one more run of the call, watched.

Forward: the first operation with finite operands whose result is not, among those that reach an output. Backward: the
first node of the graph that was given finite gradients and returned others; a custom backward is named by its own line.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.gradients.graph_nodes import nodes_behind
from gradproof_probe.nan_search.spy import Event, Origin, Spy
from gradproof_probe.nan_search.subject import Evaluation, Inputs, Subject, finite

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_PROBE: Final = str(Path(__file__).parent.parent) + "/"
_NODE: Final = re.compile(r"^(.*?)Backward\d*$")


@dataclass(slots=True)
class Birth:
    """`operation` is aten's name. `zero_times_infinity`: the gradient that came in was 0 exactly where NaN went out."""

    phase: Literal["forward", "backward"]
    operation: str
    place: Place | None
    origin: Origin
    kind: Literal["nan", "inf"]
    defined_by_torch: bool = False
    zero_times_infinity: bool = False
    singular: bool = False
    outside: bool = False
    overflow: bool = False
    own_infinity: bool = False


@dataclass(slots=True)
class Watched:
    """A watched run: its births, and the singular operations that it passed.

    `constant`: where outputs are not finite and nothing that varies made them so, the NaN that constants gave.
    """

    evaluation: Evaluation
    spy: Spy
    forward: list[Birth]
    backward: list[Birth]
    constant: Birth | None = None


def watch_forward(subject: Subject, inputs: Inputs, source_root: Path) -> tuple[Evaluation, Spy] | None:
    """One forward under the spy; None if the call raises."""
    spied: list[Spy] = []
    evaluation = _run(subject, inputs, source_root, spied, everything=False)
    return None if evaluation is None else (evaluation, spied[0])


def watch(subject: Subject, inputs: Inputs, source_root: Path) -> Watched | None:
    """Forward and backward under the spy; None if the call raises."""
    spied: list[Spy] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that anomaly mode is on
        with torch.autograd.detect_anomaly(check_nan=False):
            evaluation = _run(subject, inputs, source_root, spied, everything=True)
    if evaluation is None:
        return None
    spy = spied[0]
    watched = Watched(evaluation, spy, [], [])
    for event in spy.reliable(evaluation.outputs):
        watched.forward.append(_forward_birth(event))
    if not watched.forward and not evaluation.finite_outputs and spy.constant is not None:
        watched.constant = _forward_birth(spy.constant)
    watched.backward = _backward_births(evaluation, spy, source_root)
    return watched


def _run(
    subject: Subject, inputs: Inputs, source_root: Path, spied: list[Spy], *, everything: bool
) -> Evaluation | None:
    def open_spy(named: Sequence[tuple[str, torch.Tensor]]) -> Spy:
        spied.append(Spy(source_root, named, everything=everything))
        return spied[0]

    return subject.run(inputs, observer=open_spy)


def _forward_birth(event: Event) -> Birth:
    return Birth(
        "forward",
        event.operation,
        event.place,
        event.origin,
        "nan" if event.born == "nan" else "inf",
        event.defined_by_torch,
        singular=event.singularity is not None,
        outside=event.outside,
        own_infinity=event.own_infinity,
        overflow=event.born == "inf" and (event.singularity is None or event.singularity.overflows),
    )


def _backward_births(evaluation: Evaluation, spy: Spy, source_root: Path) -> list[Birth]:
    nodes = list(nodes_behind(evaluation.differentiable))
    made: dict[Any, Event] = {}
    for event in spy.events:
        for output in event.outputs:
            if output.grad_fn is not None:
                made.setdefault(output.grad_fn, event)
    births: list[tuple[Any, Birth]] = []
    spoiled: dict[Any, list[int]] = {}
    boundary = len(spy.events)

    def hook(node: Any) -> Callable[[Any, Any], None]:
        def look(returned: Sequence[Any], given: Sequence[Any]) -> None:
            spoiled[node] = [index for index, gradient in enumerate(returned) if not _all_finite([gradient])]
            if spoiled[node] and _all_finite(given):
                birth = _backward_birth(node, returned, given, made.get(node), spy, boundary, source_root)
                births.append((node, birth))

        return look

    handles = [node.register_hook(hook(node)) for node in nodes]
    try:
        with spy:
            evaluation.differentiate()
    finally:
        for handle in handles:
            handle.remove()
    # What a mask or a clamp takes away again on its way down spoils no gradient: others are to blame.
    arriving = [birth for node, birth in births if _arrives(node, spoiled)]
    return arriving or [birth for _, birth in births]


def _arrives(node: Any, spoiled: dict[Any, list[int]]) -> bool:
    """Whether what isn't finite comes from this node down to a leaf; `spoiled`: the edges that carry such values."""
    seen: set[Any] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if hasattr(current, "variable"):
            return True
        if current in seen:
            continue
        seen.add(current)
        edges = current.next_functions
        waiting += [edges[i][0] for i in spoiled.get(current, ()) if i < len(edges) and edges[i][0] is not None]
    return False


def _backward_birth(
    node: Any,
    returned: Sequence[Any],
    given: Sequence[Any],
    event: Event | None,
    spy: Spy,
    boundary: int,
    source_root: Path,
) -> Birth:
    trapped = False
    with torch.utils._python_dispatch._disable_current_modes():
        gradients = [g for g in returned if isinstance(g, torch.Tensor) and not finite(g)]
        incoming = [g for g in given if isinstance(g, torch.Tensor)]
        for gradient in gradients:
            bad = ~gradient.isfinite()
            trapped = trapped or any(
                g.shape == gradient.shape and bool((g == 0)[bad].all()) and bool(gradient[bad].isnan().all())
                for g in incoming
            )
        kind: Literal["nan", "inf"] = "nan" if any(bool(g.isnan().any()) for g in gradients) else "inf"
    # A custom backward is Python: the spy saw its operations, with their lines.
    own = next((e for e in spy.events[boundary:] if e.born and e.place is not None), None)
    name = _NODE.match(node.name())
    if own is not None and not _native(node):
        # Whatever forward was given: a formula that its author wrote is out of the caller's sight.
        origin = Origin(varies=True, computed=True)
        return Birth("backward", own.operation, own.place, origin, kind, zero_times_infinity=trapped)
    place = _forward_line(node, source_root) or (event.place if event is not None else None)
    operation = event.operation if event is not None else (name[1].lower() if name else node.name())
    return Birth(
        "backward",
        operation,
        place,
        _joined(event),
        kind,
        defined_by_torch=event.defined_by_torch if event is not None else False,
        zero_times_infinity=trapped,
        singular=event is not None and event.singularity is not None,
    )


def _joined(event: Event | None) -> Origin:
    return event.origin if event is not None else Origin(varies=True, computed=True)


def _native(node: Any) -> bool:
    return not isinstance(node, torch.autograd.function.BackwardCFunction)


def _all_finite(values: Sequence[Any]) -> bool:
    with torch.utils._python_dispatch._disable_current_modes():
        return all(finite(value) for value in values if isinstance(value, torch.Tensor))


def _forward_line(node: Any, source_root: Path) -> Place | None:
    """The innermost submitted line of the traceback that anomaly mode keeps, inside the probe's own call."""
    place = None
    for entry in node.metadata.get("traceback_", []):
        match = _FRAME.search(entry)
        if match is None:
            continue
        if match[1].startswith(_PROBE):
            place = None
            continue
        path = relative(match[1], source_root)
        if path is not None:
            place = Place(path, int(match[2]))
    return place
