"""`make survey`: how far Gradproof gets, without configuration, on real packages.

    python -m benchmarks.survey [PACKAGE…]

Fetches the wheels by name, unpacks them, runs `gradproof check` on each, and prints how many targets were found and
run, why the others were not, the checks by verdict, and the time. The reports are kept as JSON under
`benchmarks/results/`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.packages import unpacked

DEFAULT = ["vit-pytorch", "entmax"]
RESULTS = Path(__file__).parent / "results"
GRADPROOF = Path(sys.executable).parent / "gradproof"


def check(place: Path) -> tuple[dict[str, Any], float]:
    """The report of one directory, and the seconds that it took."""
    start = time.monotonic()
    done = subprocess.run(
        [str(GRADPROOF), "check", str(place), "--format", "json"], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{place.name}: gradproof ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout), time.monotonic() - start


def row(name: str, report: dict[str, Any], seconds: float) -> str:
    """One line of the table."""
    summary = report["summary"]
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    for target in report["targets"]:
        for result in target["checks"]:
            verdicts[result["check"]][result["verdict"]] += 1
    checks = "; ".join(
        f"{check}: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}"
        for check, counts in sorted(verdicts.items())
    )
    targets = summary["targets"]
    findings = ", ".join(f"{count} {severity}" for severity, count in sorted(summary["findings"].items())) or "none"
    return (
        f"{name}: {report['snapshot']['files']} files, {report['snapshot']['lines']} lines, {seconds:.0f} s\n"
        f"  targets {targets['run']} of {targets['found']} run ({targets['run'] / max(1, targets['found']):.0%}); "
        f"not run: {targets['not_run'] or 'none'}\n"
        f"  {checks}\n"
        f"  findings: {findings}"
    )


def main(names: list[str]) -> int:
    """Survey these packages; returns the exit code."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with unpacked(names) as places:
        for name, place in places.items():
            report, seconds = check(place)
            (RESULTS / f"survey-{name}.json").write_text(json.dumps(report, indent=1))
            print(row(name, report, seconds), flush=True)
            for target in report["targets"]:
                for result in target["checks"]:
                    if result["verdict"] == "fail":
                        print(f"  FAIL {target['name']} {result['check']}: {result['summary']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or DEFAULT))
