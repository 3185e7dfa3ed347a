"""Does the target compute the same on the device as on the CPU? The CPU against itself is never called a comparison."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from gradproof_probe import simulated_device
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation, Verdict
from gradproof_probe.equivalence.observation import Mode, Observation, observe, relative_error
from gradproof_probe.gradients.attribution import innermost
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.importing import describe_error

RUNS: Final = 3  # on the device: what they differ by among themselves is never held against it
# E(device) <= 6 max(E(cpu float32), E(inputs moved by one unit), 2^-24): healthy other kernels stay below 1.4 times,
# injected faults are 689 times and more (checks facts §4).
RATIO: Final = 6.0
HALF_UNIT: Final = 2.0**-24
EXPLAINED: Final = 3.0  # within this factor of the simulated TF32 run


class DeviceCompare(Check):
    name: ClassVar[str] = "device_compare"
    cost: ClassVar[float] = 8.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares outputs, gradients and buffers on the device with the CPU, against a float64 reference.",
        what_it_does=(
            "The target runs in float64 on the CPU (the reference), in its own precision on the CPU (the yardstick), "
            "once more with inputs moved by one unit in the last place (so that ill-conditioned code is not blamed), "
            "and three times on the device, always with the same seeds and the same random incoming gradient. If it "
            "draws random numbers, it is compared in eval mode, since devices draw others."
        ),
        how_it_decides=(
            "Per tensor, the device may be 6 times as far from the reference as the larger of the yardstick's error, "
            "the moved inputs' error and 2^-24. Beyond that it runs again with TF32 off: if the difference vanishes, "
            "the result is `pass` with TF32 named as the explanation. A difference below the spread of the device's "
            "own runs is `inconclusive`. An error that is raised on the device alone, at a submitted line, is `fail`: "
            "mostly a tensor that stayed on the CPU. Without a device it is `skipped`; a run in which nothing was "
            "seen on the device is `inconclusive`."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        device, label, why_not = _device(context.device)
        if device is None:
            return CheckResult("skipped", why_not, device=label)
        try:
            return _Comparison(context, device, label).run()
        finally:
            gc.collect()


def _device(asked: str) -> tuple[str | None, str, str]:
    """(torch's name, the name in reports, why there is none)."""
    if asked == "cpu":
        return None, "cpu", "this run has no device to compare the CPU with"
    if asked == "sim":
        try:
            simulated_device.install()
        except RuntimeError as error:
            return None, "simulated", str(error)
        return simulated_device.DEVICE, "simulated", ""
    if not torch.cuda.is_available():
        return None, "cuda", "no CUDA device is visible to this process"
    return "cuda", "cuda", ""


@dataclass(slots=True)
class _Verdict:
    ratio: float
    name: str
    of_device: float
    of_cpu: float
    allowed: float


class _Comparison:
    def __init__(self, context: CheckContext, device: str, label: str) -> None:
        self._context = context
        self._device = device
        self._label = label
        self._mode: Mode = "train"
        self._evidence: dict[str, Any] = {}

    def run(self) -> CheckResult:
        try:
            randomness = self._choose_mode()
            if randomness:
                return self._result(
                    "inconclusive", "random", f"it draws random numbers in eval mode too ({randomness})"
                )
            reference = self._observe(dtype=torch.float64)
            plain = self._observe()
            moved = self._observe(wrap=_moved_inputs)
        except Exception as error:
            return self._result("error", "cpu_raises", f"on the CPU it raises {describe_error(error)}")
        try:
            runs = [self._observe(device=self._device) for _ in range(RUNS)]
        except Exception as error:
            return self._raised(error)
        if not self._was_used(runs[0]):
            return self._result(
                "inconclusive", "device_not_used", f"none of the results is on {self._label}: nothing was compared"
            )
        self._evidence["runs"] = RUNS
        worst = self._worst(reference, plain, moved, runs[0])
        if worst is None:
            return self._result("inconclusive", "nothing_in_common", "there is no floating result to compare")
        self._evidence["worst"] = {
            "tensor": worst.name,
            "device_error": worst.of_device,
            "cpu_error": worst.of_cpu,
            "allowed": worst.allowed,
        }
        spread = max(
            (relative_error(run.values[worst.name], runs[0].values[worst.name], 0.0) for run in runs[1:]), default=0.0
        )
        self._evidence["spread"] = spread
        flips = self._discrete(plain, runs[0])
        if worst.of_device <= worst.allowed:
            if flips:
                return self._result(
                    "inconclusive",
                    "discrete",
                    f"{flips[0]} differs on {self._label}, while all floating results agree: a tie?",
                )
            return self._result(
                "pass",
                "equal",
                f"{self._label} is within {worst.ratio:.2f} times the CPU's own float32 error, at {worst.name}",
            )
        return self._beyond(reference, plain, moved, worst, spread)

    def _beyond(
        self, reference: Observation, plain: Observation, moved: Observation, worst: _Verdict, spread: float
    ) -> CheckResult:
        text = (
            f"on {self._label}, {worst.name} is off by {worst.of_device:.2e} (relative to float64), on the CPU by "
            f"{worst.of_cpu:.2e}; {worst.allowed:.2e} is allowed"
        )
        with _without_tf32():
            exact = self._worst(reference, plain, moved, self._observe(device=self._device))
        if exact is not None and exact.of_device <= exact.allowed:
            with _TF32Products():
                simulated = self._worst(reference, plain, moved, self._observe())
            expected = simulated.of_device if simulated is not None else 0.0
            self._evidence["simulated_tf32_error"] = expected
            near = worst.of_device <= EXPLAINED * expected
            also = "as a simulated TF32 run predicts" if near else "though more than a simulated TF32 run predicts"
            return self._result("pass", "tf32", f"{text}. It vanishes with TF32 off, {also}", explained=True)
        if spread >= worst.of_device:
            return self._result("inconclusive", "nondeterministic", f"{text}, but its own runs differ by {spread:.2e}")
        return self._result("fail", "device_differs", text)

    def _observe(self, **options: Any) -> Observation:
        return observe(
            self._context.resolved, self._context.recipe, seed=self._context.seed, mode=self._mode, **options
        )

    def _choose_mode(self) -> str:
        """Eval where train draws random numbers; the operations that draw if eval does as well."""
        for mode in ("train", "eval"):
            self._mode = mode
            trace = PrecisionTrace()

            def traced(call: Callable[..., Any], trace: PrecisionTrace = trace) -> Callable[..., Any]:
                def run(*args: Any, **kwargs: Any) -> Any:
                    with trace:
                        return call(*args, **kwargs)

                return run

            self._observe(wrap=traced)
            if not trace.narrow.random:
                self._evidence["mode"] = mode
                return ""
        return ", ".join(sorted(trace.narrow.random))

    def _was_used(self, seen: Observation) -> bool:
        wanted = torch.device(self._device).type
        return any(
            value.device.type == wanted
            for name, value in seen.values.items()
            if not name.endswith(" after") and not name.startswith("buffer")
        )

    def _worst(
        self, reference: Observation, plain: Observation, moved: Observation, device: Observation
    ) -> _Verdict | None:
        worst: _Verdict | None = None
        largest = reference.gradient_norm()
        for name, expected in reference.values.items():
            if not (expected.is_floating_point() or expected.is_complex()) or name not in plain.values:
                continue
            if name not in device.values:
                return _Verdict(float("inf"), name, float("inf"), 0.0, 0.0)
            floor = largest if name.startswith("gradient") else 0.0
            of_device = relative_error(device.values[name], expected, floor)
            of_cpu = relative_error(plain.values[name], expected, floor)
            of_moved = relative_error(moved.values[name], expected, floor) if name in moved.values else 0.0
            yardstick = max(of_cpu, of_moved, HALF_UNIT)
            if worst is None or of_device / yardstick > worst.ratio:
                worst = _Verdict(of_device / yardstick, name, of_device, of_cpu, RATIO * yardstick)
        return worst

    def _discrete(self, plain: Observation, device: Observation) -> list[str]:
        return [
            name
            for name, value in plain.values.items()
            if not value.is_floating_point()
            and not value.is_complex()
            and name in device.values
            and not torch.equal(value, device.values[name].cpu())
        ]

    def _raised(self, error: BaseException) -> CheckResult:
        text = f"on {self._label} alone it raises {describe_error(error, 300)}"
        place = innermost(error.__traceback__, self._context.source_root)
        if "out of memory" in str(error):
            return self._result("error", "out_of_memory", text)
        if place is None or (isinstance(error, NotImplementedError) and self._label == "simulated"):
            return self._result("inconclusive", "device_raises", text)
        placement = "same device" in str(error)
        found = self._result("fail", "device_placement" if placement else "device_raises", text)
        return CheckResult(
            "fail",
            text,
            device=self._label,
            diagnosis=found.diagnosis,
            path=place.path,
            line=place.line,
            evidence=self._evidence,
        )

    def _result(self, verdict: Verdict, cause: str, text: str, *, explained: bool = False) -> CheckResult:
        target = self._context.resolved.target
        passed = verdict == "pass"
        if self._label == "cuda":
            self._evidence["device_name"] = torch.cuda.get_device_name()
        return CheckResult(
            verdict,
            text,
            device=self._label,
            diagnosis=Diagnosis(cause, text) if explained or not passed else None,
            path=None if passed else target.path,
            line=None if passed else target.line,
            evidence=self._evidence,
        )


def _moved_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call with every floating input moved by one unit in its last place, up or down at random."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        generator = torch.Generator().manual_seed(23)
        sign = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int64).to(value.dtype) * 2 - 1
        return value * (1 + sign * torch.finfo(value.dtype).eps)

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*tree_map(move, args), **tree_map(move, kwargs))

    return run


class _TF32Products(TorchDispatchMode):
    """The CPU with the operands of its matrix products rounded as TF32 rounds them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in simulated_device.PRODUCTS:
            args = tree_map(simulated_device.as_tf32, args)
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_tf32() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    simulated = simulated_device.SETTINGS["allow_tf32"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    simulated_device.SETTINGS["allow_tf32"] = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
        simulated_device.SETTINGS["allow_tf32"] = simulated
