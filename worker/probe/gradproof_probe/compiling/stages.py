"""The stages without a code generator: Dynamo, and AOTAutograd with it. They have to give eager's own bits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.breaks import CALLS as RECOMPILING_CALLS
from gradproof_probe.compiling.breaks import graph_breaks, recompilations
from gradproof_probe.compiling.conditioning import is_ill_conditioned
from gradproof_probe.compiling.explaining import Seen, explained_capture, explained_compilation, with_line
from gradproof_probe.compiling.generators import moved_otherwise
from gradproof_probe.compiling.graphs import GraphRecorder
from gradproof_probe.compiling.repository import compiles
from gradproof_probe.compiling.running import (
    CALLS,
    CAPTURED,
    WHOLE,
    Backend,
    Counter,
    backend_named,
    observed,
    observed_compiled,
)
from gradproof_probe.compiling.shapes import CALLS as SHAPED_CALLS
from gradproof_probe.compiling.shapes import kept_and_larger
from gradproof_probe.compiling.suspected import failing, settled_by_tracing, wire
from gradproof_probe.compiling.transforms import under_transforms
from gradproof_probe.equivalence.observation import (
    ROUNDING,
    Difference,
    Mode,
    Observation,
    bitwise_differences,
)
from gradproof_probe.equivalence.units import Units
from gradproof_probe.gradients.attribution import Place, innermost, relative
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.importing import describe_error

# What is more than rounding, and less than this, can be the same rounding where a result is ill-conditioned (a long
# chain of cosine transforms: 2e-6): eager itself then answers as much to inputs that are off by one unit.
ILL_CONDITIONED: Final = 1e-3
# A stage that took longer than this is not traced again, for guards or another shape, while nothing is wrong. These are
# seconds of the processor: by the clock, what a check says would hang on what else the machine does.
CHEAP_S: Final = 2.0
_STACK: Final = re.compile(r'File "([^"]+)", line (\d+)')
_OWN_LIMITS: Final = ("Unsupported", "InternalTorchDynamoError", "BackendCompilerFailed", "SkipFrame")


@dataclass(frozen=True, slots=True)
class _Differs:
    """A stage that gives something else, beyond rounding."""

    text: str
    compiled: Observation
    differences: list[Difference]


@dataclass(slots=True)
class CapturedStages:
    """Compares both modes. `evidence` grows on the way; `operations` and `random` are what the next stage asks for."""

    context: CheckContext
    evidence: dict[str, Any] = field(default_factory=dict)
    operations: int = 0
    random: bool = False
    traced_s: float = 0.0
    units: dict[str, Units] = field(default_factory=dict)

    def run(self) -> Answer:
        """The answer of these stages; its evidence is the whole of `evidence`."""
        answer = self._compared()
        counted = [record for units in self.units.values() for record in units.to_evidence()]
        if counted:
            self.evidence["units_apart"] = counted
        if answer.verdict == "pass":
            answer = self._transformed() or self._recompiled() or self._larger() or answer
        if self.context.hypotheses:
            settled = settled_by_tracing(self.context, answer, self.evidence)
            if settled:
                self.evidence["hypotheses"] = wire(settled)
            if answer.verdict == "pass":
                answer = failing(settled) or answer
        answer.evidence = self.evidence
        return answer

    def _transformed(self) -> Answer | None:
        """What fails under torch.func, if anything does."""
        found = under_transforms(self.context)
        self.evidence |= {f"under {name}": answer.text for name, answer in found.items()}
        return next((answer for answer in found.values() if answer.verdict == "fail"), None)

    def _recompiled(self) -> Answer | None:
        """A target that is compiled again by every call: no fault for those who compile nothing."""
        again = self.evidence.get("recompilations", [])
        if len(again) < RECOMPILING_CALLS - 1 or not compiles(self.context.source_root):
            return None
        guard, line = again[-1]["guard"], str(again[-1].get("line") or "")
        path, _, number = line.rpartition(":")
        text = (
            f"each of {RECOMPILING_CALLS} calls with the same inputs is compiled anew, because of the guard `{guard}`; "
            "after 8 times torch.compile gives up and runs eagerly"
        )
        place = Place(path, int(number)) if path else None
        return Answer("fail", "recompiles_at_each_call", text, place, {"guard": guard})

    def _larger(self) -> Answer | None:
        """A module that keeps tensors between calls, with a larger input at the second of three."""
        is_cheap = self.context.resolved.target.kind == "module" and self.traced_s <= CHEAP_S
        found = kept_and_larger(self.context) if is_cheap else None
        if found is None:
            return None
        name, around = found
        try:
            plain = observed(self.context, "train", wrap=around, calls=SHAPED_CALLS)
            compiled = observed_compiled(
                self.context, "train", backend_named(CAPTURED), around=around, calls=SHAPED_CALLS
            )
        except Exception as error:
            self.evidence["larger input"] = f"not compared: {describe_error(error, 200)}"
            return None
        differences = bitwise_differences(plain, compiled)
        if not differences or differences[0].relative <= ROUNDING or plain.python_random:
            self.evidence["larger input"] = f"it keeps {name}; a larger input at the second call changes nothing"
            return None
        if bitwise_differences(plain, observed(self.context, "train", wrap=around, calls=SHAPED_CALLS)):
            return None
        text = f"compiled, with a larger input at the second call, {differences[0].text}; it keeps {name} between calls"
        self.evidence["differences"] = [item.text for item in differences[:10]]
        answer = Answer("fail", "differs_after_another_shape", text, numbers={"kept": name})
        return with_line(self.context, "train", answer, around=around, calls=SHAPED_CALLS)

    def _compared(self) -> Answer:
        modes: tuple[Mode, ...] = ("train", "eval") if self.context.resolved.target.kind == "module" else ("train",)
        worst = 0.0
        trace = PrecisionTrace()
        compared: list[Mode] = []
        first: Observation | None = None
        for mode in modes:
            try:
                plain = observed(self.context, mode, wrap=lambda call: _traced(call, trace))
            except Exception as error:
                if mode == "eval":
                    self.evidence["eval"] = f"not compared: plain eager raises {describe_error(error, 200)}"
                    continue
                return Answer("error", "forward_raises", f"plain eager raises {describe_error(error)}")
            self.random = bool(trace.narrow.random)
            if first is not None and not bitwise_differences(first, plain):
                self.evidence["eval"] = "not compiled: it gives the same bits as train mode"
                continue
            first = first or plain
            answer = self._stages(mode, plain)
            if isinstance(answer, Answer):
                return answer
            worst = max(worst, answer)
            compared.append(mode)
        said = "bitwise equal" if worst == 0 else f"equal to rounding ({worst:.1e})"
        text = f"Dynamo and aot_eager {said} to eager in {' and '.join(compared)} mode"
        breaks = self.evidence.get("graph_breaks")
        if breaks:
            text += f", with {len(breaks)} graph break{'s' if len(breaks) > 1 else ''}"
        if self.evidence.get("recompilations"):
            text += ", compiled again by a later call with the same inputs"
        return Answer("pass", "equal", text)

    def _stages(self, mode: Mode, plain: Observation) -> Answer | float:
        """The largest relative difference that is rounding, or the answer that ends the check."""
        whole = self._stage(mode, WHOLE, plain)
        if isinstance(whole, float) or (isinstance(whole, Answer) and whole.cause in ("nothing_compiled", "vacuous")):
            return whole
        if isinstance(whole, _Differs) and self._is_nondeterministic(mode, plain):
            # Only a difference needs to know whether eager gives the same twice: what agrees has shown it.
            return Answer("inconclusive", "nondeterministic", "two plain eager runs with the same seeds differ")
        recorder = GraphRecorder()  # runs graphs as the backend does, and keeps what a difference is looked for in
        captured = self._stage(mode, CAPTURED, plain, recorder)
        if isinstance(captured, _Differs):
            self._note(captured)
            found = (captured.compiled, recorder.calls)
            return explained_capture(self.context, mode, captured.text, found, draws=self.random)
        if isinstance(captured, Answer):
            return captured
        if isinstance(whole, Answer):
            return after_capture(whole)
        self._note(whole)
        seen = Seen(plain, whole.compiled, whole.differences, recorder.calls)
        return explained_compilation(self.context, mode, WHOLE, whole.text, seen, draws=self.random)

    def _is_nondeterministic(self, mode: Mode, plain: Observation) -> bool:
        return bool(bitwise_differences(plain, observed(self.context, mode)))

    def _note(self, differs: _Differs) -> None:
        self.evidence["differences"] = [item.text for item in differs.differences[:10]]

    def _stage(
        self, mode: Mode, stage: str, plain: Observation, backend: Backend | None = None
    ) -> Answer | _Differs | float:
        from torch._dynamo.utils import counters

        counters.clear()
        begun = time.process_time()
        counter = Counter(backend or backend_named(stage))
        after: list[int] = []
        try:
            compiled = observed_compiled(self.context, mode, counter, after_call=lambda: after.append(counter.graphs))
        except Exception as error:
            return self._raised(stage, mode, error)
        self.evidence[f"{stage} {mode}"] = {"graphs": counter.graphs, "operations": counter.operations}
        if stage == WHOLE:
            if mode == "train":
                self.operations, self.traced_s = counter.operations, time.process_time() - begun
            self._note_dynamo(mode, sum(counters["graph_break"].values()), after)
        if counter.graphs == 0:
            return Answer("inconclusive", "nothing_compiled", "Dynamo captured no graph: nothing ran compiled")
        gradients = plain.gradients()
        if gradients and not any(bool(gradient.any()) for gradient in gradients):
            return Answer("inconclusive", "vacuous", "every gradient is zero: nothing was compared in backward")
        return self._judged(mode, stage, plain, compiled)

    def _judged(self, mode: Mode, stage: str, plain: Observation, compiled: Observation) -> Answer | _Differs | float:
        differences = bitwise_differences(plain, compiled)
        units = self.units.setdefault(stage, Units(f"compiled ({stage})", "eager"))
        units.add(plain, compiled, plain, lambda _name: ROUNDING, said=f"{mode} mode, ")
        if not differences:
            moved = moved_otherwise(self.context, mode, stage, plain, compiled)
            if moved is not None:
                self.evidence["generators"] = moved
            return 0.0
        first = differences[0]
        if first.relative <= ROUNDING:
            self.evidence.setdefault("rounding", []).append(f"{stage} {mode}: {first.text}")
            return first.relative
        if plain.python_random or compiled.python_random:
            self.evidence["differences"] = [item.text for item in differences[:10]]
            return Answer(
                "inconclusive",
                "python_random",
                f"under {stage} {first.text}; it draws from Python's random or NumPy's, which Dynamo keeps "
                "generators of its own for",
            )
        if first.relative <= ILL_CONDITIONED and is_ill_conditioned(self.context, mode, plain, compiled):
            told = f"{stage} {mode}: {first.text}, as eager does where inputs are off by one unit"
            self.evidence.setdefault("rounding", []).append(told)
            return first.relative
        return _Differs(f"under backend {stage} in {mode} mode, {first.text}", compiled, differences)

    def _note_dynamo(self, mode: Mode, counted: int, after: list[int]) -> None:
        """`counted`: breaks as Dynamo counts them, without branches on data. `after`: graphs after each call."""
        if (counted or after[:1] > [1]) and "graph_breaks" not in self.evidence:
            found = graph_breaks(self.context, mode)
            if found:
                self.evidence["graph_breaks"] = found
        if len(after) == CALLS and after[-1] > after[0] and "recompilations" not in self.evidence:
            self.evidence["recompilations"] = self._recompilations(mode)

    def _recompilations(self, mode: Mode) -> list[dict[str, Any]]:
        if self.traced_s > CHEAP_S:
            return [{"call": 2, "guard": "not told: tracing it takes too long to do it again", "line": None}]
        try:
            return recompilations(self.context, mode)
        except Exception as error:
            return [{"call": 2, "guard": f"not told: {describe_error(error, 150)}", "line": None}]

    def _raised(self, stage: str, mode: Mode, error: BaseException) -> Answer:
        """Dynamo's own limits say nothing about the code; an exception out of a submitted line does."""
        root = self.context.source_root
        place = innermost(error.__traceback__, root) or _named_place(str(error), root)
        text = f"only under torch.compile (backend {stage}, {mode} mode) it raises {describe_error(error, 300)}"
        if "internal overlap" in str(error):
            said = "it writes in place to a tensor whose elements lie at the same memory"
            return Answer("fail", "overlapping_write", f"{said}, and what eager makes of that is chance: {text}", place)
        # An operator that has no kernel for fake tensors raises NotImplementedError: torch's gap, not the code's.
        own_limit = type(error).__name__ in _OWN_LIMITS or isinstance(error, NotImplementedError)
        if own_limit or place is None:
            return Answer("inconclusive", "not_compilable", text)
        return Answer("fail", "compile_raises", text, place)


def after_capture(answer: Answer) -> Answer:
    """What AOTAutograd refuses of a graph that runs as Dynamo captured it is no word about the code.

    torch 2.13: views of a result whose strides eager makes otherwise than fake tensors say; inductor runs them.
    """
    if answer.cause != "compile_raises":
        return answer
    text = f"{answer.text}; the graph as Dynamo captured it runs, so it is not known whether another backend refuses it"
    return Answer("inconclusive", "refused_after_capture", text, answer.place)


def _traced(call: Callable[..., Any], trace: PrecisionTrace) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with trace:  # only the call: inputs and incoming gradients are drawn at random as well
            return call(*args, **kwargs)

    return run


def _named_place(message: str, source_root: Path) -> Place | None:
    own = [(relative(name, source_root), int(line)) for name, line in _STACK.findall(message)]
    known = [(path, line) for path, line in own if path is not None]
    return Place(*known[-1]) if known else None
