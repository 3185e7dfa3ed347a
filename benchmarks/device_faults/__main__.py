"""`make device-faults`: four models on the simulated device with nine kinds of kernels, and what is said of each.

    python -m benchmarks.device_faults [--verbose]

The ratio is the worst tensor's error over that of the CPU (or of inputs moved by one unit). Ends with status 1 where
something is not named as it has to be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof_probe import simulated_device
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.devices.comparison import Comparison
from gradproof_probe.devices.device import Device, find_device

from benchmarks.device_faults import models
from benchmarks.device_faults.asking import context_of
from benchmarks.device_faults.kernels import VARIATIONS, Kernels, Variation

RESULTS = Path(__file__).parents[1] / "results" / "device-faults.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One model with one kind of kernels."""

    model: str
    kernels: str
    used: bool
    verdict: str
    cause: str | None
    ratio: float
    right: bool
    summary: str
    took_s: float


def compared(kind: type, inputs: str, variation: Variation, device: Device) -> Row:
    """`right` where the kernels were not used by the model, only if nothing is said."""
    context = context_of(kind, inputs, "sim")
    kernels = variation.make()
    begun = time.monotonic()
    with simulated_device.computing_under(kernels):
        result = Comparison(context, device).run()
    used = kernels.used if isinstance(kernels, Kernels) else True
    cause = None if result.diagnosis is None else result.diagnosis.cause
    wanted = (variation.verdict, variation.cause) if used else ("pass", None)
    right = (result.verdict, cause) == wanted
    if used and variation.operation:
        right = right and f"{variation.operation} in {variation.phase}" in result.summary
    ratio = _ratio(result)
    took = time.monotonic() - begun
    return Row(kind.__name__, variation.name, used, result.verdict, cause, ratio, right, result.summary, took)


def _ratio(result: CheckResult) -> float:
    tensors: Any = result.evidence.get("tensors") or [{}]
    return float(tensors[0].get("ratio", float("nan")))


def main() -> int:
    """Print the table; 0 if everything is named rightly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="what is said of each")
    verbose = parser.parse_args().verbose
    device = find_device("sim")
    assert isinstance(device, Device)
    rows = [compared(kind, inputs, variation, device) for variation in VARIATIONS for kind, inputs in models.MODELS]
    print("| kernels | " + " | ".join(kind.__name__ for kind, _ in models.MODELS) + " | said |")
    print("|---|" + "---|" * (len(models.MODELS) + 1))
    for variation in VARIATIONS:
        own = [row for row in rows if row.kernels == variation.name]
        cells = [_cell(row) for row in own]
        said = sorted({f"{row.verdict}, {row.cause}" if row.cause else row.verdict for row in own if row.used})
        print(f"| {variation.name} | " + " | ".join(cells) + f" | {'; '.join(said)} |")
    wrong = [row for row in rows if not row.right]
    for row in rows if verbose else wrong:
        print(f"{'right' if row.right else 'WRONG'}: {row.model}, {row.kernels} ({row.took_s:.2f} s): {row.summary}")
    seconds = sum(row.took_s for row in rows)
    print(f"{len(rows) - len(wrong)} of {len(rows)} named rightly; {seconds:.1f} s")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([{name: getattr(row, name) for name in Row.__slots__} for row in rows], indent=1))
    return 1 if wrong else 0


def _cell(row: Row) -> str:
    return "-" if not row.used else f"{row.ratio:.3g}" + ("" if row.right else " (!)")


if __name__ == "__main__":
    sys.exit(main())
