"""How long one check of a right Function takes, by size, and how much memory it needs at most."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.mutants.checkers import CHECKS, answer, fullest_here
from benchmarks.mutants.corpus import rights

SIZES: Final = (30, 1000, 100_000)
# A dense Jacobian of 100,000 by 100,000 numbers is 80 GB; with second order 1,000 elements take seconds already.
LEFT_OUT: Final = {("slow", 100_000), ("max", 100_000)}
EVERY: Final = {("max", 1000): 27, ("slow", 1000): 2}  # of the Functions, where one check takes long
MEASURED: Final = ("LayerNorm", "Attention", "ConvolutionOfImage")  # for memory: a process for each, and each check


def times(numbers: list[int], *, quick: bool) -> dict[str, Any]:
    """Milliseconds for each check and size: mean and median over the right Functions, and how many there were."""
    found: dict[str, Any] = {}
    chosen = numbers[:: 10 if quick else 1]
    for check in ("gradproof", "slow", "fast", "max"):
        for elements in SIZES:
            if (check, elements) in LEFT_OUT:
                continue
            seconds = []
            for number in chosen[:: EVERY.get((check, elements), 1)]:
                right = rights()[number]
                if elements == SIZES[0]:
                    answer(check, right, right.function, right.inputs(elements))  # what is loaded lazily is loaded
                seconds.append(answer(check, right, right.function, right.inputs(elements)).seconds)
            found[f"{check} {elements}"] = {
                "mean_ms": 1000 * statistics.mean(seconds),
                "median_ms": 1000 * statistics.median(seconds),
                "functions": len(seconds),
            }
    return found


def memory(*, quick: bool) -> dict[str, Any]:
    """MiB that a process grew by while checking, the most among the measured Functions."""
    found: dict[str, Any] = {}
    for check in ("gradproof", "slow", "fast", "max"):
        for name in MEASURED[: 1 if quick else None]:
            command = [sys.executable, "-m", "benchmarks.mutants.measuring", check, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for elements, grown in json.loads(done.stdout).items():
                key = f"{check} {elements}"
                found[key] = max(found.get(key, 0.0), grown)
    return found


def _status(key: str) -> float:
    """MiB, of this process's memory as it is now: what getrusage says survives exec and so counts the parent."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return float(text.partition(f"{key}:")[2].split()[0]) / 1024


def growth(check: str, name: str) -> dict[str, float]:
    """In this process, the peak during one check over what was there before it, a size at a time."""
    torch.set_num_threads(1)
    right = next(right for right in rights() if right.name == name)
    asked = fullest_here if check == "max" else CHECKS[check]
    asked(right, right.function, right.inputs(8))  # what is loaded lazily is loaded
    grown: dict[str, float] = {}
    for elements in SIZES:
        if (check, elements) not in LEFT_OUT:
            inputs = right.inputs(elements)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
            before = _status("VmRSS")
            asked(right, right.function, inputs)
            grown[str(elements)] = _status("VmHWM") - before
    return grown


if __name__ == "__main__":
    print(json.dumps(growth(*sys.argv[1:3])))
