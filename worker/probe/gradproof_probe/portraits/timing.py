"""How long each module takes forward, and each node backward. Hooks and a clock.

torch.profiler would tell more, but its first start in a process took 2.4 s here, and each reading 0.07 s. Kernels of
the CPU run in the thread that calls them, so what lies between two hooks is what was run between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.gradients.probing import random_like
from gradproof_probe.portraits.graph import nodes_of
from gradproof_probe.portraits.recording import ModuleCall, ModuleCalls, run_within
from gradproof_probe.trees import tensors

RUNS: Final = 3  # of each module and node the least time counts: other work on the machine only adds


@dataclass(slots=True)
class Timing:
    """One forward and backward. `nodes` are (number, seconds) in the order of their making.

    `raised` is what the backward raised. `gradients` says of each parameter what it got: something, zero, none.
    """

    calls: list[ModuleCall]
    backward: float = 0.0
    nodes: list[tuple[int, float]] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    raised: BaseException | None = None

    @property
    def forward(self) -> float:
        return self.calls[0].seconds


def timed(experiment: Experiment, title: str, deadline: float) -> Timing:
    """The least of a few runs, or of as many as there is time for. Raises `ForwardError`, `TooLargeError`."""
    best = _run(experiment, title)
    for _ in range(RUNS - 1):
        if best.raised is not None or time.monotonic() + 3 * (best.forward + best.backward) > deadline:
            break
        _take_less(best, _run(experiment, title))
    return best


def _take_less(best: Timing, other: Timing) -> None:
    """Of each call of a module without those inside of it, so that what is inside and what is around still agree."""
    same = [call.name for call in best.calls] == [call.name for call in other.calls]
    if other.raised is not None or not same or len(best.nodes) != len(other.nodes):
        return  # it does something else each time: the first is one of the truths
    least = [min(pair) for pair in zip(_own(best.calls), _own(other.calls), strict=True)]
    for index in range(len(best.calls) - 1, -1, -1):
        best.calls[index].seconds = least[index]
        parent = best.calls[index].parent
        if parent is not None:
            least[parent] += least[index]
    best.backward = min(best.backward, other.backward)
    best.nodes = [
        (number, min(seconds, others)) for (number, seconds), (_, others) in zip(best.nodes, other.nodes, strict=True)
    ]


def _own(calls: Sequence[ModuleCall]) -> list[float]:
    found = [call.seconds for call in calls]
    for call in calls:
        if call.parent is not None:
            found[call.parent] -= call.seconds
    return found


def _run(experiment: Experiment, title: str) -> Timing:
    calls = ModuleCalls(experiment.instance, title)
    inputs: dict[Any, str] = {}

    def around(given: Sequence[torch.Tensor]) -> Any:
        inputs.update((value.grad_fn, "") for value in given if value.grad_fn is not None)
        return calls.noting()

    _forget_gradients(experiment)
    output = run_within(experiment, around)
    timing = Timing(calls.calls)
    try:
        _backward(experiment, output, inputs, timing)
    except Exception as error:
        timing.raised = error
    finally:
        _forget_gradients(experiment)
    return timing


def _backward(experiment: Experiment, output: Any, inputs: dict[Any, str], timing: Timing) -> None:
    nodes = nodes_of(output, inputs)
    begun, took = [0.0] * len(nodes), [0.0] * len(nodes)
    for position, node in enumerate(nodes):
        node.register_prehook(_starts(begun, position))
        node.register_hook(_stops(begun, took, position))
    live = [value for _, value in tensors(output) if value.requires_grad]
    generator = torch.Generator().manual_seed(experiment.seed + 17)
    cotangents = [random_like(value, generator) for value in live]
    # `backward`, not `grad`: it is what training calls, and recomputation of the old kind refuses the other.
    start = time.perf_counter()
    torch.autograd.backward(live, cotangents)
    timing.backward = time.perf_counter() - start
    timing.nodes = [(int(node._sequence_nr()), seconds) for node, seconds in zip(nodes, took, strict=True)]
    timing.gradients = {
        variable.name: _fate(variable.leaf.grad) for variable in experiment.variables if variable.kind == "parameter"
    }


def _starts(begun: list[float], position: int) -> Callable[[Any], None]:
    def start(_gradients: Any) -> None:
        begun[position] = time.perf_counter()

    return start


def _stops(begun: list[float], took: list[float], position: int) -> Callable[[Any, Any], None]:
    def stop(_inputs: Any, _outputs: Any) -> None:
        took[position] += time.perf_counter() - begun[position]

    return stop


def _fate(gradient: torch.Tensor | None) -> str:
    if gradient is None:
        return "none"
    values = gradient.coalesce().values() if gradient.layout == torch.sparse_coo else gradient
    return "something" if bool(values.any()) else "zero"


def _forget_gradients(experiment: Experiment) -> None:
    for variable in experiment.variables:
        variable.leaf.grad = None
