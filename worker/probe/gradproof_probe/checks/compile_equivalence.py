"""Does the target compute the same under torch.compile? Each stage in a child of its own, with its own limit.

The stages, and what becomes of a difference, are in `compiling`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.compiling import kept_kernels
from gradproof_probe.equivalence.units import TOLD
from gradproof_probe.processes import LineWriter, watch

# What inductor takes with its header at hand, two sandboxes on two cores: 6.8 s for 4 captured operations, 12 s for 20,
# over 25 s for 95 (g++ is started for every kernel). What would not come to its end is not begun.
INDUCTOR_S: Final = 5.0
INDUCTOR_OPERATION_S: Final = 0.35
INDUCTOR_HEADER_S: Final = 8.0  # compiling the header of all kernels, once with a fresh cache
# What is told of code that was compiled before.
_CACHE: Final = ("inductor_cache", "inductor_repeated")


def preload() -> None:
    """Import Dynamo, its backends and the stages in the parent, before any fork. Inductor only where a compiler is."""
    import torch._dynamo
    import torch._dynamo.backends.debugging
    import torch._functorch.aot_autograd

    import gradproof_probe.compiling.stages

    if compiler() is not None:
        import torch._inductor.compile_fx  # noqa: F401

        import gradproof_probe.compiling.inductor  # noqa: F401


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


class CompileEquivalence(Check):
    name: ClassVar[str] = "compile_equivalence"
    cost: ClassVar[float] = 12.0
    fixed_s: ClassVar[float] = 2.0  # tracing
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares outputs, gradients, buffers and changed inputs with and without torch.compile.",
        what_it_does=(
            "The target is built anew for each way of running and called twice in a row, in train and in eval mode, "
            "with the same seeds and the same random incoming gradient. The backend `aot_eager` (what Dynamo captures, "
            "with AOTAutograd) runs first, and where it differs `eager` (without AOTAutograd), to tell which of the "
            "two it comes from. Eval mode is left out where it gives the same bits as train mode before anything is "
            "compiled. Where a C++ compiler exists and the batch's time for it is "
            "not used up, `inductor` runs as well, with `fallback_random`, and is compared with a float64 reference. "
            "It starts from what it compiled for an earlier analysis of the same repository, if that is kept "
            "(`inductor_cache`: graphs found compiled, and compiled now). "
            "A custom Function that torch.func takes is compiled under `torch.func.vjp` too, and under "
            "`torch.func.vmap` where it has a rule for that. Where all values are the same, it is compared where "
            "torch's generator, and those that the target holds, stand after the call, and what is seen is noted "
            "(`generators`). A difference is followed "
            "to the first operation with which it begins: the beginning of the captured graph is compiled, the rest "
            "interpreted, and the cut moved until one operation is left; its submitted line, its submodule and, with "
            "inductor, the pass or lowering are named. Where a second call is compiled again, the guards are listed "
            "that failed; graph breaks are listed with their lines. Suspicions of reading that only running settles "
            "(hooks that come after compiling, divisions on the edges of buckets) are tried at their own places.\n\n"
            f"{TOLD}"
        ),
        how_it_decides=(
            "`aot_eager` has to give the same bits as plain eager execution (14 of 14 measured "
            "models do; differences below 16 float32 units are taken for rounding and noted). `inductor` has to "
            "be at most 6 times as far from the float64 reference as eager is, or 2^-23 if that is more (most healthy "
            "models: 0.63 to 1.95 times), and where n numbers are summed into one, at most 1.5 times the root of n "
            "(eager sums some in double: 16 times for batch norm of 1,024; injected faults: 46 times and more). "
            "What is amiss with kernels of an earlier analysis is looked at again with everything compiled anew, and "
            "only that counts. "
            "Nothing captured, or a gradient "
            "that is zero throughout, is `inconclusive`, never `pass`. A cause is named only after an experiment: "
            "`asks_whether_compiled` where plain code that is told so gives the compiled values, "
            "`custom_backward_dropped` where plain code without the hand-written backward does, `custom_vmap_dropped` "
            "where it is the rule for vmap, "
            "`buffer_read_after_update` where compiled gradients are right with the buffers put back, "
            "`random_numbers_shared` where they are right without common subexpressions, `depends_on_memory_layout` "
            "where the difference begins with an operation that reads memory by strides, `step_at_edge` where inputs "
            "lie on the edges of a rounding step, `eager_not_finite` where a low precision overflows in eager alone. "
            "`compiler_fault` is a plain tensor program that eager computes as "
            "float64 does and compiled code does not: it, shared random numbers and reread buffers are no fault of "
            "the code, so they fail only where the repository uses torch.compile, and are `inconclusive` elsewhere. "
            "An exception that compiled code alone raises is `fail` when it comes "
            "from a line of the submitted source, and `inconclusive` when Dynamo says that it doesn't support "
            "something. The verdict comes from the `aot_eager` stage alone where inductor did not run, and the "
            "summary says so."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        begun = time.monotonic()
        captured, how = _in_child(lambda: _captured_stages(context), context.deadline)
        if captured is None:
            return Answer("error", "crashed", f"running it compiled {how}").result(context.resolved.target, {})
        facts = captured.evidence.pop("facts", {})
        evidence: dict[str, Any] = dict(captured.evidence)
        if captured.verdict != "pass":
            return captured.result(context.resolved.target, evidence)
        inductor, used = self._inductor(context, facts)
        settled = [*evidence.get("hypotheses", []), *inductor.evidence.get("hypotheses", _unsettled(context, inductor))]
        if settled:
            evidence["hypotheses"] = settled
        units = [*evidence.get("units_apart", []), *inductor.evidence.get("units_apart", [])]
        if units:
            evidence["units_apart"] = units
        evidence["inductor"] = inductor.text
        evidence |= {name: inductor.evidence[name] for name in _CACHE if name in inductor.evidence}
        evidence["inductor_s"] = round(used, 2)
        evidence["took_s"] = round(time.monotonic() - begun, 2)
        if inductor.verdict in ("fail", "inconclusive"):
            return inductor.result(context.resolved.target, evidence)
        return Answer("pass", "equal", f"{captured.text}; {inductor.text}").result(context.resolved.target, evidence)

    def _inductor(self, context: CheckContext, facts: dict[str, Any]) -> tuple[Answer, float]:
        def left_out(why: str) -> tuple[Answer, float]:
            return Answer("skipped", "", f"inductor not run: {why}"), 0.0

        if compiler() is None:
            return left_out("no C++ compiler here")
        operations = int(facts.get("operations", 0))
        needed = INDUCTOR_S + INDUCTOR_OPERATION_S * operations + (0.0 if _has_header() else INDUCTOR_HEADER_S)
        if context.inductor_s < needed:
            left = f"{context.inductor_s:.0f} s are left for it in this batch"
            return left_out(f"{left}, and {operations} operations take about {needed:.0f} s")
        if facts.get("random"):
            return left_out("it draws random numbers, so a float64 reference draws others")
        begun = time.monotonic()
        until = begun + context.inductor_s
        found, how = _in_child(lambda: _inductor_stage(context, until), until)
        if kept_kernels.is_warm() and (found is None or found.cause == kept_kernels.DIFFERS_WARM):
            # What an earlier run left may be what differs, or what broke: only what is compiled anew is evidence.
            first = f"its process {how}" if found is None else found.text
            if until - time.monotonic() >= needed:
                found, how = _in_child(lambda: _anew(context, until), until)
                if found is not None:
                    found.evidence["inductor_repeated"] = first
            elif found is not None:
                found.text += ", and no time is left to compile it anew"
        used = time.monotonic() - begun
        if found is None:
            return Answer("skipped", "", f"inductor gave no result: its process {how}"), used
        return found, used


def _captured_stages(context: CheckContext) -> Answer:
    from gradproof_probe.compiling.stages import CapturedStages

    stages = CapturedStages(context)
    answer = stages.run()
    answer.evidence["facts"] = {"operations": stages.operations, "random": stages.random}
    return answer


def _inductor_stage(context: CheckContext, until: float) -> Answer:
    from gradproof_probe.compiling.inductor import inductor_stage

    # What finds out where a difference begins has to end, and to be written, before the child is stopped.
    return inductor_stage(context, time.monotonic() + 0.8 * (until - time.monotonic()))


def _anew(context: CheckContext, until: float) -> Answer:
    kept_kernels.leave_aside()
    return _inductor_stage(context, until)


def _unsettled(context: CheckContext, inductor: Answer) -> list[dict[str, Any]]:
    """What becomes of the suspicions that inductor settles where it did not run."""
    if not context.hypotheses:
        return []
    from gradproof_probe.compiling.suspected import settled_by_inductor, wire

    return wire(settled_by_inductor(context, inductor, None, None))


def _has_header() -> bool:
    """Whether inductor's header lies compiled where it looks, by an earlier target of this batch or lent to it."""
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    except ImportError:
        return False  # another torch, another place
    return any(Path(default_cache_dir()).glob("precompiled_headers/*.gch"))


def _in_child(work: Callable[[], Answer], deadline: float) -> tuple[Answer | None, str]:
    said: list[Answer] = []

    def speak(writer: LineWriter) -> None:
        from gradproof_probe.lines import plain

        writer.write(plain(work().to_wire()))

    def hear(line: bytes) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # submitted code runs in that child
            said[:] = [Answer.from_wire(json.loads(line))]

    end = watch(speak, deadline=lambda: deadline, on_line=hear)
    last = end.stderr_tail.strip().splitlines()[-1:] or [""]
    return (said[0] if said else None), f"{end.describe()} {last[0][:300]}".strip()
