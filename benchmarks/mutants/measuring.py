"""How long one check of a right Function takes, by size, and how much memory it needs at most."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from typing import Any, Final

import torch

from benchmarks.mutants.checkers import answer
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


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def growth(check: str, name: str) -> dict[str, float]:
    """In this process: the peak after each size, less the peak before anything but the first backward was done."""
    torch.set_num_threads(1)
    right = next(right for right in rights() if right.name == name)
    answer("fast", right, right.function, right.inputs(8))
    before = _peak()
    grown: dict[str, float] = {}
    for elements in SIZES:
        if (check, elements) not in LEFT_OUT:
            answer(check, right, right.function, right.inputs(elements))
            children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            grown[str(elements)] = max(_peak(), children) - before
    return grown


if __name__ == "__main__":
    print(json.dumps(growth(*sys.argv[1:3])))
