"""Runs comparisons with kernels that are given, on the simulated device, and prints what is said: one JSON a line.

A program of its own, since the simulated device changes the process for good. `python -m tests.probe.judging_devices`
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradproof_probe import simulated_device
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.devices.comparison import Comparison
from gradproof_probe.devices.device import Device, find_device
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.device_faults.kernels import VARIATIONS, Kernels

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "probe"
_NOISE = torch.Generator().manual_seed(3)


def _last_of_equals() -> TorchDispatchMode:
    """A sort that is right, and puts equal values in the other order."""

    def sort(func: Any, x: torch.Tensor, dim: int = -1, descending: bool = False, **_rest: Any) -> Any:
        values, positions = torch.sort(x.flip(dim), dim=dim, descending=descending, stable=True)
        return values, x.shape[dim] - 1 - positions

    return Kernels({"sort": sort})


def _smallest() -> TorchDispatchMode:
    def argmax(_func: Any, x: torch.Tensor, *args: Any) -> Any:
        return torch.argmin(x, *args)

    return Kernels({"argmax": argmax})


def _noisy_products() -> TorchDispatchMode:
    """Other numbers at every run, far from rounding."""

    def noisy(func: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        return result * (1 + 1e-2 * torch.randn(result.shape, generator=_NOISE))

    return Kernels({"addmm": noisy, "mm": noisy})


KERNELS: dict[str, Callable[[], TorchDispatchMode]] = {
    **{variation.name: variation.make for variation in VARIATIONS},
    "another order of equals": _last_of_equals,
    "the smallest": _smallest,
    "noise": _noisy_products,
}
X = "torch.randn(6, 16)"
RUNS = (
    *(("Normed", X, variation.name) for variation in VARIATIONS),
    ("AsksWhere", X, "the CPU's own"),
    ("Ranked", X, "the CPU's own"),
    ("Ranked", X, "another order of equals"),
    ("RankedValues", X, "the smallest"),
    ("Normed", X, "noise"),
    ("Chaotic", "torch.arange(1, 40)", "1-ulp libm"),
    ("AmplifiedRounding", X, "1-ulp libm"),
    ("SwitchesTF32", X, "the CPU's own"),
    ("Recurrent", "torch.randn(3, 2, 16)", "the CPU's own"),
)


def main() -> None:
    """One line for each run."""
    sys.path.insert(0, str(FIXTURES))
    judged_devices = importlib.import_module("judged_devices")

    device = find_device("sim")
    assert isinstance(device, Device)
    for name, inputs, kernels in RUNS:
        target = Target(f"judged_devices:{name}", "module", "judged_devices.py", 1, "", "judged_devices", name)
        context = CheckContext(
            resolved=Resolved(target, judged_devices, getattr(judged_devices, name)),
            recipe=Recipe("declared", "A", f"{name}()", (inputs,), "test"),
            source_root=FIXTURES,
            device="sim",
            seed=0,
            deadline=time.monotonic() + 60,
        )
        with simulated_device.computing_under(KERNELS[kernels]()):
            result = Comparison(context, device).run().to_wire("device_compare", 0.0)
        switched = torch.backends.cuda.matmul.allow_tf32
        line = json.dumps({"run": f"{name} with {kernels}", "allow_tf32_after": switched, **result})
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
