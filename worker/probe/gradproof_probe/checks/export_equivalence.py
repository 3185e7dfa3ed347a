"""Does a recording of the target (a trace, an export) compute the same at other inputs than it was made from?"""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.harness.recipe import ExpressionError, build, make_inputs
from gradproof_probe.importing import describe_error
from gradproof_probe.training.exporting import Compared, How, Recording, flat_tensors, others
from gradproof_probe.training.recording_calls import recording_calls


class ExportEquivalence(Check):
    name: ClassVar[str] = "export_equivalence"
    cost: ClassVar[float] = 20.0
    fixed_s: ClassVar[float] = 0.05
    documentation: ClassVar[Documentation] = Documentation(
        summary="Records the target once and compares the recording with eager execution at other inputs.",
        what_it_does=(
            "In eval mode, `torch.jit.trace` records one call (`torch.export` does where the source calls that). "
            "The recording then runs at inputs that were drawn anew, of the other sign, larger, smaller, zero, with "
            "inverted masks, and with other batches and lengths, next to eager execution. Lines at which the tracer "
            "takes a Python value from a tensor are listed: branches, loops, `.item()`, sizes."
        ),
        how_it_decides=(
            "`fail` needs three things: the source traces or exports the target (by itself, or by a name that the same "
            "file assigned it to), the recording gives other numbers than eager without saying so (by more than "
            "0.1 %), and a recording of another example does so as well. The line is the first one that took another "
            "Python value there. A recording that refuses another shape is reported only, and for ONNX without dynamic "
            "axes no other shape is tried. Where nobody records the "
            "target, code may branch as it likes: a recording that agrees is `pass`, one that wouldn't is `skipped`, "
            "with the lines in the evidence."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.resolved.target.kind == "autograd_function":
            return CheckResult("skipped", "a custom Function is recorded as part of what calls it")
        try:
            return _Comparison(context).result()
        except ExpressionError as error:
            return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")


class _Comparison:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._recorded = recording_calls(context.resolved.target.qualname.partition(".")[0], context.source_root)
        exported = bool(self._recorded) and all(item.exported for item in self._recorded)
        self._how: How = "torch.export" if exported else "torch.jit.trace"
        self._evidence: dict[str, Any] = {}

    def result(self) -> CheckResult:
        used = [f"{item.place.path}:{item.place.line}" for item in self._recorded]
        self._evidence["recorded_at"] = used[:5]
        recording = self._recording(self._context.seed)
        if not recording.example:
            return self._said("skipped", "it takes no tensor, so a recording has no inputs")
        try:
            recording.eager(*recording.example)
        except Exception as error:
            text = f"in eval mode and with frozen parameters it raises {describe_error(error, 300)}"
            return self._said("inconclusive" if used else "skipped", text)
        try:
            recording.record(self._how)
        except Exception as error:
            text = f"{self._how} can't record it: {describe_error(error, 300)}"
            return self._said("inconclusive" if used else "skipped", text)
        self._evidence["baked_in"] = [item.to_wire() for item in recording.baked]
        compared = self._compared(recording, self._context.seed + 1)
        self._evidence["compared_at"] = [item.other.words for item in compared if not item.refused]
        refused = {item.other.words: item.refused for item in compared if item.refused}
        if refused:
            self._evidence["refused"] = refused
        differing = [item for item in compared if item.differs]
        if differing:
            return self._differs(differing[0], recording, recorded=bool(used))
        if not any(not item.refused for item in compared):
            text = "there are no other inputs at which both eager and the recording run, with the same result twice"
            return self._said("inconclusive" if used else "skipped", text)
        text = f"{self._how} gives what eager gives at {len(compared) - len(refused)} other inputs"
        if recording.baked:
            text += f", though {len(recording.baked)} Python values were taken from tensors"
        return self._said("pass", text)

    def _recording(self, seed: int) -> Recording:
        return Recording(
            build(self._context.resolved, self._context.recipe, seed=seed), self._context.source_root, seed
        )

    def _compared(self, recording: Recording, seed: int) -> list[Compared]:
        redrawn = flat_tensors(list(make_inputs(self._context.resolved, self._context.recipe.inputs, seed=seed)))
        found = []
        fixed = bool(self._recorded) and all(item.fixed_sizes for item in self._recorded)
        for other in others(recording.example, redrawn):
            if fixed and not other.same_shapes:
                continue
            if time.monotonic() > self._context.deadline:
                break
            one = recording.compare(other)
            found += [] if one is None else [one]
        return found

    def _differs(self, worst: Compared, recording: Recording, *, recorded: bool) -> CheckResult:
        place = worst.place
        self._evidence["differs"] = {"inputs": worst.other.words, "error": worst.error}
        where = "" if place is None else f" at {place.path}:{place.line}"
        what = next((item.what for item in recording.baked if item.place == place), "")
        size = f"off by {worst.error:.1e} of their size" if math.isfinite(worst.error) else "of another shape"
        text = (
            f"recorded by {self._how}, it gives other numbers than eager for {worst.other.words} ({size}), and says "
            f"nothing: what Python decided{where} is a constant of the recording{f' ({what})' if what else ''}"
        )
        if not recorded:
            text = f"nobody traces or exports it here, so it may branch. {text[0].upper()}{text[1:]}"
            return self._said("skipped", text, place)
        again = self._recording(self._context.seed + 1)
        try:
            again.record(self._how)
            reproduced = any(item.differs for item in self._compared(again, self._context.seed + 2))
        except Exception:
            reproduced = False
        if not reproduced:
            return self._said("inconclusive", f"{text}; a recording of another example agrees", place)
        return self._said("fail", text, place)

    def _said(self, verdict: Any, text: str, place: Place | None = None) -> CheckResult:
        target = self._context.resolved.target
        failed = verdict in ("fail", "inconclusive")
        at = place or Place(target.path, target.line)
        return CheckResult(
            verdict,
            text,
            diagnosis=Diagnosis("baked_in", text, self._evidence["differs"])
            if failed and "differs" in self._evidence
            else None,
            path=at.path if failed else None,
            line=at.line if failed else None,
            evidence=self._evidence,
        )
