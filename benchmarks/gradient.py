"""`make bench-gradient`: our gradient check against slow and fast `torch.autograd.gradcheck`, in one run.

    python -m benchmarks.gradient

For each kind of wrong gradient: how many of the mutants each check detects, at about 30 and about 1,000 elements; for
the right Functions: the false alarms; and the median time of one check. Slow gradcheck at 1,000 elements is measured
too, which takes most of the time of the run.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradproof_probe import check_gradients

from benchmarks.gradient_corpus import Mutant, mutants, right

RESULTS = Path(__file__).parent / "results"
SIZES = (30, 1000)


def slow(mutant: Mutant, elements: int) -> bool:
    """Whether slow gradcheck objects."""
    return not torch.autograd.gradcheck(mutant.function.apply, mutant.inputs(elements), raise_exception=False)


def fast(mutant: Mutant, elements: int) -> bool:
    """Whether fast gradcheck objects."""
    return not torch.autograd.gradcheck(
        mutant.function.apply, mutant.inputs(elements), raise_exception=False, fast_mode=True
    )


def ours(mutant: Mutant, elements: int) -> bool:
    """Whether Gradproof fails it."""
    return check_gradients(mutant.function, mutant.inputs(elements)).verdict == "fail"


CHECKS: dict[str, Callable[[Mutant, int], bool]] = {"slow": slow, "fast": fast, "gradproof": ours}


def main() -> int:
    """Measure, print, and keep the figures as JSON; returns the exit code."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    objections: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    times: dict[str, list[float]] = defaultdict(list)
    for elements in SIZES:
        for mutant in (*right(), *mutants()):
            for name, check in CHECKS.items():
                start = time.perf_counter()
                objected = check(mutant, elements)
                times[f"{name} {elements}"].append(time.perf_counter() - start)
                objections[mutant.kind][f"{name} {elements}"].append(objected)
    columns = [f"{name} {elements}" for elements in SIZES for name in CHECKS]
    print(f"{'objected to, in %':28s}" + "".join(f"{column:>16s}" for column in columns))
    for kind, counts in objections.items():
        cells = "".join(f"{100 * statistics.mean(counts[column]):16.0f}" for column in columns)
        print(f"{kind + ' (' + str(len(counts[columns[0]])) + ')':28s}{cells}")
    medians = {column: 1000 * statistics.median(times[column]) for column in columns}
    print(f"{'median ms':28s}" + "".join(f"{medians[column]:16.1f}" for column in columns))
    document: dict[str, Any] = {
        "objections": {
            kind: {column: sum(values) for column, values in counts.items()} for kind, counts in objections.items()
        },
        "median_ms": medians,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "gradient.json").write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
