"""Does the target compute the same under torch.compile? Each stage in a child of its own, with its own limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.equivalence.observation import (
    UNIT,
    Mode,
    Observation,
    bitwise_differences,
    observe,
    relative_error,
)
from gradproof_probe.gradients.attribution import InPlaceWrites, Place, innermost, relative
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.harness.recipe import build
from gradproof_probe.importing import describe_error
from gradproof_probe.processes import LineWriter, watch
from gradproof_probe.trees import transform

# eager and aot_eager were bitwise equal to eager in 14 of 14 models (checks facts §3). What differs by less than this
# share is another order of the same float32 operations, not another computation.
ROUNDING: Final = 16 * UNIT
# What is more than that, and less than this, can be the same rounding where a result is ill-conditioned (a long chain
# of cosine transforms: 2e-6): eager itself then answers as much to inputs that are off by one unit.
ILL_CONDITIONED: Final = 1e-3
# Inductor against a float64 reference: healthy ratios 0.63 to 1.95, injected bugs 209 and more.
RATIO: Final = 6.0
# What inductor takes with its header at hand, two sandboxes on two cores: 6.8 s for 4 captured operations, 12 s for 20,
# over 25 s for 95 (g++ is started for every kernel). What would not come to its end is not begun.
INDUCTOR_S: Final = 5.0
INDUCTOR_OPERATION_S: Final = 0.35
INDUCTOR_HEADER_S: Final = 8.0  # compiling the header of all kernels, once with a fresh cache
CALLS: Final = 2  # a counter or a cache that compile bakes in shows at the second call
# What AOTAutograd is given is what Dynamo captured: where it agrees with plain eager execution, Dynamo does too, and
# tracing is nearly all that a stage costs (2 s of 2.5 for a transformer's layer).
WHOLE: Final = "aot_eager"
CAPTURED: Final = "eager"


def preload() -> None:
    """Import Dynamo and its backends in the parent, before any fork. Inductor only where a compiler exists."""
    import torch._dynamo
    import torch._dynamo.backends.debugging
    import torch._functorch.aot_autograd

    if compiler() is not None:
        import torch._inductor.compile_fx  # noqa: F401


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
            "not used up, `inductor` runs as well, with `fallback_random`, and is compared with a float64 reference."
        ),
        how_it_decides=(
            "`aot_eager` has to give the same bits as plain eager execution (14 of 14 measured "
            "models do; differences below 16 float32 units are taken for rounding and noted). `inductor` has to "
            "be at most 6 times as far from the float64 reference as eager is, or 2^-23 if that is more (healthy "
            "models: 0.63 to 1.95 times; injected faults: 209 times and more). Nothing captured, or a gradient "
            "that is zero throughout, is `inconclusive`, never `pass`. Where gradients alone differ and agree "
            "once buffers are put back before backward, the line is named that updates a buffer in place: "
            "compiled code reads it again. An exception that compiled code alone raises is `fail` when it comes "
            "from a line of the submitted source, and `inconclusive` when Dynamo says that it doesn't support "
            "something. The verdict comes from the `aot_eager` stage alone where inductor did not run, and the "
            "summary says so."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        begun = time.monotonic()
        evidence: dict[str, Any] = {}
        captured, how = _in_child(lambda: _captured_stages(context), context.deadline)
        if captured is None:
            return _result(context, "error", "crashed", f"running it compiled {how}", evidence)
        evidence |= captured.get("evidence", {})
        if captured["verdict"] != "pass":
            return _result(
                context, captured["verdict"], captured["cause"], captured["text"], evidence, _place(captured)
            )
        inductor, used = self._inductor(context, captured)
        evidence["inductor"] = inductor.get("text")
        evidence["inductor_s"] = round(used, 2)
        evidence["took_s"] = round(time.monotonic() - begun, 2)
        if inductor["verdict"] == "fail":
            return _result(context, "fail", inductor["cause"], inductor["text"], evidence, _place(inductor))
        return _result(context, "pass", "equal", f"{captured['text']}; {inductor['text']}", evidence)

    def _inductor(self, context: CheckContext, captured: dict[str, Any]) -> tuple[dict[str, Any], float]:
        def left_out(why: str) -> tuple[dict[str, Any], float]:
            return {"verdict": "skipped", "text": f"inductor not run: {why}"}, 0.0

        if compiler() is None:
            return left_out("no C++ compiler here")
        operations = int(captured["evidence"].get(f"{WHOLE} train", {}).get("operations", 0))
        needed = INDUCTOR_S + INDUCTOR_OPERATION_S * operations + (0.0 if _has_header() else INDUCTOR_HEADER_S)
        if context.inductor_s < needed:
            left = f"{context.inductor_s:.0f} s are left for it in this batch"
            return left_out(f"{left}, and {operations} operations take about {needed:.0f} s")
        if captured.get("random"):
            return left_out("it draws random numbers, so a float64 reference draws others")
        begun = time.monotonic()
        found, how = _in_child(lambda: _inductor_stage(context), begun + context.inductor_s)
        used = time.monotonic() - begun
        if found is None:
            return {"verdict": "skipped", "text": f"inductor gave no result: its process {how}"}, used
        return found, used


def _has_header() -> bool:
    """Whether inductor's header lies compiled where it looks, by an earlier target of this batch or lent to it."""
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    except ImportError:
        return False  # another torch, another place
    return any(Path(default_cache_dir()).glob("precompiled_headers/*.gch"))


def _in_child(work: Callable[[], dict[str, Any]], deadline: float) -> tuple[dict[str, Any] | None, str]:
    said: list[dict[str, Any]] = []

    def speak(writer: LineWriter) -> None:
        from gradproof_probe.lines import plain

        writer.write(plain(work()))

    def hear(line: bytes) -> None:
        value = json.loads(line)
        if isinstance(value, dict):
            said[:] = [value]

    end = watch(speak, deadline=lambda: deadline, on_line=hear)
    last = end.stderr_tail.strip().splitlines()[-1:] or [""]
    return (said[0] if said else None), f"{end.describe()} {last[0][:300]}".strip()


# -- Dynamo and AOTAutograd


@dataclass(slots=True)
class _Counter:
    """Hands graphs to a backend and counts them."""

    backend: Any
    graphs: int = 0
    operations: int = 0

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        self.operations += sum(
            1 for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")
        )
        return self.backend(graph, inputs, **options)


def _captured_stages(context: CheckContext) -> dict[str, Any]:
    evidence: dict[str, Any] = {}
    modes: tuple[Mode, ...] = ("train", "eval") if context.resolved.target.kind == "module" else ("train",)
    worst = 0.0
    trace = PrecisionTrace()

    def traced(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with trace:  # only the call: inputs and incoming gradients are drawn at random as well
                return call(*args, **kwargs)

        return run

    compared: list[Mode] = []
    first: Observation | None = None
    for mode in modes:
        try:
            plain = _observed(context, mode, wrap=traced)
        except Exception as error:
            if mode == "eval":
                evidence["eval"] = f"not compared: plain eager raises {describe_error(error, 200)}"
                continue
            return _said("error", "forward_raises", f"plain eager raises {describe_error(error)}", evidence)
        if first is not None and not bitwise_differences(first, plain):
            evidence["eval"] = "not compiled: it gives the same bits as train mode"
            continue
        first = first or plain
        answer = _stages(context, mode, plain, evidence)
        if isinstance(answer, dict):
            # Only a difference needs to know whether eager gives the same twice: what agrees has shown it.
            if answer["verdict"] == "fail" and bitwise_differences(plain, _observed(context, mode)):
                return _said(
                    "inconclusive", "nondeterministic", "two plain eager runs with the same seeds differ", evidence
                )
            return answer
        worst = max(worst, answer)
        compared.append(mode)
    said = "bitwise equal" if worst == 0 else f"equal to rounding ({worst:.1e})"
    breaks = evidence.get("graph_breaks")
    text = f"Dynamo and aot_eager {said} to eager in {' and '.join(compared)} mode"
    if breaks:
        text += f", with {len(breaks)} graph break{'s' if len(breaks) > 1 else ''}"
    return {**_said("pass", "equal", text, evidence), "random": sorted(trace.narrow.random)}


def _stages(context: CheckContext, mode: Mode, plain: Observation, evidence: dict[str, Any]) -> dict[str, Any] | float:
    """The largest relative difference that is rounding, or the answer that ends the check."""
    whole = _stage(context, mode, WHOLE, plain, evidence)
    if isinstance(whole, float) or whole["cause"] in ("nothing_compiled", "vacuous"):
        return whole
    own: dict[str, Any] = {}
    captured = _stage(context, mode, CAPTURED, plain, own)
    if isinstance(captured, float):
        return whole
    evidence.update(own)
    return {**captured, "evidence": evidence}


def _observed(context: CheckContext, mode: Mode, *, calls: int = CALLS, **options: Any) -> Observation:
    return observe(context.resolved, context.recipe, seed=context.seed, mode=mode, calls=calls, **options)


def _stage(
    context: CheckContext, mode: Mode, stage: str, plain: Observation, evidence: dict[str, Any]
) -> dict[str, Any] | float:
    """The largest relative difference that is rounding, or the answer that ends the check."""
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    counter = _Counter(lookup_backend(stage))
    try:
        compiled = _observed(context, mode, wrap=lambda call: torch.compile(_plain_function(call), backend=counter))
    except Exception as error:
        return _compile_raised(context, stage, mode, error, evidence)
    evidence[f"{stage} {mode}"] = {"graphs": counter.graphs, "operations": counter.operations}
    if stage == WHOLE and counters["graph_break"] and "graph_breaks" not in evidence:
        evidence["graph_breaks"] = _graph_breaks(context, mode, dict(counters["graph_break"]))
    if counter.graphs == 0:
        return _said("inconclusive", "nothing_compiled", "Dynamo captured no graph: nothing ran compiled", evidence)
    gradients = plain.gradients()
    if gradients and not any(bool(gradient.any()) for gradient in gradients):
        return _said("inconclusive", "vacuous", "every gradient is zero: nothing was compared in backward", evidence)
    differences = bitwise_differences(plain, compiled)
    if not differences:
        return 0.0
    first = differences[0]
    if first.relative <= ROUNDING:
        evidence.setdefault("rounding", []).append(f"{stage} {mode}: {first.text}")
        return first.relative
    evidence["differences"] = [item.text for item in differences[:10]]
    if plain.python_random or compiled.python_random:
        return _said(
            "inconclusive",
            "python_random",
            f"under {stage} {first.text}; it draws from Python's random, which Dynamo keeps a generator of its own for",
            evidence,
        )
    if first.relative <= ILL_CONDITIONED and _is_ill_conditioned(context, mode, plain, compiled):
        told = f"{stage} {mode}: {first.text}, as eager does where inputs are off by one unit"
        evidence.setdefault("rounding", []).append(told)
        return first.relative
    text = f"under backend {stage} in {mode} mode, {first.text}"
    if all("gradient" in item.name for item in differences):
        reread = _reread_buffer(context, mode, stage, plain)
        if reread is not None:
            return {**_said("fail", "buffer_read_after_update", f"{text}: {reread[0]}", evidence), **reread[1]}
    return _said("fail", "compile_differs", text, evidence)


def _is_ill_conditioned(context: CheckContext, mode: Mode, plain: Observation, compiled: Observation) -> bool:
    """Whether eager changes about as much where its inputs are moved by one unit of float32, up or down."""
    try:
        moved = _observed(context, mode, wrap=_with_moved_inputs)
    except Exception:
        return False
    largest = plain.gradient_norm()

    def distance(other: Observation, name: str) -> float:
        value, expected = other.values[name], plain.values[name]
        return relative_error(value, expected, largest if "gradient" in name else 0.0)

    floating = [name for name, value in plain.values.items() if value.is_floating_point()]
    return all(
        distance(compiled, name) <= RATIO * max(distance(moved, name), UNIT)
        for name in floating
        if "input" not in name or "gradient" in name
    )


def _with_moved_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        generator = torch.Generator().manual_seed(0)  # the global one draws what the call draws

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            ways = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
            return tensor * (1 + UNIT * ways)

        return call(*transform(list(args), moved), **transform(kwargs, moved))

    return run


def _reread_buffer(
    context: CheckContext, mode: Mode, stage: str, plain: Observation
) -> tuple[str, dict[str, Any]] | None:
    """Whether compiled backward is right with the buffers as they were before forward: it reads them again.

    torch 2.13 reads a buffer that forward updates in place once more in backward instead of saving what it gave. What
    counts is the update in place: a module that assigns a new tensor to the name is compiled rightly.
    """
    from torch._dynamo.backends.registry import lookup_backend

    torch._dynamo.reset()
    try:
        rewound = _observed(
            context,
            mode,
            rewind=True,
            wrap=lambda call: torch.compile(_plain_function(call), backend=lookup_backend(stage)),
        )
    except Exception:
        return None
    if any("gradient" in item.name and item.relative > ROUNDING for item in bitwise_differences(plain, rewound)):
        return None
    writes = InPlaceWrites(context.source_root)
    built = build(context.resolved, context.recipe, seed=context.seed)
    module = built.instance
    if module is None:
        return None
    module.train(mode == "train")
    buffers = dict(module.named_buffers())
    with writes:
        built.call(*built.args, **built.kwargs)
    name, place = next(
        ((name, place) for name, item in buffers.items() if (place := writes.line_of(item)) is not None), ("", None)
    )
    text = (
        f"forward updates the buffer {name or 'that it uses'} in place, and compiled code reads it again in backward, "
        "after the update; assign a new tensor to the name instead"
    )
    return text, {} if place is None else {"path": place.path, "line": place.line}


def _plain_function(call: Any) -> Any:
    """Dynamo traces modules and Python functions; a Function's `apply` is a built-in method."""
    if isinstance(call, torch.nn.Module) or hasattr(call, "__code__"):
        return call

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run


_STACK: Final = re.compile(r'File "([^"]+)", line (\d+)')


def _graph_breaks(context: CheckContext, mode: Mode, counted: dict[str, int]) -> list[dict[str, Any]]:
    """First line of each reason with the submitted lines where it happened; Dynamo tells those on a second run."""
    places: list[tuple[str, str]] = []

    def explained(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            for item in torch._dynamo.explain(_plain_function(call))(*args, **kwargs).break_reasons:
                own = [
                    f"{path}:{frame.lineno}"
                    for frame in item.user_stack
                    if (path := relative(frame.filename, context.source_root)) is not None
                ]
                if own:
                    places.append((str(item.reason), own[-1]))
            return call(*args, **kwargs)

        return run

    with contextlib.suppress(Exception):  # an explanation that fails leaves the reasons without lines
        _observed(context, mode, calls=1, wrap=explained)
    found = []
    for reason, times in list(counted.items())[:10]:
        first = reason.strip().splitlines()[0][:300]
        lines = [place for text, place in places if text.strip().splitlines()[0][:300] == first]
        found.append({"reason": first, "times": times, "lines": list(dict.fromkeys(lines))[:5]})
    return found


def _compile_raised(
    context: CheckContext, stage: str, mode: Mode, error: BaseException, evidence: dict[str, Any]
) -> dict[str, Any]:
    """Dynamo's own limits say nothing about the code; an exception out of a submitted line does."""
    place = innermost(error.__traceback__, context.source_root) or _named_place(str(error), context.source_root)
    text = f"only under torch.compile (backend {stage}, {mode} mode) it raises {describe_error(error, 300)}"
    own_limit = type(error).__name__ in (
        "Unsupported",
        "InternalTorchDynamoError",
        "BackendCompilerFailed",
        "SkipFrame",
    ) or isinstance(error, NotImplementedError)
    if own_limit or place is None:
        return _said("inconclusive", "not_compilable", text, evidence)
    return {**_said("fail", "compile_raises", text, evidence), "path": place.path, "line": place.line}


def _named_place(message: str, source_root: Path) -> Place | None:
    own = [(relative(name, source_root), int(line)) for name, line in _STACK.findall(message)]
    known = [(path, line) for path, line in own if path is not None]
    return Place(*known[-1]) if known else None


# -- inductor


def _inductor_stage(context: CheckContext) -> dict[str, Any]:
    from torch._inductor import config

    config.fallback_random = True  # draws eager's random numbers (checks facts §3)
    config.compile_threads = 1
    mode: Mode = "train"
    plain = _observed(context, mode, calls=1)
    try:
        reference = _observed(context, mode, calls=1, dtype=torch.float64)
    except Exception as error:
        return {
            "verdict": "skipped",
            "text": f"inductor not judged: no float64 reference ({describe_error(error, 150)})",
        }
    torch._dynamo.reset()
    try:
        compiled = _observed(
            context, mode, calls=1, wrap=lambda call: torch.compile(_plain_function(call), backend="inductor")
        )
    except Exception as error:
        return {"verdict": "skipped", "text": f"inductor not judged: compiling raised {describe_error(error, 200)}"}
    worst, worst_name, worst_errors = 0.0, "", (0.0, 0.0)
    largest = reference.gradient_norm()
    for name, expected in reference.values.items():
        if not expected.is_floating_point() or name not in plain.values:
            continue
        if name not in compiled.values:
            return {"verdict": "fail", "cause": "inductor_differs", "text": f"inductor gives no {name}"}
        floor = largest if name.startswith("gradient") else 0.0
        of_plain = relative_error(plain.values[name], expected, floor)
        of_compiled = relative_error(compiled.values[name], expected, floor)
        unit = max(
            of_plain,
            float(torch.finfo(plain.values[name].dtype).eps) if plain.values[name].is_floating_point() else UNIT,
        )
        if of_compiled / unit > worst:
            worst, worst_name, worst_errors = of_compiled / unit, name, (of_plain, of_compiled)
    numbers = f"{worst:.2f} times eager's error, at {worst_name}" if worst_name else "no difference"
    if worst > RATIO:
        return {
            "verdict": "fail",
            "cause": "inductor_differs",
            "text": f"inductor is off by {worst_errors[1]:.2e} at {worst_name}, eager by {worst_errors[0]:.2e} "
            "(both against float64)",
        }
    return {"verdict": "pass", "text": f"inductor agrees ({numbers})"}


def _said(verdict: str, cause: str, text: str, evidence: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": verdict, "cause": cause, "text": text, "evidence": evidence}


def _place(said: dict[str, Any]) -> Place | None:
    return Place(str(said["path"]), int(said["line"])) if said.get("path") else None


def _result(
    context: CheckContext, verdict: Any, cause: str, text: str, evidence: dict[str, Any], place: Place | None = None
) -> CheckResult:
    target = context.resolved.target
    passed = verdict == "pass"
    return CheckResult(
        verdict=verdict,
        summary=text,
        diagnosis=None if passed else Diagnosis(cause, text),
        path=None if passed else (place.path if place else target.path),
        line=None if passed else (place.line if place else target.line),
        evidence=evidence,
    )
