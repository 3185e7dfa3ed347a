"""From a difference between compiled and eager execution to its cause and its line.

Each cause is an experiment: plain execution is made to do what compiled code is suspected of, or compiled code is kept
from it, and the cause is named only if the difference comes, or goes, with that. Nothing here runs unless something
differs.

A plain tensor program that is compiled to something else is the compiler's fault. Its author is told all the same, but
the check fails only where the repository compiles anything. Code that relies on what torch promises nobody (memory
layouts, Python state, being asked twice) is at fault itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.buffers import reread_buffer
from gradproof_probe.compiling.custom_functions import watched
from gradproof_probe.compiling.graphs import (
    GraphCall,
    GraphRecorder,
    first_differing,
    line_of,
    operation,
    part_of,
    replay,
)
from gradproof_probe.compiling.lines import LineValues, first_differing_line
from gradproof_probe.compiling.questions import answered_yes
from gradproof_probe.compiling.repository import compiles
from gradproof_probe.compiling.running import CALLS, Backend, backend_named, observed, observed_compiled
from gradproof_probe.equivalence.observation import (
    ROUNDING,
    Difference,
    Mode,
    Observation,
    Wrap,
    bitwise_differences,
    relative_error,
)
from gradproof_probe.gradients.attribution import Place

# They look at how a tensor lies in memory, which a compiler is free to choose for what it computes.
_LAYOUT: Final = frozenset({"as_strided", "as_strided_", "as_strided_scatter", "set_", "resize_", "resize_as_"})
_LOCATING_S: Final = 15.0
# Eager is taken for right where it is this much nearer to the float64 reference than compiled code is.
_NEARER: Final = 10.0
_COMPILER: Final = frozenset({"compiler_fault", "random_numbers_shared", "buffer_read_after_update"})


def _as_it_is(call: Callable[..., Any]) -> Callable[..., Any]:
    return call


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a difference: plain and compiled execution, how they differ, and the graphs."""

    plain: Observation
    compiled: Observation
    differences: Sequence[Difference]
    graphs: Sequence[GraphCall]


def explained_capture(
    context: CheckContext, mode: Mode, text: str, found: tuple[Observation, Sequence[GraphCall]], *, draws: bool
) -> Answer:
    """Why Dynamo's graph, interpreted, gives something else than the Python code that it was captured from.

    `found`: what it gives, and the graphs.
    """
    compiled, graphs = found
    asked = _asks_whether_compiled(context, mode, text, compiled)
    if asked is not None and draws:
        asked.verdict = "inconclusive"
        asked.text += "; it draws random numbers, and both may be draws of the same"
    if asked is not None:
        return asked
    dropped = _drops_backward(context, mode, text, compiled)
    if dropped is not None:
        return dropped
    answer = with_line(context, mode, Answer("fail", "compile_differs", text), graphs=graphs)
    in_function = str(answer.numbers.get("operation", "")).startswith("autograd_function")
    if in_function and _captured_wrongly(context, mode, compiled):
        answer.cause = "compiler_fault"
        return concerning(context, answer)
    return answer if answer.place is not None else _at_only_function(context, mode, answer)


def _captured_wrongly(context: CheckContext, mode: Mode, compiled: Observation) -> bool:
    """Whether the very first output is another, and eager execution gives what float64 does.

    Dynamo has translated it wrongly then (torch 2.13: NumPy arrays with negative strides), in a custom Function where
    it looks inside.
    """
    plain = observed(context, mode)
    if not any(item.name.startswith("call 1: output") for item in bitwise_differences(plain, compiled)):
        return False
    return _eager_is_right(context, mode, plain, compiled)


def with_line(
    context: CheckContext,
    mode: Mode,
    answer: Answer,
    *,
    around: Wrap = _as_it_is,
    calls: int = CALLS,
    graphs: Sequence[GraphCall] = (),
) -> Answer:
    """The answer with the first line whose values differ, where there is one; `around` is around every call.

    `graphs`: those of so many calls, where they are known.
    """
    values, recorder = LineValues(context.source_root), GraphRecorder()
    try:
        observed(context, mode, wrap=lambda call: around(_inside(call, values)), calls=calls)
        if not graphs:
            observed_compiled(context, mode, recorder, around=around, calls=calls)
        found = first_differing_line(list(graphs) or recorder.calls, values.values, context.source_root)
    except Exception:
        return answer
    if found is not None:
        answer.place = found[0]
        _name_operation(answer, found[1])
        answer.text += f"; the first value that plain execution doesn't have is that of {_named(answer)}"
    return answer


def first_line_not_finite(context: CheckContext, mode: Mode) -> Place | None:
    """Where plain execution first computes something that is not finite."""
    values = LineValues(context.source_root)
    try:
        observed(context, mode, wrap=lambda call: _inside(call, values), calls=1)
    except Exception:
        return None
    return next(
        (
            place
            for place, found in values.values.items()
            if any(value.is_floating_point() and not bool(value.isfinite().all()) for value in found)
        ),
        None,
    )


def explained_compilation(
    context: CheckContext,
    mode: Mode,
    stage: str,
    text: str,
    seen: Seen,
    *,
    draws: bool,
) -> Answer:
    """Why what AOTAutograd makes of Dynamo's graph gives something else. `draws`: the target draws random numbers."""
    plain, compiled, differences = seen.plain, seen.compiled, seen.differences
    if all("gradient" in item.name for item in differences):
        reread = reread_buffer(context, mode, stage, plain)
        if reread is not None:
            return concerning(context, replace(reread, text=f"{text}: {reread.text}"))
    shared = draws and _shares_random_numbers(context, mode, stage, plain)
    limit = max(ROUNDING, 0.01 * min(differences[0].relative, 1.0))
    at_once = any(item.name.startswith("call 1") for item in differences)
    # Both calls ran the same graphs, as a rule: those of the first come first.
    graphs = seen.graphs[: -(-len(seen.graphs) // CALLS)] if at_once else seen.graphs
    answer = located(context, mode, backend_named(stage), text, limit=limit, graphs=graphs)
    if shared:
        answer.cause = "random_numbers_shared"
        answer.text = (
            f"{text}: compiled code draws the random numbers of several equal operations once and uses them for all "
            "(without the search for common subexpressions it gives what eager gives); draw from a function that "
            "makes the tensor, such as torch.rand"
        )
    elif answer.cause == "compiler_fault" and not _eager_is_right(context, mode, plain, compiled):
        answer.cause = "compile_differs"
    return concerning(context, answer)


def located(
    context: CheckContext,
    mode: Mode,
    backend: Backend,
    text: str,
    *,
    limit: float,
    until: float | None = None,
    graphs: Sequence[GraphCall] = (),
) -> Answer:
    """The first operation that is compiled to something else, in these graphs, or in those of one call."""
    answer = Answer("fail", "compiler_fault", text)
    end = min(context.deadline, time.monotonic() + _LOCATING_S) if until is None else until
    recorder = GraphRecorder()
    try:
        if not graphs:
            observed_compiled(context, mode, recorder, calls=1)
        node = _first_of(graphs or recorder.calls, backend, limit, seed=context.seed, end=end)
    except Exception:  # a graph that can't be run by itself leaves the place open
        return answer
    if node is None:
        return answer
    answer.place = line_of(node, context.source_root)
    _name_operation(answer, node)
    if answer.numbers["operation"] in _LAYOUT:
        answer.cause = "depends_on_memory_layout"
        answer.text = f"{text}; {_named(answer)} reads memory by strides, and compiled code may lay it out otherwise"
    elif str(answer.numbers["operation"]).startswith("autograd_function"):
        answer.cause = "custom_function_differs"
        answer.text = f"{text}; it begins with the custom Function that is applied there"
    else:
        answer.text = f"{text}; it begins with {_named(answer)}"
    return answer


def concerning(context: CheckContext, answer: Answer) -> Answer:
    """A fault of the compiler itself fails only where the repository compiles anything."""
    if answer.cause not in _COMPILER:
        return answer
    if answer.cause == "compiler_fault":
        answer.text += ". Eager execution agrees with a float64 reference: the compiler is wrong, not this code"
    if answer.verdict == "fail" and not compiles(context.source_root):
        answer.verdict = "inconclusive"
        answer.text += ". Nothing in this repository uses torch.compile; whoever compiles it gets the wrong result"
    return answer


def _first_of(
    calls: Sequence[GraphCall], backend: Backend, limit: float, *, seed: int, end: float
) -> torch.fx.Node | None:
    for call in calls:
        if time.monotonic() > end:
            return None
        expected = replay(call, call.graph, seed=seed)

        def differs(got: Observation, expected: Observation = expected) -> bool:
            found = bitwise_differences(expected, got)
            return bool(found) and found[0].relative > limit

        node = first_differing(
            call, backend, differs, seed=seed, more=lambda: time.monotonic() < end, several=len(calls) > 1
        )
        if node is not None:
            return node
    return None


def _asks_whether_compiled(context: CheckContext, mode: Mode, text: str, compiled: Observation) -> Answer | None:
    try:
        with answered_yes(context.source_root) as asked:
            told = observed(context, mode)
    except Exception:
        return None
    if not asked or not _same(told, compiled):
        return None
    said = f"{text}: the code asks whether it is compiled, and computes something else if so"
    return Answer("fail", "asks_whether_compiled", said, asked[0])


def _at_only_function(context: CheckContext, mode: Mode, answer: Answer) -> Answer:
    """All values are the same, so a gradient is not: where one custom Function is applied, it is its doing."""
    try:
        with watched(context.source_root) as applied:
            observed(context, mode)
    except Exception:
        return answer
    if len(set(applied)) == 1:
        answer.place, name = applied[0]
        answer.numbers["function"] = name
        answer.text += f"; all values on the way are the same, and {name} is the only custom Function"
    return answer


def _drops_backward(context: CheckContext, mode: Mode, text: str, compiled: Observation) -> Answer | None:
    try:
        with watched(context.source_root, backward=False) as applied:
            other = observed(context, mode)
    except Exception:
        return None
    if not applied or not _same(other, compiled):
        return None
    place, name = applied[0]
    said = (
        f"{text}: compiled code gives what autograd makes of the forward of {name}; its own backward is dropped "
        "(torch.compile does so under torch.func); use torch.autograd.grad, or write it without a Function"
    )
    return Answer("fail", "custom_backward_dropped", said, place, {"function": name})


def _shares_random_numbers(context: CheckContext, mode: Mode, stage: str, plain: Observation) -> bool:
    import torch._functorch.config as settings

    try:
        with settings.patch(cse=False):
            apart = observed_compiled(context, mode, backend_named(stage))
    except Exception:
        return False
    return _same(plain, apart)


def _eager_is_right(context: CheckContext, mode: Mode, plain: Observation, compiled: Observation) -> bool:
    try:
        reference = observed(context, mode, dtype=torch.float64)
    except Exception:
        return False
    largest = reference.gradient_norm()
    of_plain, of_compiled = 0.0, 0.0
    for name, expected in reference.values.items():
        if expected.is_floating_point() and name in plain.values:
            floor = largest if "gradient" in name else 0.0
            of_plain = max(of_plain, relative_error(plain.values[name], expected, floor))
            got = compiled.values.get(name)
            of_compiled = max(of_compiled, float("inf") if got is None else relative_error(got, expected, floor))
    return of_compiled > _NEARER * max(of_plain, ROUNDING)


def _same(first: Observation, second: Observation) -> bool:
    return all(item.relative <= ROUNDING for item in bitwise_differences(first, second))


def _inside(call: Callable[..., Any], mode: LineValues) -> Callable[..., Any]:
    """Only the call runs under the mode: inputs and incoming gradients are made outside of it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return call(*args, **kwargs)

    return run


def _name_operation(answer: Answer, node: torch.fx.Node) -> None:
    answer.numbers["operation"] = operation(node)
    part = part_of(node)
    if part is not None:
        answer.numbers["module"] = part


def _named(answer: Answer) -> str:
    numbers = answer.numbers
    return f"`{numbers['operation']}`" + (f" in {numbers['module']}" if "module" in numbers else "")
