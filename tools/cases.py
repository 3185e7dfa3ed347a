"""`make cases`: score Gradproof on the faulty/fixed pairs and innocent look-alikes of `tests/cases`.

    python -m tools.cases [--static] [--limit N] [--kind KIND] [--only ID…] [DIRECTORY]

Each file is checked alone, in an empty directory, under a neutral name, with no configuration. A faulty file is
*located* when a warning, an error or a failing check points within one line of a faulty line, and *detected* when it
is located or any check fails. A fixed file raises a false alarm when a warning or error points at the lines that
differ from the faulty file, or a check fails although its gradient is no design (`fixed_numeric.note`); an innocent
one when anything does. A fault is *flagged* when a rule speaks of its lines, whatever the severity it ends with, and
*confirmed* when execution confirmed a warning or error of its file. A file that could not be checked is *broken*, and
counts as silent. With `--static` nothing is run, and only cases with an `expected_static` count.

Prints a table by kind, each miss with what was said instead, and the seconds; writes everything as JSON under
`benchmarks/results/`. `--kind innocent` takes the innocent files alone.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GRADPROOF = Path(sys.executable).parent / "gradproof"
RESULTS = ROOT / "benchmarks" / "results"
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Alarms:
    """What a report holds against a file: line ranges of warnings and errors, lines of failing checks.

    `noted` are the places that rules speak of at all; `told` sums up what became of each finding, check and target.
    """

    findings: tuple[tuple[int, int, str], ...] = ()
    failures: tuple[tuple[int, str], ...] = ()
    noted: tuple[tuple[int, int, str], ...] = ()
    confirmed: bool = False
    ran: bool = False
    told: tuple[str, ...] = ()
    seconds: float = 0.0
    broken: str = ""

    def near(self, lines: set[int]) -> bool:
        """Whether any of them points within one line of one of these."""
        return _any_near(self.findings, lines) or any(abs(at - line) <= 1 for at, _ in self.failures for line in lines)

    def flagged(self, lines: set[int]) -> bool:
        """Whether a rule speaks of one of these lines."""
        return _any_near(self.noted, lines)

    def names(self) -> list[str]:
        """The rules and checks that spoke."""
        return sorted({rule for _, _, rule in self.findings} | {check for _, check in self.failures})


def _any_near(places: tuple[tuple[int, int, str], ...], lines: set[int]) -> bool:
    return any(start - 1 <= line <= end + 1 for start, end, _ in places for line in lines)


def alarms(source: Path, *, static: bool) -> Alarms:
    """Check one file alone."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(source, Path(directory) / "layers.py")
        command = [str(GRADPROOF), "check", directory, "--format", "json"]
        command += ["--static-only"] if static else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            report = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            return Alarms(broken=f"longer than {TIMEOUT_S} s", seconds=TIMEOUT_S)
        except ValueError:
            words = " ".join(done.stderr.split())[-300:]
            return Alarms(broken=f"exit {done.returncode}: {words}", seconds=time.monotonic() - begun)
    return read_alarms(report, time.monotonic() - begun)


def read_alarms(report: dict[str, Any], seconds: float = 0.0) -> Alarms:
    """What a report says."""
    serious = [finding for finding in report["findings"] if finding["severity"] in ("error", "warning")]
    return Alarms(
        findings=tuple((finding["start_line"], finding["end_line"], finding["rule"]) for finding in serious),
        failures=tuple(
            (check["line"] or 0, check["check"])
            for target in report["targets"]
            for check in target["checks"]
            if check["verdict"] == "fail"
        ),
        noted=tuple(
            (finding["start_line"], finding["end_line"], finding["rule"])
            for finding in report["findings"]
            if finding["rule"].startswith("GP")
        ),
        confirmed=any(finding["verdict"] == "confirmed" for finding in serious),
        ran=any(target["checks"] for target in report["targets"]),
        told=tuple(_told(report)),
        seconds=seconds,
    )


def _told(report: dict[str, Any]) -> Iterator[str]:
    for finding in report["findings"]:
        yield f"{finding['rule']} line {finding['start_line']} {finding['severity']} {finding['verdict']}"
    for target in report["targets"]:
        name = target["name"].rpartition(":")[2]
        if target["not_run_reason"]:
            yield f"{name} not run: {target['not_run_reason']}: {target['not_run_detail']}"[:200]
        elif target["checks"]:
            grade = (target["harness"] or {}).get("grade", "-")
            yield f"{name} ({grade}) {', '.join(check['check'] + ' ' + check['verdict'] for check in target['checks'])}"


def score_pair(entry: dict[str, Any], cases: Path, *, static: bool) -> dict[str, Any]:
    """One faulty file and its fixed one."""
    files = entry["files"]
    names = (files["faulty"], files["fixed"]) if isinstance(files, dict) else tuple(files)
    faulty, fixed = (cases / name for name in names)
    found = alarms(faulty, static=static)
    located = found.near(faulty_lines(entry))
    after = alarms(fixed, static=static)
    touched = touched_lines(faulty, fixed)
    by_design = bool((entry.get("fixed_numeric") or {}).get("note"))
    false_alarm = Alarms(after.findings).near(touched) or (bool(after.failures) and not by_design)
    return {
        "id": entry["id"],
        "kind": entry["kind"],
        "located": located,
        "detected": located or bool(found.failures),
        "flagged": found.flagged(faulty_lines(entry)),
        "confirmed": found.confirmed,
        "run": found.ran,
        "false_alarm": false_alarm,
        "said": found.names(),
        "told": found.told,
        "said_of_fixed": after.names(),
        "seconds": round(found.seconds + after.seconds, 2),
        "broken": found.broken or after.broken,
    }


def faulty_lines(entry: dict[str, Any]) -> set[int]:
    """Where the fault of a case is."""
    return {entry["faulty_line"], *entry.get("also_faulty_lines", [])}


def score_innocent(entry: dict[str, Any], cases: Path, *, static: bool) -> dict[str, Any]:
    """One file that is right."""
    found = alarms(cases / (entry.get("file") or entry["files"][0]), static=static)
    said = found.names()
    return {
        "id": entry["id"],
        "kind": "innocent",
        "false_alarm": bool(said),
        "said_of_fixed": said,
        "seconds": round(found.seconds, 2),
        "broken": found.broken,
    }


def touched_lines(faulty: Path, fixed: Path) -> set[int]:
    """The lines of a fixed file that differ from the faulty one."""
    before, after = faulty.read_text().splitlines(), fixed.read_text().splitlines()
    blocks = difflib.SequenceMatcher(None, before, after).get_opcodes()
    return {
        line + 1 for tag, _, _, start, end in blocks if tag != "equal" for line in range(start, max(end, start + 1))
    }


def entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a manifest."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def main(arguments: list[str]) -> int:
    """Score and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "tests" / "cases")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--kind")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID")
    asked = parser.parse_args(arguments)
    pairs = [
        entry
        for entry in entries(asked.directory / "manifest.jsonl")
        if (not asked.static or entry["expected_static"] is not None)
        and asked.kind in (None, entry["kind"])
        and (not asked.only or entry["id"] in asked.only)
    ][: asked.limit]
    innocents = [
        entry
        for entry in entries(asked.directory / "manifest_neg.jsonl")
        if asked.kind in (None, "innocent") and (not asked.only or entry["id"] in asked.only)
    ][: asked.limit]
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda entry: score_pair(entry, asked.directory, static=asked.static), pairs))
        results += pool.map(lambda entry: score_innocent(entry, asked.directory, static=asked.static), innocents)
    _print(results, time.monotonic() - begun)
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "-".join(["cases", *(["static"] if asked.static else []), *([asked.kind] if asked.kind else [])])
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1))
    return 0


_COUNTED = ("located", "detected", "flagged", "confirmed", "run", "false_alarm", "broken")


def _print(results: list[dict[str, Any]], seconds: float) -> None:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        table[result["kind"]].update({"n": 1, **{key: bool(result.get(key)) for key in _COUNTED}})
        table[result["kind"]]["settled"] += bool(result.get("flagged") and result.get("confirmed"))
    columns = ("n", "located", "detected", "flagged", "confirmed", "settled", "run", "false_alarm", "broken")
    print("settled: flagged and confirmed")
    print(f"{'kind':16s}{''.join(f'{name:>12s}' for name in columns)}")
    for kind, counts in sorted(table.items()):
        print(f"{kind:16s}{''.join(f'{counts[name]:12d}' for name in columns)}")
    faulty = [result for result in results if result["kind"] != "innocent"]
    wrong = [result for result in results if result["false_alarm"]]
    print(f"located {_share(faulty, 'located')}, detected {_share(faulty, 'detected')}, "
          f"false alarms {len(wrong)} of {len(results)}, in {seconds:.0f} s")  # fmt: skip
    numerical = [result for result in faulty if result["kind"] == "numerical" and result["flagged"]]
    print(f"numerical faults that a rule flags: confirmed by a found input {_share(numerical, 'confirmed')}")
    for result in numerical:
        if not result["confirmed"]:
            print(f"  not confirmed {result['id']}: {'; '.join(result['told'])}")
    for result in wrong:
        print(f"  false alarm {result['id']} ({result['kind']}): {', '.join(result['said_of_fixed'])}")
    for result in faulty:
        if not result["detected"]:
            print(f"  missed {result['id']} ({result['kind']}): {'; '.join(result['told']) or 'nothing was said'}")
        elif not result["located"]:
            print(f"  elsewhere {result['id']} ({result['kind']}): {'; '.join(result['told'])}")
    for result in results:
        if result["broken"]:
            print(f"  broken {result['id']}: {result['broken']}")


def _share(results: list[dict[str, Any]], key: str) -> str:
    count = sum(bool(result[key]) for result in results)
    return f"{count} of {len(results)} ({count / max(1, len(results)):.0%})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
