"""What became of static findings that only compiling settles: what the stages came upon, and what is tried for them.

Graph breaks and recompilations of findings are the business of `suspicions.graphs`, which `finding_search` runs. A
note that is confirmed does not make the check fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer as Outcome
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.custom_functions import watched
from gradproof_probe.compiling.late_hooks import LateHook
from gradproof_probe.compiling.running import backend_named, observed, observed_compiled
from gradproof_probe.equivalence.observation import ROUNDING, Observation, relative_error
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.importing import describe_error
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.instrument import NotInstrumentableError
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached, read_suspects
from gradproof_probe.trees import transform

_FUNCTIONS: Final = ("GP328", "GP508")
_LATE_HOOK: Final = "GP511"
_VIEW: Final = "GP512"
_EDGES: Final = "GP513"
_STRIDES: Final = "GP514"
_LOW_PRECISION: Final = "GP515"
_NEEDS_INDUCTOR: Final = (_EDGES, _STRIDES, _LOW_PRECISION)
_SLACK: Final = 1
_STEPS: Final = 16  # multiples of a width that inputs are set to
# Of the elements of a low-precision output: where more are other numbers, products and sums are rounded elsewhere.
_ROUNDED_ELSEWHERE: Final = 0.01

Settled = list[tuple[Suspect, Answer]]


def suspects_of(context: CheckContext) -> list[Suspect]:
    """Those that this check settles."""
    rules = (*_FUNCTIONS, _LATE_HOOK, _VIEW, *_NEEDS_INDUCTOR)
    return [suspect for suspect in read_suspects(context.hypotheses) if suspect.rule in rules]


def wire(settled: Settled) -> list[dict[str, Any]]:
    """For the evidence."""
    return [answer.to_wire(suspect) for suspect, answer in settled]


def settled_by_tracing(context: CheckContext, outcome: Outcome, evidence: dict[str, Any]) -> Settled:
    """Those that need no code generator; all of them, if the stages end the check."""
    bench = Bench(context.resolved, context.recipe, context.source_root, context.seed, context.deadline)
    found: Settled = []
    for suspect in suspects_of(context):
        if _shows(outcome, suspect):
            found.append((suspect, confirmed(outcome.text, shown_by=outcome.cause)))
        elif suspect.rule in _NEEDS_INDUCTOR and outcome.verdict == "pass":
            continue
        elif suspect.rule == _LATE_HOOK:
            found.append((suspect, LateHook().settle(bench, suspect)))
        elif outcome.verdict != "pass":
            found.append((suspect, not_reached(outcome.text)))
        elif suspect.rule == _VIEW:
            found.append((suspect, _reached(bench, suspect, "compiled, this line runs and gives eager's values")))
        else:
            found.append((suspect, _function(context, suspect, evidence)))
    return found


def failing(settled: Settled) -> Outcome | None:
    """The outcome that a confirmed suspicion makes of a check that passes otherwise."""
    for suspect, answer in settled:
        if answer.outcome == "confirmed" and not suspect.is_note and suspect.rule in (_LATE_HOOK, _EDGES):
            cause = "hook_after_compile" if suspect.rule == _LATE_HOOK else "step_at_edge"
            numbers = {"rule": suspect.rule, **answer.numbers}
            return Outcome("fail", cause, answer.text, Place(suspect.path, suspect.line), numbers)
    return None


def settled_by_inductor(
    context: CheckContext, outcome: Outcome, plain: Observation | None, compiled: Observation | None
) -> Settled:
    """Those that need the code generator; without observations it was not run."""
    bench = Bench(context.resolved, context.recipe, context.source_root, context.seed, context.deadline)
    found: Settled = []
    for suspect in suspects_of(context):
        if suspect.rule not in _NEEDS_INDUCTOR:
            continue
        if _shows(outcome, suspect):
            found.append((suspect, confirmed(outcome.text, shown_by=outcome.cause)))
        elif plain is None or compiled is None or outcome.verdict != "pass":
            found.append((suspect, not_reached(outcome.text)))
        elif suspect.rule == _EDGES:
            found.append((suspect, _on_edges(context, suspect)))
        elif suspect.rule == _LOW_PRECISION:
            found.append((suspect, _low_precision(plain, compiled)))
        else:
            found.append((suspect, _reached(bench, suspect, "inductor gives the values of eager here")))
    return found


def _shows(outcome: Outcome, suspect: Suspect) -> bool:
    place = outcome.place
    return (
        outcome.verdict in ("fail", "inconclusive")
        and place is not None
        and place.path == suspect.path
        and suspect.line - _SLACK <= place.line <= suspect.end_line + _SLACK
    )


def _reached(bench: Bench, suspect: Suspect, text: str) -> Answer:
    try:
        return bench.unreached(suspect) or held(text)
    except NotInstrumentableError as error:
        return not_reached(str(error))


def _function(context: CheckContext, suspect: Suspect, evidence: dict[str, Any]) -> Answer:
    """A Function of the target that compile might leave out of the graph, or whose backward it might drop."""
    name = suspect.text("function")
    try:
        with watched(context.source_root) as applied:
            observed(context, "train", calls=1)
    except Exception as error:
        return not_reached(describe_error(error, 200))
    if name not in {applied_name for _, applied_name in applied}:
        return not_reached(f"no call came to {name}")
    if suspect.rule == "GP328":
        return held(f"compiled code gives the gradients of {name}")
    breaks: Sequence[Any] = evidence.get("graph_breaks", ())
    broken = next((item["reason"] for item in breaks if "autograd" in item["reason"].lower()), None)
    if broken is not None:
        return confirmed(f"torch.compile leaves {name} out of the graph: {broken}", breaks=len(breaks))
    if breaks:
        return not_reached(f"the graph breaks {len(breaks)} times, and no reason names a Function")
    return held(f"torch.compile takes {name} into the graph, with its backward")


def _on_edges(context: CheckContext, suspect: Suspect) -> Answer:
    """Inputs at whole multiples of the width, which binary floats can't hold."""
    width = suspect.said.get("width")
    if not isinstance(width, int | float) or isinstance(width, bool):
        return not_reached("the width is not a number that reading knows")

    def placed(call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            generator = torch.Generator().manual_seed(context.seed)

            def edge(tensor: torch.Tensor) -> torch.Tensor:
                if not tensor.is_floating_point():
                    return tensor
                steps = torch.randint(0, _STEPS, tensor.shape, generator=generator)
                return (steps.to(torch.float64) * float(width)).to(tensor)

            return call(*transform(list(args), edge), **transform(kwargs, edge))

        return run

    try:
        plain = observed(context, "train", calls=1, wrap=placed)
        compiled = observed_compiled(context, "train", backend_named("inductor"), calls=1, around=placed)
    except Exception as error:
        return not_reached(f"with inputs at multiples of {width} it raises {describe_error(error, 200)}")
    for name, value in plain.values.items():
        other = compiled.values.get(name)
        if name.startswith("output") and other is not None and other.shape == value.shape:
            error_size = relative_error(other, value, 0.0)
            if error_size > max(ROUNDING, 1e-3):
                return confirmed(
                    f"with inputs at multiples of {width} compiled code puts them into other steps than eager: "
                    f"{name} is off by {error_size:.1e}",
                    shown_by="edges",
                    relative=error_size,
                )
    return not_reached(f"with inputs at multiples of {width} eager and compiled code agree")


def _low_precision(plain: Observation, compiled: Observation) -> Answer:
    for name, value in plain.values.items():
        other = compiled.values.get(name)
        low = name.startswith("output") and value.dtype in (torch.float16, torch.bfloat16)
        if low and other is not None and other.shape == value.shape and value.numel():
            share = float((value != other).double().mean())
            if share > _ROUNDED_ELSEWHERE:
                return confirmed(
                    f"{share:.0%} of {name} are other {str(value.dtype).removeprefix('torch.')} numbers when it is "
                    "compiled: fused code rounds once where eager rounds at every operation",
                    share=share,
                )
            return held(f"compiled code gives the same numbers ({share:.1%} differ by rounding)")
    return not_reached("no output is of low precision")
