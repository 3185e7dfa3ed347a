"""Does a step over several micro-batches follow the gradient of the same samples as one batch?"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.harness.recipe import ExpressionError, build
from gradproof_probe.importing import describe_error
from gradproof_probe.training.accumulation import FACTOR, Fault, kept_or_lost, multiple, scale_of
from gradproof_probe.training.accumulation_counts import Count
from gradproof_probe.training.additive_losses import loss_of_parts
from gradproof_probe.training.step_gradients import Recorded, TooMuchError, held_by
from gradproof_probe.training.step_programs import Program, program_of
from gradproof_probe.training.submitted_source import others_mention

# Whatever clears gradients, in any spelling: helpers have many names.
_CLEARS: Final = re.compile(
    r"(zero|clear|reset|del|remove)\w*_?grad|grad\w*_(zero|clear|reset)|\.grad\s*=|\.grad\b[.\w]*\.(zero_|fill_)"
)
_MOST_STEPS: Final = 4  # of one run that are compared with a whole batch


class AccumulationEquivalence(Check):
    name: ClassVar[str] = "accumulation_equivalence"
    # A training step: two runs of it, one for each number that may be the one of its micro-batches, one for each whole
    # batch. For anything else nothing is run, but for losses, which are cheap.
    cost: ClassVar[float] = 8.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares a training step over several micro-batches with the same samples as one batch.",
        what_it_does=(
            "A function or method that calls `backward` is run with the batches that it is given: a loader, a batch "
            "that it cuts up itself, or one micro-batch a call. Dropout and batch norm are in eval mode, and "
            "parameters are put back after each optimizer step, so that all gradients are those of one point. The "
            "gradient that each step follows is taken apart into what each backward pass gave. The number of "
            "micro-batches in a step (an argument, an attribute, a name of the module or a number in the code) is then "
            "set to one, and the same samples are given as one batch, with the repository's own loss. For a loss, its "
            "value and gradients for a batch are compared with those for the parts of it."
        ),
        how_it_decides=(
            "`fail`, with another seed as well: `gradients_not_cleared` (a step holds what the step before has used; "
            "across calls only where nothing else in the repository clears them), `gradients_cleared_before_step`, "
            "`accumulation_not_divided` (n times the gradient of one batch), `divided_twice`, `accumulation_scaled`, "
            "`window_shifted`, `last_window_divided_by_all`, `unequal_weights` (micro-batches with other numbers of "
            "tokens count the same). A smaller last batch of a loader is usual and no fault. `inconclusive`: samples "
            "of a batch are compared with each other, random numbers are drawn, or no number of micro-batches was "
            "found. A loss that is a mean or a sum over samples passes; one that is neither is told as what it is "
            "(`inconclusive`), for that is a property and no fault. `skipped`: no training step and no loss."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of steps without gradients and the like
            try:
                built = build(context.resolved, context.recipe, seed=context.seed)
                if context.resolved.target.kind == "function" and held_by([*built.args, *built.kwargs.values()]):
                    return _Trial(context).result()
                return _loss(context)
            except ExpressionError as error:
                return CheckResult("error", f"the target can't be built: {error}"[:400])
            except TooMuchError as error:
                return CheckResult("skipped", str(error))
            except Exception as error:  # submitted objects can refuse to be looked at, or to be set, in any way
                return CheckResult("error", f"it can't be compared: {describe_error(error, 300)}")


def _loss(context: CheckContext) -> CheckResult:
    """What a loss is, over the parts of a batch: a property that whoever accumulates has to know."""
    kind, text = loss_of_parts(context.resolved, context.recipe, context.seed)
    evidence = {"loss": kind} if kind else {}
    if kind in ("mean", "sum"):
        return CheckResult("pass", text, evidence=evidence)
    if not kind:
        return CheckResult("skipped", text)
    return CheckResult("inconclusive", text, diagnosis=Diagnosis(f"loss_{kind}", text), evidence=evidence)


class _Trial:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._evidence: dict[str, Any] = {}

    def result(self) -> CheckResult:
        found = self._judged(self._context.seed)
        if isinstance(found, CheckResult):
            return found
        again = self._judged(self._context.seed + 1000) if time.monotonic() < self._context.deadline else found
        if not isinstance(again, Fault) or again.cause != found.cause:
            return self._inconclusive(f"{found.text}; but not with another seed")
        return self._failed(found)

    def _judged(self, seed: int) -> Fault | CheckResult:
        program = program_of(self._context.resolved, self._context.recipe, self._context.source_root, seed)
        recorded = program.run()
        if recorded.error is not None:
            return CheckResult("error", f"its call raises {describe_error(recorded.error, 300)}")
        if not recorded.backwards:
            return CheckResult("skipped", "its call comes to no backward()")
        self._evidence = {
            "batches": program.kind,
            "backward_passes": len(recorded.backwards),
            "micro_batches_per_step": [len(step.since) for step in recorded.steps],
        }
        if recorded.inside_step:
            return self._inconclusive("its optimizer asks for backward passes itself, by a closure")
        other = program.run(draw=1)
        if _differ(recorded, other):
            return self._inconclusive("its gradients are drawn at random: two runs of the same batches differ")
        fault = self._kept_or_lost(program, recorded)
        if fault is not None:
            return fault
        return self._scale(program, recorded)

    def _kept_or_lost(self, program: Program, recorded: Recorded) -> Fault | None:
        fault = kept_or_lost(recorded)
        if fault is None and len(recorded.steps) < 2 and (longer := program.longer()) is not None:
            more = longer.run()
            fault = kept_or_lost(more) if more.error is None else None
        if fault is not None and fault.cause == "gradients_not_cleared" and program.kind != "loader":
            # Whoever calls it may clear them before each call.
            target = self._context.resolved
            if others_mention(_CLEARS, target, self._context.source_root):
                return None
        return fault

    def _scale(self, program: Program, recorded: Recorded) -> Fault | CheckResult:
        nominal = max((len(step.since) for step in recorded.steps), default=0)
        if nominal <= 1:
            turned = self._turned_on(program)
            if turned is None:
                steps = sum(bool(step.since) for step in recorded.steps)
                if not steps:
                    return self._inconclusive("no step of an optimizer follows a backward pass of its call")
                text = f"each of {steps} steps follows the gradient of one backward pass, and nothing of another"
                return CheckResult("pass", text, evidence=self._evidence)
            program, recorded, nominal = turned
            if (fault := self._kept_or_lost(program, recorded)) is not None:
                return fault
        together = program.together(recorded)
        if together is None:
            return self._inconclusive("backward passes can't be told from each other: they are not one a micro-batch")
        count = self._count(program, recorded, nominal)
        if count is None:
            return self._inconclusive(
                f"{nominal} micro-batches make a step, which follows all of them; no argument or number in the code "
                "makes it one, so there is no whole batch to compare with"
            )
        self._evidence["set_to_one"] = count[0].text
        self._evidence["count"] = {
            "kind": count[0].kind,
            "name": count[0].name,
            "path": list(count[0].path),
            "value": dict(program.settings).get(count[0], count[0].value),
            "set_to": count[1],
            "loader": program.key if program.kind == "loader" else None,
        }
        return self._compared(program, recorded, nominal, count)

    def _compared(
        self, program: Program, recorded: Recorded, nominal: int, count: tuple[Count, int]
    ) -> Fault | CheckResult:
        reasons: list[str] = []
        compared = 0
        numbered = [(number, step) for number, step in enumerate(recorded.steps) if step.since]
        # The last step is where a window can be short.
        for number, step in [*numbered[: _MOST_STEPS - 1], *numbered[_MOST_STEPS - 1 :][-1:]]:
            if len({recorded.backwards[item].place for item in step.since}) > 1:
                reasons.append("a step follows several losses")
                continue
            single = program.whole(recorded, step, count)
            if single is None:
                reasons.append("its micro-batches can't be put together to one batch, or it raises with it")
                continue
            answer = scale_of(
                recorded,
                step,
                single,
                nominal=nominal,
                is_first=number == 0,
                sizes=program.sizes(recorded, step),
            )
            if isinstance(answer, Fault):
                others = program.whole(recorded, step, count, among_others=True)
                factor = None if others is None else multiple(others, single)
                if factor is None or abs(factor - 1) > FACTOR:
                    return self._inconclusive("the loss of a batch depends on how many batches there are")
                return answer
            if isinstance(answer, str):
                reasons.append(answer)
            else:
                compared += 1
        if not compared:
            return self._inconclusive(reasons[0] if reasons else "no step came to be compared")
        text = f"{compared} steps of up to {nominal} micro-batches follow the gradient of the same samples as one batch"
        return CheckResult("pass", text, evidence=self._evidence | ({"not_compared": reasons} if reasons else {}))

    def _turned_on(self, program: Program) -> tuple[Program, Recorded, int] | None:
        """With two micro-batches a step, where an argument of such a name is 1 by default."""
        for count in program.counts(1):
            if count.is_named and count.value == 1:
                turned = (program.longer() or program).with_count(count, 2)
                recorded = turned.run()
                nominal = max((len(step.since) for step in recorded.steps), default=0)
                if recorded.error is None and nominal == 2:
                    self._evidence["set_to_two"] = count.text
                    return turned, recorded, nominal
        return None

    def _count(self, program: Program, recorded: Recorded, nominal: int) -> tuple[Count, int] | None:
        """The number that makes one micro-batch a step, and the value that does so."""
        for count in program.counts(nominal):
            for value in program.single_values(count):
                if time.monotonic() > self._context.deadline:
                    return None
                if program.is_single(count, value, recorded):
                    return count, value
        return None

    def _failed(self, fault: Fault) -> CheckResult:
        answer = Answer("fail", fault.cause, fault.text, fault.place, fault.numbers)
        return answer.result(self._context.resolved.target, self._evidence)

    def _inconclusive(self, text: str) -> CheckResult:
        return CheckResult("inconclusive", text, diagnosis=Diagnosis("not_decided", text), evidence=self._evidence)


def _differ(first: Recorded, second: Recorded) -> bool:
    def gradients(recorded: Recorded) -> Sequence[torch.Tensor]:
        return [step.gradient for step in recorded.steps]

    a, b = gradients(first), gradients(second)
    return len(a) != len(b) or any(
        float((x - y).norm()) > 1e-5 * max(float(x.norm()), 1e-30) for x, y in zip(a, b, strict=True)
    )
