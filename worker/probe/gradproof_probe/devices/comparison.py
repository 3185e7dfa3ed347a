"""The target on a device against the CPU: is it further from float64 than the CPU is, and if so, why?

A difference is explained before it is called a fault: products with fewer bits, an operation that is not repeatable, a
tie, a result that nothing could compute well. What is left is located: an operation, a layer, or code that asks where
it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from gradproof_probe.checks.base import CheckContext, CheckResult, Diagnosis, Verdict
from gradproof_probe.devices.choices import Choice, Choices, Flip, first_flip
from gradproof_probe.devices.device import Device
from gradproof_probe.devices.errors import Judged, judged
from gradproof_probe.devices.memory import is_out_of_memory, ran_out
from gradproof_probe.devices.operations import EXPLAINED, Divergence, Layers, Operations
from gradproof_probe.devices.paths import CallPath, Fork, fork
from gradproof_probe.devices.placement import faults_of
from gradproof_probe.devices.reduced import FORMATS, ReducedProducts
from gradproof_probe.devices.replay import Layer, first_layer
from gradproof_probe.devices.settings import full_precision, line_that_sets, preserved, switch_off, unusual
from gradproof_probe.devices.strays import StrayTensors
from gradproof_probe.equivalence.observation import Mode, Observation, observe, observe_built, relative_error
from gradproof_probe.equivalence.units import Units
from gradproof_probe.gradients.attribution import Place, innermost, relative
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.harness.recipe import build
from gradproof_probe.importing import describe_error
from gradproof_probe.seeding import state, unchanged

RUNS: Final = 5  # on the device: what they differ by among themselves is never held against it
_PERTURBATIONS: Final = (23, 29)


@dataclass(slots=True)
class _Seen:
    """What all runs gave."""

    reference: Observation
    plain: Observation
    moved: list[Observation]
    runs: list[Observation]

    def judged(self, device: Observation | None = None) -> list[Judged]:
        return judged(self.reference, self.plain, self.moved, device or self.runs[0])

    def spread(self, name: str) -> float:
        first = self.runs[0]
        floor = self.reference.gradient_norm() if name.startswith("gradient") else 0.0
        return max(
            (relative_error(o.values[name], first.values[name], floor) for o in self.runs[1:] if name in o.values),
            default=0.0,
        )


class Comparison:
    """One target, one device. `run` raises nothing for a fault of the submitted code."""

    def __init__(self, context: CheckContext, device: Device) -> None:
        self._context = context
        self._device = device
        self._mode: Mode = "train"
        self._evidence: dict[str, Any] = {}
        self._set_in_call: dict[str, Any] = {}

    def run(self) -> CheckResult:
        try:
            result = self._compared()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return self._out_of_memory(describe_error(error, 300))
        if result.verdict == "fail" and ran_out(self._device.kind):
            return self._out_of_memory(f"the code caught that and went on, and then {result.summary}")
        return result

    def _compared(self) -> CheckResult:
        set_at_import = unusual()
        if set_at_import:
            self._evidence["settings_at_import"] = set_at_import
        try:
            randomness = self._choose_mode()
            if randomness:
                return self._said("inconclusive", "random", f"it draws random numbers in eval mode too ({randomness})")
            plain = self._observe()
            moved = [self._observe(wrap=_moved_inputs(seed)) for seed in _PERTURBATIONS]
        except Exception as error:
            return self._said("error", "cpu_raises", f"on the CPU it raises {describe_error(error)}")
        try:
            reference = self._observe(dtype=torch.float64)
        except Exception as error:
            text = f"in float64, which would be the reference, it raises {describe_error(error)}"
            return self._said("inconclusive", "no_reference", text)
        try:
            operations = Operations(self._device.kind, self._context.source_root, Layers(), repeating=False)
            with operations:
                first = self._observe(device=self._device.name)
            runs = [first, *(self._observe(device=self._device.name) for _ in range(RUNS - 1))]
        except Exception as error:
            return self._raised(error)
        if self._set_in_call:
            self._evidence["settings_in_call"] = self._set_in_call
        self._evidence["operations"] = operations.counted
        if not operations.counted or not self._lies_there(first):
            text = f"none of the results is on {self._device.label}: nothing was compared"
            return self._said("inconclusive", "device_not_used", text)
        return self._judge(_Seen(reference, plain, moved, runs))

    def _judge(self, seen: _Seen) -> CheckResult:
        self._evidence["runs"] = RUNS
        everything = seen.judged()
        self._count(seen, seen.runs[0], everything, self._device.label)
        told = [one for one in everything if not one.blind]
        if not everything:
            return self._said("inconclusive", "nothing_in_common", "there is no floating result to compare")
        self._evidence["tensors"] = [one.to_evidence() for one in everything[:5]]
        if not told:
            text = (
                f"{everything[0].name} is off by {everything[0].of_cpu:.1e} on the CPU itself, and by "
                f"{everything[0].of_moved:.1e} where inputs move by one unit: nothing can be told from it"
            )
            return self._said("inconclusive", "ill_conditioned", text)
        worst = told[0]
        spread = seen.spread(worst.name)
        self._evidence["spread"] = max(seen.spread(one.name) for one in told)
        flips = _discrete(seen.plain, seen.runs[0])
        if worst.of_device <= worst.allowed:
            return self._within(worst, flips)
        return self._beyond(seen, worst, spread)

    def _count(self, seen: _Seen, device: Observation, found: list[Judged], compared: str) -> None:
        """How many units each number is off, whatever is said of it."""
        allowed = {one.name: one.allowed for one in found}
        units = Units(compared, "the CPU")
        units.add(seen.plain, device, seen.reference, lambda name: allowed.get(name, float("inf")))
        self._evidence["units_apart"] = [*self._evidence.get("units_apart", []), *units.to_evidence()]

    def _within(self, worst: Judged, flips: list[str]) -> CheckResult:
        label = self._device.label
        text = f"{label} is within {worst.ratio:.2f} times the CPU's own float32 error, at {worst.name}"
        if not flips:
            if self._evidence["spread"]:
                text += f"; its runs differ by {self._evidence['spread']:.1e} among themselves"
            return self._said("pass", "equal", text)
        flip = self._flip()
        if flip is not None and flip.is_tie:
            return self._said("pass", "tie", f"{text}; {flips[0]} differs by {_tie(flip)}", explained=True)
        if flip is not None and flip.is_wrong:
            return self._wrong_choice(flip, f"{flips[0]} differs on {label}")
        return self._said(
            "inconclusive", "discrete", f"{flips[0]} differs on {label}, while all floating results agree"
        )

    def _beyond(self, seen: _Seen, worst: Judged, spread: float) -> CheckResult:
        text = (
            f"on {self._device.label}, {worst.name} is off by {worst.of_device:.2e} (relative to float64), on the CPU "
            f"by {worst.of_cpu:.2e}; {worst.allowed:.2e} is allowed"
        )
        with full_precision():
            exact = self._observe(device=self._device.name, wrap=_switched_off)
            without = seen.judged(exact)
            if all(one.of_device <= one.allowed or one.blind for one in without):
                self._count(seen, exact, without, f"{self._device.label} with TF32 off")
                return self._reduced(seen, worst, text)
            if spread >= worst.of_device:
                return self._unstable(text, spread)
            try:
                flip = self._flip()
                if flip is not None and flip.is_tie:
                    return self._said("inconclusive", "tie", f"{text}. It begins with {_tie(flip)}", flip.place)
                return self._located(text, flip)
            except Exception as error:  # submitted code under dispatch modes: the difference stands without its place
                self._evidence["not_located"] = describe_error(error, 200)
                return self._said("fail", "device_differs", text)

    def _reduced(self, seen: _Seen, worst: Judged, text: str) -> CheckResult:
        """It vanishes with all bits: which format predicts what it was?"""
        cause, said = "reduced_precision", "though no simulated format predicts it"
        for name, rounding in FORMATS.items():
            with ReducedProducts(rounding):
                simulated = {one.name: one for one in seen.judged(self._observe())}
            expected = simulated[worst.name].of_device if worst.name in simulated else 0.0
            self._evidence[f"simulated_{name}_error"] = expected
            if expected / EXPLAINED <= worst.of_device <= EXPLAINED * expected:
                cause, said = ("tf32" if name == "TF32" else cause), f"as a simulated {name} run predicts"
                break
        place = self._setting_line()
        at = f" (switched on at line {place.line} of {place.path})" if place is not None else ""
        return self._said("pass", cause, f"{text}. It vanishes with TF32 off{at}, {said}", explained=True)

    def _setting_line(self) -> Place | None:
        if "settings_at_import" not in self._evidence and not self._set_in_call:
            return None
        return line_that_sets(self._context.source_root, self._context.resolved.target.path)

    def _unstable(self, text: str, spread: float) -> CheckResult:
        operations = self._operations(repeating=True)
        self._evidence["unstable_operations"] = sorted(operations.unstable)
        name, place = next(iter(operations.unstable.items()), ("", None))
        which = f" ({name})" if name else ""
        said = f"{text}, but its own runs differ by {spread:.2e}{which}: no device could be held to that"
        return self._said("inconclusive", "nondeterministic", said, place)

    def _located(self, text: str, flip: Flip | None) -> CheckResult:
        if time.monotonic() > self._context.deadline:
            return self._said("fail", "device_differs", f"{text}; there was no time to locate it")
        operations = self._operations(repeating=False)
        found = operations.divergences
        self._evidence["diverging_operations"] = [one.described() for one in found[:10]]
        if operations.unchecked:
            self._evidence["unchecked_operations"] = sorted(operations.unchecked)
        own = [one for one in found if one.format is None]
        if found and not own:
            return self._product(found[0], text)
        if own:
            first = own[0]
            self._evidence["layer"], self._evidence["phase"] = first.layer, first.phase
            said = f"{text}. It begins with {first.described()}: on the same inputs it is off by {first.of_device:.1e}"
            return self._said("fail", "kernel_fault", f"{said}, on the CPU by {first.of_cpu:.1e}", first.place)
        if flip is not None and flip.is_wrong:
            return self._wrong_choice(flip, text)
        return self._elsewhere(text, sorted(operations.unchecked))

    def _wrong_choice(self, flip: Flip, text: str) -> CheckResult:
        said = f"{flip.operation} prefers a value that is off by {flip.margin:.1e} ({flip.within:.1e} is rounding)"
        return self._said("fail", "kernel_fault", f"{text}. On the same values {said}", flip.place)

    def _product(self, first: Divergence, text: str) -> CheckResult:
        self._evidence["format"] = first.format
        said = f"{text}. {first.described()} is off by {first.of_device:.1e}, as operands in {first.format} predict; "
        return self._said(
            "inconclusive",
            "reduced_precision",
            f"{said}that can't be switched off here, so nothing finer can be told",
            first.place,
        )

    def _elsewhere(self, text: str, unchecked: list[str]) -> CheckResult:
        """No operation is off by itself: another way through the code, a kernel past the dispatcher, or rounding."""
        parting = self._fork()
        layer = first_layer(self._context, self._mode, self._device.name)
        if layer is not None:
            self._evidence["layer"], self._evidence["phase"] = layer.name, layer.phase
        inside = "" if layer is None else f" It begins in {layer.phase} of {layer.name} ({layer.kind})."
        if parting is not None and parting.by_value:
            said = f"{text}.{inside} Python code branches on a value that differs by rounding: {parting.text}"
            return self._said("inconclusive", "tie", said, parting.place)
        if parting is not None:
            said = f"{text}.{inside} The code asks where it runs: {parting.text}"
            return self._said("fail", "device_dependent_code", said, parting.place)
        if layer is not None:
            return self._said("fail", "kernel_fault", f"{text}.{inside} Its inputs were the same", self._line_of(layer))
        if unchecked:
            return self._said("fail", "device_differs", text)
        said = f"{text}, though every operation agrees on the same inputs: rounding is amplified on the way"
        return self._said("inconclusive", "ill_conditioned", said)

    def _line_of(self, layer: Layer) -> Place | None:
        """Where the class of the layer is written, if it is submitted."""
        built = build(self._context.resolved, self._context.recipe, seed=self._context.seed)
        if built.instance is None:
            return None
        kind = type(built.instance.get_submodule(layer.name))
        code = getattr(kind.forward, "__code__", None)
        if code is None:
            return None
        path = relative(code.co_filename, self._context.source_root)
        return None if path is None else Place(path, code.co_firstlineno)

    # -- runs

    def _observe(self, **options: Any) -> Observation:
        with preserved(self._set_in_call):
            return observe(
                self._context.resolved, self._context.recipe, seed=self._context.seed, mode=self._mode, **options
            )

    def _choose_mode(self) -> str:
        """Eval where train draws random numbers; the operations that may draw if eval does as well."""
        for mode in ("train", "eval"):
            self._mode = mode
            drew: list[bool] = []
            trace = PrecisionTrace()
            self._observe(wrap=_watched(trace, drew))
            if not any(drew):
                self._evidence["mode"] = mode
                return ""
        return ", ".join(sorted(trace.narrow.random)) or "of Python's or NumPy's generator"

    def _lies_there(self, seen: Observation) -> bool:
        return any(
            value.device.type == self._device.kind
            for name, value in seen.values.items()
            if not name.endswith(" after") and not name.startswith("buffer")
        )

    def _operations(self, *, repeating: bool) -> Operations:
        layers = Layers()
        operations = Operations(
            self._device.kind, self._context.source_root, layers, repeating=repeating, checking=True
        )

        def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
            return layers.wrap(_switched_off(call))

        with operations:
            self._observe(device=self._device.name, wrap=wrap)
        return operations

    def _flip(self) -> Flip | None:
        def chosen(**options: Any) -> list[Choice]:
            choices = Choices(self._context.source_root)
            with choices:
                self._observe(**options)
            return choices.made

        return first_flip(
            chosen(dtype=torch.float64),
            chosen(),
            chosen(wrap=_moved_inputs(_PERTURBATIONS[0])),
            chosen(device=self._device.name),
        )

    def _fork(self) -> Fork | None:
        own, other = CallPath(self._context.source_root), CallPath(self._context.source_root)
        self._observe(wrap=own.wrap)
        self._observe(wrap=other.wrap, device=self._device.name)
        return fork(own.steps, other.steps)

    # -- results

    def _raised(self, error: BaseException) -> CheckResult:
        label = self._device.label
        text = f"on {label} alone it raises {describe_error(error, 300)}"
        place = innermost(error.__traceback__, self._context.source_root)
        if is_out_of_memory(error):
            return self._out_of_memory(text)
        fault = self._stray()
        if fault is not None:
            path_line = Place(fault.path, fault.line)
            return self._said("fail", fault.cause, f"{fault.text}. {text[0].upper()}{text[1:]}", path_line)
        if place is None or label == "simulated":
            return self._said("inconclusive", "device_raises", text, place)
        return self._said("fail", "device_raises", text, place)

    def _out_of_memory(self, text: str) -> CheckResult:
        """Another device, or smaller sizes, would have done: nothing is known about the code."""
        limit = self._context.device_memory
        allowed = f" (a check may take {limit / 2**30:.3g} GiB of it)" if limit else ""
        return self._said("error", "out_of_memory", f"the memory of the device does not suffice{allowed}: {text}")

    def _stray(self) -> Any:
        """What the call met on another device than its own, if that is a fault."""
        with preserved(self._set_in_call):
            built = build(self._context.resolved, self._context.recipe, seed=self._context.seed)
            given = [value for value in [*built.args, *built.kwargs.values()] if isinstance(value, torch.Generator)]
            strays = StrayTensors(self._device.name, self._context.source_root, given)
            try:
                with strays:
                    observe_built(built, seed=self._context.seed, mode=self._mode, device=self._device.name)
            except Exception as error:
                self._evidence["stopped"] = describe_error(error, 200)
            faults = faults_of(strays.meetings, built, self._context, self._device.name)
        self._evidence["places"] = [f"{fault.path}:{fault.line} {fault.cause}" for fault in faults]
        return faults[0] if faults else None

    def _said(
        self, verdict: Verdict, cause: str, text: str, place: Place | None = None, *, explained: bool = False
    ) -> CheckResult:
        target = self._context.resolved.target
        passed = verdict == "pass"
        self._evidence["device_name"] = self._device.described()
        return CheckResult(
            verdict,
            text,
            device=self._device.label,
            diagnosis=Diagnosis(cause, text) if explained or not passed else None,
            path=None if passed else (place.path if place is not None else target.path),
            line=None if passed else (place.line if place is not None else target.line),
            evidence=self._evidence,
        )


def _watched(trace: PrecisionTrace, drew: list[bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Notes in `drew` whether the call moves a generator: what may draw (attention with dropout 0) need not."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before = state()
            with trace:
                result = call(*args, **kwargs)
            drew.append(not unchanged(before))
            return result

        return run

    return wrap


def _discrete(plain: Observation, device: Observation) -> list[str]:
    """The names of the results that are no floating numbers and differ."""
    return [
        name
        for name, value in plain.values.items()
        if not value.is_floating_point()
        and not value.is_complex()
        and name in device.values
        and not torch.equal(value, device.values[name].cpu())
    ]


def _tie(flip: Flip) -> str:
    line = f" at line {flip.place.line}" if flip.place is not None else ""
    return (
        f"a tie in {flip.operation}{line}: the values differ by {flip.margin:.1e} of their size, and "
        f"{flip.within:.1e} is rounding"
    )


def _switched_off(call: Callable[..., Any]) -> Callable[..., Any]:
    """A constructor may have switched TF32 on again."""
    switch_off()
    return call


def _moved_inputs(seed: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same call with every floating input moved by one unit in its last place, up or down at random."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        generator = torch.Generator().manual_seed(seed)

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return value
            sign = torch.randint(0, 2, value.shape, generator=generator).to(value.dtype) * 2 - 1
            return value * (1 + sign * torch.finfo(value.dtype).eps)

        def run(*args: Any, **kwargs: Any) -> Any:
            return call(*tree_map(move, args), **tree_map(move, kwargs))

        return run

    return wrap
