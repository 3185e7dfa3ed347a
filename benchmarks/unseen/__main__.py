"""`make bench-unseen`: the gradient check on kinds of faults that it was not written for.

    python -m benchmarks.unseen a|b [--verbose] [--only KIND …] [--stock]

Every check runs in a child process of its own, is given the Function and ordinary inputs, and never the situation in
which the Function is wrong. `--stock` adds `gradcheck` and its fullest form. Writes `benchmarks/results/unseen-a.json`
(or `-b`) when all kinds ran. docs/benchmark-unseen.md says how to read the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from gradproof_probe import check_gradients
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from benchmarks.unseen import functions
from benchmarks.unseen.cases import Case
from benchmarks.unseen.children import LONGEST_S, in_child
from benchmarks.unseen.sets import SETS, cases_of

RESULTS = Path(__file__).parents[1] / "results"
Answer = dict[str, Any]
Row = dict[str, Any]


def ours(case: Case) -> Answer:
    report = check_gradients(case.function, case.ordinary())
    failures = [f"{failure.cause}: {failure.text}"[:400] for failure in report.failures]
    return {"verdict": str(report.verdict), "reason": report.reason[:300], "failures": failures}


def slow(case: Case) -> Answer:
    """`gradcheck` with its defaults."""
    return _stock([lambda inputs: gradcheck(case.function.apply, inputs)], case)


def fullest(case: Case) -> Answer:
    """`gradcheck`, `gradgradcheck` with non-contiguous gradients, and batched gradients."""
    apply = case.function.apply
    checks: list[Callable[..., Any]] = [
        lambda inputs: gradcheck(apply, inputs),
        lambda inputs: gradgradcheck(apply, inputs, gen_non_contig_grad_outputs=True),
        lambda inputs: gradcheck(apply, inputs, check_batched_grad=True),
    ]
    return _stock(checks, case)


def _stock(checks: Iterable[Callable[..., Any]], case: Case) -> Answer:
    """A check that can't run (no second order, no batching rule) isn't an objection."""
    inputs = case.ordinary()
    for check in checks:
        try:
            check(inputs)
        except GradcheckError as error:
            if "got:" not in str(error) or "batched" not in str(error).lower():
                return {"verdict": "fail", "reason": str(error)[:120]}
        except RuntimeError:
            continue
    return {"verdict": "pass", "reason": ""}


TOOLS: dict[str, Callable[[Case], Answer]] = {"gradproof": ours, "slow": slow, "max": fullest}


def timed(tool: str, case: Case) -> Answer:
    def question() -> Answer:
        start = time.perf_counter()
        answer = TOOLS[tool](case)
        return {**answer, "seconds": time.perf_counter() - start}

    answer: Answer | None = in_child(question)
    if answer is None:
        return {"verdict": "no answer", "reason": "killed, or out of time", "seconds": LONGEST_S}
    if "raised" in answer:
        return {"verdict": "raised", "reason": answer["raised"], "seconds": 0.0}
    return answer


def measure(label: str, tools: list[str], only: list[str] | None) -> list[Row]:
    chosen = cases_of(label)
    warm_up = next(case for case in chosen.all_right if case.function is functions.Tanh)
    for tool in tools:
        TOOLS[tool](warm_up)  # in this process: what is loaded lazily is loaded in every child
    rows = []
    for case in [*chosen.all_wrong, *chosen.all_right]:
        if only and case.kind not in only:
            continue
        row: Row = {"kind": case.kind, "name": case.name, "right": case in chosen.all_right}
        row |= {"indirect": case.indirect, **{tool: timed(tool, case) for tool in tools}}
        rows.append(row)
    return rows


def report(rows: list[Row], tools: list[str], *, verbose: bool) -> None:
    wrong = [row for row in rows if not row["right"]]
    right = [row for row in rows if row["right"]]
    groups = {kind: [row for row in wrong if row["kind"] == kind] for kind in dict.fromkeys(r["kind"] for r in wrong)}
    groups |= {"in all": wrong, "of these indirect": [row for row in wrong if row["indirect"]], "false alarms": right}
    print(f"{'kind':24}" + "".join(f"{tool:>20}" for tool in tools))
    for name, some in groups.items():
        print(f"{name:24}" + "".join(f"{_share(some, tool):>20}" for tool in tools))
    for tool in tools:
        seconds = [row[tool]["seconds"] for row in rows]
        verdicts = Counter(f"{'right' if row['right'] else 'wrong'} {row[tool]['verdict']}" for row in rows)
        print(
            f"{tool}: mean {1000 * statistics.mean(seconds):.0f} ms, "
            f"median {1000 * statistics.median(seconds):.0f} ms, "
            f"longest {1000 * max(seconds):.0f} ms; " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items()))
        )
    if verbose:
        for row in rows:
            _explain(row)


def _share(rows: list[Row], tool: str) -> str:
    if not rows:
        return "none asked"
    found = sum(row[tool]["verdict"] == "fail" for row in rows)
    return f"{found} of {len(rows)} ({100 * found / len(rows):.1f} %)"


def _explain(row: Row) -> None:
    answer = row["gradproof"]
    if row["right"]:
        word = {"pass": "right", "fail": "FALSE ALARM"}.get(answer["verdict"], "undecided")
    else:
        word = "found" if answer["verdict"] == "fail" else "MISSED"
    why = "; ".join(answer.get("failures", ())) or answer["reason"]
    print(f"{word:11} {row['kind']}.{row['name']}: {answer['verdict']}: {why}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen", description=__doc__)
    parser.add_argument("set", choices=list(SETS))
    parser.add_argument("--verbose", action="store_true", help="a line for every Function")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="these kinds only; nothing is written then")
    parser.add_argument("--stock", action="store_true", help="torch's own checks as well")
    asked = parser.parse_args(arguments)
    known = {case.kind for case in cases_of(asked.set).all_wrong}
    if asked.only and not known.issuperset(asked.only):
        parser.error(f"kinds of set {asked.set}: {', '.join(sorted(known))}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tools = list(TOOLS) if asked.stock else ["gradproof"]
    rows = measure(asked.set, tools, asked.only)
    report(rows, tools, verbose=asked.verbose)
    if not asked.only:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"unseen-{asked.set}.json").write_text(json.dumps(rows, indent=1))
    return int(any(row["right"] and row["gradproof"]["verdict"] == "fail" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
