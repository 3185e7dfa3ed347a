"""`make precision`: what the analyzer says about real packages, and a random sample of it to judge by reading.

    python -m benchmarks.precision [--wheels DIRECTORY] [--seed 1] [--count 100] [--context 6] [PACKAGE…]

Counts findings per rule and package over all their files, and prints a sample of the warnings and errors, drawn with
a fixed seed, each with the code around it. The judgements live in docs/precision.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

from analyzer.engine import analyze_files
from analyzer.findings import Finding, Severity
from analyzer.registry import all_rules
from benchmarks.packages import CORPUS, unpacked

RESULTS = Path(__file__).parent / "results"


def findings_of(directory: Path) -> list[Finding]:
    """Everything that reading one package brings."""
    paths = [path.relative_to(directory).as_posix() for path in directory.rglob("*.py") if path.is_file()]
    return list(analyze_files(directory, paths, processes=os.cpu_count() or 1).findings)


def counts_table(found: dict[str, list[Finding]]) -> str:
    """Markdown: a row for each rule that spoke, a column for each package; warnings and errors, then notes."""
    loud: Counter[tuple[str, str]] = Counter()
    notes: Counter[str] = Counter()
    for package, findings in found.items():
        for finding in findings:
            if finding.severity is Severity.NOTE:
                notes[finding.rule] += 1
            else:
                loud[finding.rule, package] += 1
    lines = [f"| rule | {' | '.join(found)} | sum | notes |", "|---" * (len(found) + 3) + "|"]
    for rule in all_rules():
        row = [loud[rule.id, package] for package in found]
        if sum(row) or notes[rule.id]:
            cells = " | ".join(str(count) if count else "" for count in row)
            lines.append(f"| {rule.id} {rule.name} | {cells} | {sum(row)} | {notes[rule.id]} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Count, draw and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=CORPUS)
    parser.add_argument("--wheels", type=Path, help="a directory with the wheels, instead of fetching them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--context", type=int, default=6, help="lines shown before and after each finding")
    asked = parser.parse_args(arguments)
    with unpacked(asked.packages, asked.wheels) as places:
        found = {name: findings_of(place) for name, place in places.items()}
        loud = [
            (name, finding)
            for name, findings in found.items()
            for finding in findings
            if finding.severity is not Severity.NOTE
        ]
        sample = random.Random(asked.seed).sample(loud, min(asked.count, len(loud)))
        sample.sort(key=lambda item: (item[1].rule, item[1].region))
        print(counts_table(found))
        print(f"\n{len(loud)} warnings and errors; {len(sample)} drawn with seed {asked.seed}\n")
        for number, (name, finding) in enumerate(sample, 1):
            _show(number, places[name], finding, asked.context)
    RESULTS.mkdir(parents=True, exist_ok=True)
    drawn = [
        {
            "rule": finding.rule,
            "place": f"{finding.region.path}:{finding.region.start_line}",
            "message": finding.message,
        }
        for _, finding in sample
    ]
    (RESULTS / "precision.json").write_text(json.dumps({"seed": asked.seed, "drawn": drawn}, indent=1))
    return 0


def _show(number: int, place: Path, finding: Finding, context: int) -> None:
    region = finding.region
    print(f"### {number}. {finding.rule} {finding.severity} {region.path}:{region.start_line}\n{finding.message}")
    lines = (place / region.path).read_text(encoding="utf-8", errors="replace").split("\n")
    for at in range(max(1, region.start_line - context), min(len(lines), region.end_line + context) + 1):
        print(f"{'>' if region.start_line <= at <= region.end_line else ' '} {at:5d} {lines[at - 1][:160]}")
    for related in finding.related:
        print(f"    {related.region.start_line}: {related.message}")
    print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
