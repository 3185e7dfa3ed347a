"""Does the target compute the same on the device as on the CPU? The CPU against itself is never called a comparison.

The comparison is in `devices.comparison`; what can be seen without a device in `devices.placement`.
"""

from __future__ import annotations

import gc
from typing import Any, ClassVar

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.devices.comparison import Comparison
from gradproof_probe.devices.device import NoDevice, find_device
from gradproof_probe.devices.placement import Placement, placement
from gradproof_probe.equivalence.units import TOLD


class DeviceCompare(Check):
    name: ClassVar[str] = "device_compare"
    cost: ClassVar[float] = 12.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares outputs, gradients and buffers on the device with the CPU, against a float64 reference.",
        what_it_does=(
            "The target runs in float64 on the CPU (the reference), in its own precision on the CPU (the yardstick), "
            "twice more with inputs moved by one unit in the last place (so that ill-conditioned code is not blamed), "
            "and five times on the device, always with the same seeds and the same random incoming gradient. If it "
            "draws random numbers, it is compared in eval mode, since devices draw others. Switches of TF32 and of "
            "matmul precision that the submitted code sets are noted and put back.\n\n"
            f"{TOLD}\n\n"
            "Without a device nothing is compared, but it is looked whether the target could be moved to one: on a "
            "simulated device, forward and backward, and with fake CUDA tensors, forward. Tensors that stay on the "
            "CPU are traced to where they were made."
        ),
        how_it_decides=(
            "Per tensor, the device may be 6 times as far from the reference as the larger of the yardstick's error, "
            "the moved inputs' error and 2^-24. What is beyond that is explained before it is called a fault. If it "
            "vanishes with TF32 off, the result is `pass`, and the format named that a simulated run predicts. "
            "`inconclusive` is a difference below the spread of the device's own runs (the operation that is not "
            "repeatable is named), one that begins with a tie in a sort, a maximum or a comparison, products in a "
            "reduced format that can't be switched off, and rounding that is amplified on the way. Otherwise every "
            "operation on the device is repeated on the CPU with the same inputs: the first that is off, in forward "
            "or backward, is `fail` as a `kernel_fault`, with its layer and line. Where each agrees, submodules are "
            "run alone, and the calls that the code makes are compared: `device_dependent_code` goes another way on "
            "the device.\n\n"
            "A tensor that lies on the CPU and meets one on the device is `fail`: `left_behind` is neither parameter "
            "nor buffer, `factory_without_device` was made in the call without `device=`, `hard_coded_device` has a "
            "device written into the line, `numpy_round_trip` went through NumPy, `generator_on_cpu` draws on the "
            "device from a generator of the CPU. A device that was chosen as an argument, CPU indices and tensors "
            "without dimensions are no faults, and in a file that speaks of no device, factories and NumPy are only "
            "noted. Without a device and without such a fault the result is `skipped`. A "
            "run in which nothing was seen on the device is `inconclusive`. Memory of the device that does not "
            "suffice is an `error`, also where the code catches that and goes on: it says nothing about the code."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        device = find_device(context.device, context.device_memory)
        if isinstance(device, NoDevice):
            return _placed(context, device)
        try:
            return Comparison(context, device).run()
        finally:
            gc.collect()


def _placed(context: CheckContext, missing: NoDevice) -> CheckResult:
    """What can be said without a device: never that it computes the same."""
    seen = placement(context)
    evidence: dict[str, Any] = {"looked": seen.looked, "stopped": seen.stopped}
    if context.device != "cpu":
        evidence["without_device"] = context.device  # it was asked for: another time there may be one
    if seen.noted:
        evidence["noted"] = [f"{fault.path}:{fault.line} {fault.cause}" for fault in seen.noted]
    if not seen.faults:
        return CheckResult("skipped", f"{missing.why}: {_remark(seen)}", device=missing.label, evidence=evidence)
    first = seen.faults[0]
    evidence["places"] = [f"{fault.path}:{fault.line} {fault.cause}" for fault in seen.faults]
    if len(seen.faults) > 1:
        evidence["also"] = [
            {"cause": other.cause, "text": other.text, "path": other.path, "line": other.line}
            for other in seen.faults[1:]
        ]
    return CheckResult(
        "fail",
        first.text,
        device="simulated",
        diagnosis=Diagnosis(first.cause, first.text, {"met": first.met}),
        path=first.path,
        line=first.line,
        evidence=evidence,
    )


def _remark(seen: Placement) -> str:
    if seen.noted:
        first = seen.noted[0]
        return f"only placement was looked at; nothing says that it is meant for a device, where {first.text}"
    if not seen.looked:
        return f"and placement could not be looked at ({'; '.join(seen.stopped)[:300]})"
    return "only placement was looked at, nothing wrong found"
