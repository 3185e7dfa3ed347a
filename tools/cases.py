"""`make cases`: score Gradproof on the faulty/fixed pairs and innocent look-alikes of `tests/cases`.

    python -m tools.cases [--static] [--limit N] [--kind KIND] [DIRECTORY]

Each file is checked alone, in an empty directory, under a neutral name, with no configuration. A faulty file is
*located* when a warning, an error or a failing check points within one line of a faulty line, and *detected* when it
is located or any check fails. A fixed file raises a false alarm when a warning or error points at the lines that
differ from the faulty file, or a check fails although its gradient is no design (`fixed_numeric.note`); an innocent
one when anything does. With `--static` nothing is run, and only cases with an `expected_static` count.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
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
    """What a report holds against a file: line ranges of warnings and errors, lines of failing checks."""

    findings: tuple[tuple[int, int, str], ...]
    failures: tuple[tuple[int, str], ...]

    def near(self, lines: set[int]) -> bool:
        """Whether any of them points within one line of one of these."""
        return any(start - 1 <= line <= end + 1 for start, end, _ in self.findings for line in lines) or any(
            abs(at - line) <= 1 for at, _ in self.failures for line in lines
        )

    def names(self) -> list[str]:
        """The rules and checks that spoke."""
        return sorted({rule for _, _, rule in self.findings} | {check for _, check in self.failures})


def alarms(source: Path, *, static: bool) -> Alarms:
    """Check one file alone."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(source, Path(directory) / "layers.py")
        command = [str(GRADPROOF), "check", directory, "--format", "json"]
        command += ["--static-only"] if static else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{source.name}: gradproof ended with {done.returncode}: {done.stderr[-1000:]}")
    report = json.loads(done.stdout)
    return Alarms(
        findings=tuple(
            (finding["start_line"], finding["end_line"], finding["rule"])
            for finding in report["findings"]
            if finding["severity"] in ("error", "warning")
        ),
        failures=tuple(
            (check["line"] or 0, check["check"])
            for target in report["targets"]
            for check in target["checks"]
            if check["verdict"] == "fail"
        ),
    )


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
    false_alarm = Alarms(after.findings, ()).near(touched) or (bool(after.failures) and not by_design)
    return {
        "id": entry["id"],
        "kind": entry["kind"],
        "located": located,
        "detected": located or bool(found.failures),
        "false_alarm": false_alarm,
        "said": found.names(),
        "said_of_fixed": after.names(),
    }


def faulty_lines(entry: dict[str, Any]) -> set[int]:
    """Where the fault of a case is."""
    return {entry["faulty_line"], *entry.get("also_faulty_lines", [])}


def score_innocent(entry: dict[str, Any], cases: Path, *, static: bool) -> dict[str, Any]:
    """One file that is right."""
    found = alarms(cases / (entry.get("file") or entry["files"][0]), static=static)
    said = found.names()
    return {"id": entry["id"], "kind": "innocent", "false_alarm": bool(said), "said_of_fixed": said}


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
    asked = parser.parse_args(arguments)
    pairs = [
        entry
        for entry in entries(asked.directory / "manifest.jsonl")
        if (not asked.static or entry["expected_static"] is not None) and asked.kind in (None, entry["kind"])
    ][: asked.limit]
    innocents = entries(asked.directory / "manifest_neg.jsonl")[: asked.limit]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda entry: score_pair(entry, asked.directory, static=asked.static), pairs))
        results += pool.map(lambda entry: score_innocent(entry, asked.directory, static=asked.static), innocents)
    _print(results)
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "cases-static.json" if asked.static else "cases.json"
    (RESULTS / name).write_text(json.dumps(results, indent=1))
    return 0


def _print(results: list[dict[str, Any]]) -> None:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts = table[result["kind"]]
        counts["n"] += 1
        for key in ("located", "detected", "false_alarm"):
            counts[key] += bool(result.get(key))
    for kind, counts in sorted(table.items()):
        print(f"{kind:16s} {counts['n']:3d} cases  {counts['located']:3d} located  {counts['detected']:3d} detected  "
              f"{counts['false_alarm']:3d} false alarms")  # fmt: skip
    faulty = [result for result in results if result["kind"] != "innocent"]
    located, detected = (sum(bool(result[key]) for result in faulty) for key in ("located", "detected"))
    wrong = [result for result in results if result["false_alarm"]]
    print(f"located {located} of {len(faulty)}, detected {detected}, false alarms {len(wrong)} of {len(results)}")
    for result in wrong:
        print(f"  false alarm {result['id']}: {', '.join(result['said_of_fixed'])}")
    missed = [result["id"] for result in faulty if not result["detected"]]
    print(f"  not detected: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
