"""`make bench-gradient`: our gradient check against `torch.autograd.gradcheck`, on right and wrong Functions.

    python -m benchmarks.gradient [--quick] [--jobs N] [--kinds …] [--functions …] [--markdown]
    python -m benchmarks.gradient --ours [--kinds …] [--functions …]     # ours alone: misses, false alarms by name
    python -m benchmarks.gradient --held-out PATH_OR_MODULE              # further kinds, of the same interface

Detection by kind, false alarms by regime, diagnosis, time by size, peak memory. The corpus is `benchmarks/mutants`;
docs/benchmark-gradients.md says how it is built. One thread; figures go to benchmarks/results/gradient.json.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import platform
import sys
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.mutants import VERSION, Mutant, Right, mutants, rights
from benchmarks.mutants.checkers import CHECKS, answer
from benchmarks.mutants.corpus import wrong
from benchmarks.mutants.measuring import memory, times
from benchmarks.mutants.rewriting import forget
from benchmarks.mutants.summary import document, markdown, misses, table

RESULTS = Path(__file__).parent / "results"
SMALL, MEDIUM = 30, 1000
SEEDS = 2  # draws for each regime: 107 Functions in 8 regimes on average
# What is too slow to ask about every mutant, and every how many-th it is asked about.
SHARES = {("slow", MEDIUM): 16, ("max", SMALL): 6}
LEFT_OUT = {("max", MEDIUM)}  # 6 s and more a mutant


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", action="store_true", help="ours alone, misses and false alarms by name")
    parser.add_argument("--quick", action="store_true", help="every tenth mutant, one draw a regime")
    parser.add_argument("--every", type=int, default=1, help="only every so-many-th mutant")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="draws for each regime of the right Functions")
    parser.add_argument("--sizes", type=_numbers, default=[SMALL, MEDIUM], help="elements, comma between")
    parser.add_argument("--kinds", type=_words, default=[], help="parts of names of kinds, comma between; `right` too")
    parser.add_argument("--functions", type=_words, default=[], help="parts of names of Functions, comma between")
    parser.add_argument("--jobs", type=int, default=1, help="processes for detection; times are taken in one")
    parser.add_argument("--held-out", help="a file or module with `mutants(right)` in place of the usual kinds")
    parser.add_argument("--no-times", action="store_true", help="leave out time and memory")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the documentation page")
    return parser


def _words(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


class Questions:
    """What is asked of one right Function and its mutants; every answer is a record."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._checks = ["gradproof"] if asked.ours else list(CHECKS)
        self._source = _module(asked.held_out) if asked.held_out else None

    def records(self, number: int) -> list[dict[str, Any]]:
        """Of the Function with this number."""
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        right = rights()[number]
        return [*self._of_right(right), *self._of_mutants(right)]

    def _of_right(self, right: Right) -> Iterator[dict[str, Any]]:
        if self._source is not None or not self._wanted("right"):
            return
        for regime in right.regimes:
            for seed in range(self._asked.seeds):
                # Slow ones see every second draw small, quick ones every second draw at a thousand elements.
                elements = SMALL if seed % 2 == 0 else MEDIUM
                for check in self._checks:
                    share = SHARES.get((check, elements), 1)
                    if (check, elements) in LEFT_OUT or not _drawn(f"{right.name} {regime}", share):
                        continue
                    found = answer(check, right, right.function, right.inputs(elements, regime, seed))
                    yield {
                        "function": right.name, "kind": "right", "regime": regime, "seed": seed,
                        "check": check, "elements": elements, **_plain(found),
                    }  # fmt: skip

    def _of_mutants(self, right: Right) -> Iterator[dict[str, Any]]:
        for mutant in self._mutants(right):
            for elements in self._asked.sizes:
                for check in self._checks:
                    share = SHARES.get((check, elements), 1)
                    if (check, elements) in LEFT_OUT or not _drawn(mutant.name, share):
                        continue
                    found = answer(check, right, mutant.function, mutant.inputs(elements))
                    yield {
                        "function": right.name, "kind": mutant.kind, "slip": mutant.slip, "group": mutant.group,
                        "form": mutant.form, "expected": list(mutant.causes), "mutant": mutant.name,
                        "check": check, "elements": elements, **_plain(found),
                    }  # fmt: skip
            forget(mutant.function)

    def _mutants(self, right: Right) -> Iterable[Mutant]:
        if self._source is not None:
            found: Iterable[Mutant] = (item for item in self._source.mutants(right) if wrong(item))
        else:
            found = mutants(right, self._wanted)
        return (item for item in found if _drawn(item.name, self._asked.every))

    def _wanted(self, kind: str) -> bool:
        return not self._asked.kinds or any(part in kind for part in self._asked.kinds)


def _plain(found: Any) -> dict[str, Any]:
    return {
        "objected": found.objected, "verdict": found.verdict, "reason": found.reason, "causes": list(found.causes),
        "located": found.located, "seconds": found.seconds,
    }  # fmt: skip


def _drawn(name: str, share: int) -> bool:
    """One in `share`, by name: the same ones in every run."""
    return zlib.crc32(f"drawn {name}".encode()) % share == 0


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    spec = importlib.util.spec_from_file_location("gradproof_held_out", where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gradproof_held_out"] = module
    spec.loader.exec_module(module)
    return module


def _answers(questions: Questions, numbers: list[int], jobs: int) -> Iterator[list[dict[str, Any]]]:
    if jobs == 1:
        yield from (questions.records(number) for number in numbers)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(questions.records, numbers, chunksize=1)


def _gathered(questions: Questions, numbers: list[int], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """All records, in one order. Where ours is looked at by itself, what went wrong is said as it comes."""
    found: list[dict[str, Any]] = []
    for done, records in enumerate(_answers(questions, numbers, asked.jobs), 1):
        found += records
        if asked.ours or asked.held_out:
            print("".join(f"{line}\n" for line in misses(records)), end="", flush=True)
        elif sys.stderr.isatty():
            print(f"\r{done} of {len(numbers)} Functions", end="", file=sys.stderr, flush=True)
    return sorted(found, key=lambda record: (record["function"], record["kind"], record.get("slip", "")))


def main(words: list[str]) -> int:
    """Measure, print, and keep the figures as JSON; returns the exit code."""
    asked = arguments().parse_args(words)
    if asked.quick:
        asked.every, asked.seeds = max(asked.every, 10), 1
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.monotonic()
    numbers = [
        number
        for number, right in enumerate(rights())
        if not asked.functions or any(part in right.name.lower() for part in asked.functions)
    ]
    records = _gathered(Questions(asked), numbers, asked)
    found = document(records)
    found["environment"] = {
        "corpus": VERSION, "torch": torch.__version__, "python": platform.python_version(), "threads": 1,
        "functions": len(numbers), "every": asked.every, "held_out": asked.held_out,
        "shares": {f"{check} at {elements}": share for (check, elements), share in SHARES.items()},
    }  # fmt: skip
    if not asked.no_times and not asked.ours and not asked.held_out:
        found["times"] = times(numbers, quick=asked.quick)
        found["memory"] = memory(quick=asked.quick)
    found["environment"]["seconds"] = round(time.monotonic() - start)
    print(markdown(found) if asked.markdown else table(found))
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "gradient-held-out.json" if asked.held_out else "gradient-ours.json" if asked.ours else "gradient.json"
    (RESULTS / name).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
