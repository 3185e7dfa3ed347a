"""How far a tensor is from the float64 reference, and how far it may be: the CPU's own error is the yardstick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.equivalence.observation import Observation, relative_error

# E(device) <= 6 max(E(cpu float32), E(inputs moved by one unit), 2^-24): healthy other kernels stay below 1.4 times,
# injected faults are 689 times and more (checks facts §4).
RATIO: Final = 6.0
HALF_UNIT: Final = 2.0**-24
# Where the yardstick itself is off by more than this share, every answer would do.
BLIND: Final = 0.08


@dataclass(frozen=True, slots=True)
class Judged:
    """One tensor. `ratio` is the device's error over the yardstick, `allowed` what it may be."""

    name: str
    ratio: float
    of_device: float
    of_cpu: float
    of_moved: float
    allowed: float
    units: float

    @property
    def blind(self) -> bool:
        return self.allowed > RATIO * BLIND

    def to_evidence(self) -> dict[str, Any]:
        return {
            "tensor": self.name,
            "ratio": self.ratio,
            "device_error": self.of_device,
            "cpu_error": self.of_cpu,
            "moved_inputs_error": self.of_moved,
            "allowed": self.allowed,
            "units_p99": self.units,
        }


def judged(reference: Observation, plain: Observation, moved: list[Observation], device: Observation) -> list[Judged]:
    """Every floating tensor, the worst first."""
    found: list[Judged] = []
    largest = reference.gradient_norm()
    for name, expected in reference.values.items():
        if not (expected.is_floating_point() or expected.is_complex()) or name not in plain.values:
            continue
        if name not in device.values or device.values[name].shape != plain.values[name].shape:
            infinite = float("inf")
            found.append(Judged(name, infinite, infinite, 0.0, 0.0, 0.0, infinite))
            continue
        floor = largest if name.startswith("gradient") else 0.0
        of_device = relative_error(device.values[name], expected, floor)
        of_cpu = relative_error(plain.values[name], expected, floor)
        of_moved = max((relative_error(o.values[name], expected, floor) for o in moved if name in o.values), default=0)
        yardstick = max(of_cpu, of_moved, half_unit(plain.values[name].dtype))
        ratio = of_device / yardstick
        units = units_apart(device.values[name], expected, plain.values[name].dtype)
        found.append(Judged(name, ratio, of_device, of_cpu, of_moved, RATIO * yardstick, units))
    return sorted(found, key=lambda item: -item.ratio)


def half_unit(dtype: torch.dtype) -> float:
    """2^-24, or half a unit of a type that is coarser."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return HALF_UNIT
    return max(HALF_UNIT, float(torch.finfo(dtype).eps) / 2)


def units_apart(value: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> float:
    """The 99th percentile of the differences, in units in the last place of `dtype` at each expected number."""
    if not value.numel() or value.is_complex() or not dtype.is_floating_point:
        return 0.0
    a, b = value.detach().cpu().to(torch.float64).flatten(), expected.detach().cpu().to(torch.float64).flatten()
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    if not a.numel():
        return 0.0
    _, exponent = torch.frexp(b)
    unit = torch.ldexp(torch.full_like(b, torch.finfo(dtype).eps / 2), exponent)
    apart = ((a - b).abs() / unit.clamp(min=torch.finfo(dtype).tiny)).sort().values
    return float(apart[min(int(0.99 * apart.numel()), apart.numel() - 1)])
