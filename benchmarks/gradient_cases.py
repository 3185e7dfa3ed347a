"""`make gradient-cases`: the reported cases of `tests/cases` that are about gradients, from ordinary inputs.

    python -m benchmarks.gradient_cases [--ids case_007,case_018] [--kind numerical]

The manifest's inputs trigger the fault. Here each file is analysed with a configuration that names the manifest's
target and *ordinary* inputs of the same shapes and dtypes (`ORDINARY`): what the caller of such code passes on a good
day. The trigger has to be found by the checks. A case is *found* when a check of the target fails on the faulty file,
*located* when one that fails points within one line of a faulty line, and a *false alarm* is a check of the target
that fails on the fixed file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from services.checks.plan import CHECKS as KNOWN_CHECKS
from tools.cases import GRADPROOF, RESULTS, ROOT, TIMEOUT_S, entries, faulty_lines

CASES = ROOT / "tests" / "cases"
CHECKS = [name for name in KNOWN_CHECKS if name in ("gradcheck", "gradgradcheck", "nan_gradient")]

_UNIT = "torch.nn.functional.normalize({}, dim=-1)"
_ROTATIONS = "torch.linalg.matrix_exp((lambda a: a - a.mT)(torch.randn(2, 3, 3)))"
_HYPERBOLOID = "(lambda s: torch.cat([(1 + s.square().sum(-1, keepdim=True)).sqrt(), s], -1))(torch.randn(1, 2))"
_DOUBLE = "dtype=torch.float64"

# Values that belong to the domain of the code: probabilities in (0, 1), unit quaternions, rotations, points on the
# hyperboloid, masks that mask nothing.
ORDINARY: dict[str, list[str]] = {
    "case_001": [_ROTATIONS],
    "case_002": [_UNIT.format("torch.randn(2, 4)")],
    "case_003": ["torch.rand(1, 3, 1, 2)"],
    "case_005": ["torch.randn(1, 3)", "torch.tensor([0])"],
    "case_007": ["torch.randn(1, 4, dtype=torch.float16)", "torch.randn(1, 4, dtype=torch.float16)"],
    "case_013": [_UNIT.format("torch.randn(1, 3)"), _UNIT.format("torch.randn(1, 3)")],
    "case_014": ["torch.randn(2, 3, 8)", "torch.ones(2, 3, dtype=torch.bool)"],
    "case_016": ["torch.rand(2)", "torch.tensor([1.0, 0.0])"],
    "case_018": ["torch.randn(4, 4)", "torch.tensor([0, 0, 1, 1])"],
    "case_019": ["torch.randn(1, 2)"],
    "case_020": ["torch.randn(2, 2)", "torch.tensor([0, 1])"],
    "case_023": ["torch.randn(3, 6)", "torch.ones(3, 6, dtype=torch.bool)"],
    "case_024": ["torch.rand(1, 4) + 0.1"],
    "case_028": ["torch.randn(3, 4)", "torch.tensor([[0, 1, 2], [1, 2, 0]])", "torch.rand(3) + 0.1"],
    "case_031": ["torch.randn(1, 2, 2)"],
    "case_032": ["torch.randn(1, 3, 4)"],
    "case_033": ["torch.randn(1, 2)", "torch.tensor([[1.0, 0.0]])"],
    "case_035": ["torch.randn(2, 3)"],
    "case_037": [_HYPERBOLOID, _HYPERBOLOID],
    "case_038": [f"torch.randn(6, {_DOUBLE})", "0.7"],
    "case_040": ["torch.randn(8, 8)"],
    "case_043": [f"torch.randn(3, {_DOUBLE})"],
    "case_046": [f"torch.randn(3, {_DOUBLE})"] * 3,
    "case_048": ["torch.randn(2, 3)"],
    "case_051": ["torch.randn(2, 3, 3, 4)"],
    "case_054": [f"torch.randn(2, 4, {_DOUBLE})"],
    "case_055": ["torch.randn(3)", "0.5"],
    "case_056": ["torch.randn(2, 4)"],
    "case_058": [f"torch.randn(4, 3, {_DOUBLE})", f"torch.randn(3, {_DOUBLE})"],
    "case_060": ["torch.randn(3)"],
    "case_061": ["torch.randn(2)"],
    "case_062": ["torch.randn(2)", "25.0"],
    "case_064": ["torch.randn(1, 3)"],
    # In-place cases: the manifest's own inputs are ordinary. `CurveGAN.train_step` is a method and no target.
    "case_067": ["torch.randn(1, 3, 6, 6)"],
    "case_070": ["torch.randn(1, 8, 4, 4)"],
    "case_073": ["torch.randn(1, 2, 4, 4)", "torch.randn(1, 2)"],
    "case_074": ["torch.randn(2, 4)"],
    "case_076": ["torch.randn(6, 4)"],
    "case_077": ["torch.randn(4, 3)", "torch.rand(4, 4)"],
    "case_078": ["torch.randn(1, 5, 1)"],
    "case_082": ["torch.rand(1, 1, 4, 6)"],
    "case_084": ["torch.randn(2, 3, 4)"],
}


def analysed(source: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """What the analysis says of the target of one file."""
    constructor = entry["constructor"]
    lines = ["[[targets]]", f'target = "layers:{entry["target"].removesuffix(".apply")}"']
    if constructor.endswith(")"):
        lines.append(f"constructor = {json.dumps(constructor)}")
    lines.append(f"inputs = {json.dumps(ORDINARY[entry['id']])}")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "layers.py").write_text(source.read_text())
        (Path(directory) / "gradproof.toml").write_text("\n".join(lines) + "\n")
        start = time.monotonic()
        done = subprocess.run(
            [str(GRADPROOF), "check", directory, "--format", "json", "--checks", ",".join(CHECKS)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{source.name}: gradproof ended with {done.returncode}: {done.stderr[-1000:]}")
    name = entry["target"].removesuffix(".apply")
    report = json.loads(done.stdout)
    target = next((found for found in report["targets"] if found["name"].partition(":")[2] == name), None)
    return {
        "seconds": time.monotonic() - start,
        "not_run": target["harness"]["reason"] if target is not None else "no such target",
        "checks": [
            {
                "check": check["check"],
                "verdict": check["verdict"],
                "line": check["line"],
                "cause": (check["diagnosis"] or {}).get("cause"),
                "summary": check["summary"],
            }
            for check in (target or {}).get("checks", [])
        ],
    }


def score(entry: dict[str, Any]) -> dict[str, Any]:
    """One pair."""
    files = entry["files"]
    names = (files["faulty"], files["fixed"]) if isinstance(files, dict) else tuple(files)
    faulty, fixed = (analysed(CASES / name, entry) for name in names)
    failing = [check for check in faulty["checks"] if check["verdict"] == "fail"]
    wanted = faulty_lines(entry)
    return {
        "id": entry["id"],
        "kind": entry["kind"],
        "title": entry["title_in_your_words"],
        "found": bool(failing),
        "located": any(abs((check["line"] or -9) - line) <= 1 for check in failing for line in wanted),
        "by": sorted({check["check"] for check in failing}),
        "causes": sorted({str(check["cause"]) for check in failing}),
        "false_alarm": [check for check in fixed["checks"] if check["verdict"] == "fail"],
        "by_design": (entry.get("fixed_numeric") or {}).get("note"),
        "faulty": faulty,
        "fixed": fixed,
    }


def main(arguments: list[str]) -> int:
    """Score, print, and keep the figures as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", help="only these, with commas between")
    parser.add_argument("--kind")
    asked = parser.parse_args(arguments)
    chosen = [
        entry
        for entry in sorted(entries(CASES / "manifest.jsonl"), key=lambda entry: (entry["kind"], entry["id"]))
        if entry["id"] in ORDINARY
        and asked.kind in (None, entry["kind"])
        and (asked.ids is None or entry["id"] in asked.ids.split(","))
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(_scored_and_told, chosen))
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts = table[result["kind"]]
        counts["cases"] += 1
        counts["found"] += result["found"]
        counts["located"] += result["located"]
        counts["false alarms"] += bool(result["false_alarm"])
    for kind, counts in table.items():
        print(f"{kind}: " + ", ".join(f"{number} {name}" for name, number in counts.items()))
    RESULTS.mkdir(parents=True, exist_ok=True)
    if asked.ids is None and asked.kind is None:
        (RESULTS / "gradient-cases.json").write_text(json.dumps(results, indent=1))
    return 0


def _scored_and_told(entry: dict[str, Any]) -> dict[str, Any]:
    result = score(entry)
    word = "located" if result["located"] else ("found" if result["found"] else "missed")
    alarm = f"  FALSE ALARM {result['false_alarm'][0]['summary'][:80]}" if result["false_alarm"] else ""
    said = ", ".join(result["causes"]) or "; ".join(
        f"{check['check']} {check['verdict']}: {check['summary'][:60]}" for check in result["faulty"]["checks"]
    )
    print(f"{result['id']} {result['kind']:15s} {word:8s} {said or result['faulty']['not_run']}{alarm}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
