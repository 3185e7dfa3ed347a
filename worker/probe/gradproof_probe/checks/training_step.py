"""Does a training step of the repository do what its acts are for? Recorded and judged in `training`."""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.harness.recipe import ExpressionError, build
from gradproof_probe.harness.sources import function_node, tree_of
from gradproof_probe.importing import describe_error
from gradproof_probe.seeding import reseed
from gradproof_probe.source_texts import source_texts
from gradproof_probe.training.reach import names_used
from gradproof_probe.training.step_arguments import StepArguments
from gradproof_probe.training.step_recorder import Event, StepRecorder
from gradproof_probe.training.steps_order import Fault, faults_in, has_stepped, order_of, was_used

CALLS: Final = 3
# Whatever clears gradients, in any spelling: helpers have many names.
_CLEARS: Final = re.compile(
    r"(zero|clear|reset|del|remove)\w*_?grad|grad\w*_(zero|clear|reset)|\.grad\s*=|\.grad\b[.\w]*\.(zero_|fill_)"
)
_UPDATES: Final = re.compile(r"scaler\w*\.update\(")
_NOT_UPDATED: Final = re.compile(r"step\(\) has already been called since the last update|called after step\(\)")
_UNSCALED_TWICE: Final = "unscale_() has already been called on this optimizer"
_FREED: Final = "backward through the graph a second time"
_WRITTEN: Final = "modified by an inplace operation"
_DETACHED: Final = "does not require grad and does not have a grad_fn"


class TrainingStep(Check):
    name: ClassVar[str] = "training_step"
    cost: ClassVar[float] = 10.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Runs a function that trains, and looks whether clearing, clipping, scaling and stepping take effect.",
        what_it_does=(
            "A function or method that calls `backward` and an optimizer's `step` is called three times, with the same "
            "model and optimizer. Each forward, backward, `unscale_`, clip, step, `update`, clearing of gradients and "
            "step of a scheduler is noted with its line, and so is, parameter by parameter, which backward passes a "
            "gradient is the sum of and what became of each. Where clipping would only show with larger gradients, it "
            "runs again with such. A `GradScaler` for CUDA works on the CPU here."
        ),
        how_it_decides=(
            "`fail`, each with the numbers that show the effect: a step with gradients that the step before has used "
            "already, where nothing in the file clears them; gradients that are cleared before any step has used them; "
            "clipping after the step or before backward; clipping before `unscale_`; an optimizer's own step on scaled "
            "gradients; a missing `update`; a loss whose graph grows with each call or was freed by the step before; a "
            "loss without a graph although the model's output has one; a loss of torch that broadcasts two declared "
            "shapes against each other; a scheduler that moves on before the first step. Gradients that the source "
            "itself reads or writes between two acts (accumulation of norms, sharpness-aware steps, hand-made scaling) "
            "are not judged. `pass` when gradients that aren't zero went into a step and nothing of this was found. "
            "`skipped` for what is no training step."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        resolved = context.resolved
        if resolved.target.kind != "function":
            return CheckResult("skipped", "it is no function that trains")
        owner = getattr(resolved.module, resolved.target.qualname.partition(".")[0], None)
        names = names_used(resolved.value, context.source_root, owner if isinstance(owner, type) else None)
        if not {"backward", "step"} <= names and not {"autograd", "step"} <= names:
            return CheckResult("skipped", "it does not call both backward and an optimizer's step")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what is looked for here
            try:
                return _Trial(context).result()
            except ExpressionError as error:
                return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")


class _Trial:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._root = context.source_root
        self._evidence: dict[str, Any] = {}

    def result(self) -> CheckResult:
        recorder, error = self._recorded(1.0)
        self._evidence["order"] = order_of(recorder)
        found = [fault for fault in self._faults(recorder) if fault is not None]
        if error is not None:
            raised = self._of_error(recorder, error)
            if raised is not None:
                found.insert(0, raised)
            elif not found:
                return self._raised(recorder, error)
        if found:
            return self._failed(found)
        backwards = [event for event in recorder.events if event.act == "backward"]
        if not backwards or not has_stepped(recorder):
            missing = "backward" if not backwards else "an optimizer's step"
            return CheckResult("skipped", f"this call of it does not come to {missing}", evidence=self._evidence)
        if not was_used(recorder):
            return CheckResult("inconclusive", "no gradient that is not zero went into a step", evidence=self._evidence)
        steps = sum(event.act == "step" for event in recorder.events)
        return CheckResult(
            "pass", f"{len(backwards)} backward passes and {steps} steps, in order", evidence=self._evidence
        )

    def _recorded(self, enlarge: float) -> tuple[StepRecorder, BaseException | None]:
        recorder = StepRecorder(self._root, enlarge=enlarge)
        error = None
        with recorder.watching():
            built = build(self._context.resolved, self._context.recipe, seed=self._context.seed)
            arguments = StepArguments(built)
            for holder in arguments.holders():
                recorder.know(holder)
            reseed(self._context.seed)
            for _ in range(CALLS):
                with torch.enable_grad():
                    error = recorder.run(built.call, *arguments.for_call())
                if error is not None or time.monotonic() > self._context.deadline:
                    break
        return recorder, error

    def _faults(self, recorder: StepRecorder) -> list[Fault]:
        """Those that are so; what only larger gradients can show is tried with such."""
        found = []
        for fault in faults_in(recorder):
            if fault.cause == "loss_broadcast" and self._context.recipe.source == "synthesised":
                continue  # the shapes are ours
            if fault.between_calls and (self._elsewhere(_CLEARS) or self._callers_do(_CLEARS)):
                continue
            if fault.enlarge == 1.0:
                found.append(fault)
            elif time.monotonic() < self._context.deadline:
                again, _ = self._recorded(fault.enlarge)
                alike = [
                    other
                    for other in faults_in(again)
                    if other.cause == fault.cause and other.place == fault.place and other.enlarge == 1.0
                ]
                found += alike[:1]
        return found

    def _elsewhere(self, pattern: re.Pattern[str]) -> bool:
        """Whether the file does something of the kind outside of the target itself."""
        module_file = getattr(self._context.resolved.module, "__file__", None)
        node = function_node(self._context.resolved.value)
        if not isinstance(module_file, str) or tree_of(module_file) is None:
            return True  # nothing can be said: no fault
        try:
            with open(module_file, encoding="utf-8") as file:  # noqa: PTH123 - a name that came from the module
                lines = file.read().splitlines()
        except (OSError, ValueError):
            return True
        if node is not None:
            lines = lines[: node.lineno - 1] + lines[node.end_lineno or node.lineno :]
        return any(pattern.search(line.partition("#")[0]) for line in lines)

    def _callers_do(self, pattern: re.Pattern[str]) -> bool:
        """Whether a file that names the target does something of the kind: whoever calls it may have done it before."""
        target = self._context.resolved.target
        home, _, last = target.qualname.rpartition(".")
        # `step` alone is in many files: the class is named with a method, the module with a function.
        names = [re.compile(rf"\b{re.escape(word)}\b") for word in (last, home or Path(target.path).stem)]
        own = getattr(self._context.resolved.module, "__file__", None)
        texts = source_texts(self._root)
        others = (item.text for item in texts.python if str(item.file.resolve()) != own)
        return not texts.complete or any(
            all(name.search(text) for name in names) and pattern.search(text) for text in others
        )

    def _of_error(self, recorder: StepRecorder, error: BaseException) -> Fault | None:
        """What was raised as a fault of the step, where it can be nothing else."""
        said = str(error)
        last = next((event for event in reversed(recorder.events) if event.error is error), None)
        if last is None:
            return None
        first_call = last.call == 0
        numbers = {"call": last.call + 1}
        if last.act in ("scaler.step", "unscale_") and _NOT_UPDATED.search(said):
            if self._elsewhere(_UPDATES) or any(event.act == "scaler.update" for event in recorder.events):
                return None
            text = "scaler.update() is never called: the scale can't adapt, and the next scaler.step() raises"
            return Fault("scaler_update_missing", text, _previous(recorder, last).place, numbers)
        if last.act == "unscale_" and _UNSCALED_TWICE in said:
            text = "unscale_() is called twice for one step: the second call raises"
            return Fault("unscaled_twice", text, last.place, numbers)
        if last.act == "clip" and not last.gradients:
            text = "gradients are clipped before backward() has made any, which raises"
            return Fault("clip_before_backward", text, last.place, numbers)
        if last.act == "backward" and _goes_further_back(recorder, last, said):
            text = (
                "this loss goes back through the graph of an earlier step, which backward() has freed or step() has "
                "written to: detach what is kept from one step to the next"
            )
            return Fault("graph_of_an_earlier_step", text, last.place, numbers)
        if last.act == "backward" and _DETACHED in said and first_call:
            outputs = [output for output in recorder.outputs if output.requires_grad]
            if outputs:
                text = "the loss has no graph although the model's output has one: it was cut off on the way"
                return Fault("detached_loss", text, last.place, numbers)
        return None

    def _failed(self, found: list[Fault]) -> CheckResult:
        first = found[0]
        target = self._context.resolved.target
        if len(found) > 1:
            self._evidence["also"] = [
                {"cause": other.cause, "text": other.text, "path": other.place.path, "line": other.place.line}
                for other in found[1:]
                if other.place is not None
            ]
        return Answer("fail", first.cause, first.text, first.place, first.numbers).result(target, self._evidence)

    def _raised(self, recorder: StepRecorder, error: BaseException) -> CheckResult:
        calls = 1 + max((event.call for event in recorder.events), default=0)
        return CheckResult("error", f"call {calls} of it raises {describe_error(error, 300)}", evidence=self._evidence)


def _goes_further_back(recorder: StepRecorder, failed: Event, said: str) -> bool:
    """Whether it failed for what a step before has left: its graph is larger than in the step before."""
    earlier = [event for event in recorder.events[: failed.number] if event.act == "backward"]
    stepped = any(event.act == "step" for event in recorder.events[: failed.number])
    alike = [event for event in earlier if event.place == failed.place and event.error is None]
    if not stepped or not alike:
        return False
    return _FREED in said or (_WRITTEN in said and failed.nodes > alike[0].nodes)


def _previous(recorder: StepRecorder, event: Event) -> Event:
    """The scaler's step that nothing followed."""
    earlier = [other for other in recorder.events[: event.number] if other.act == "scaler.step"]
    return earlier[-1] if earlier else event
