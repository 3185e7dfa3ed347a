"""All rules together on the cases from public reports: every fault that source can show is found, nothing else is said.

`make cases ARGS=--static` prints the table of the same scores, taken through the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyzer.engine import analyze_source
from analyzer.findings import Severity
from tools.cases import Alarms, entries, faulty_lines, touched_lines

CASES = Path(__file__).parents[1] / "cases"
FAULTY = entries(CASES / "manifest.jsonl")
INNOCENT = entries(CASES / "manifest_neg.jsonl")
# They need float16, which their source does not show: the same code stands in right files.
INVISIBLE = frozenset({"case_007", "case_210", "case_266"})


def read(name: str) -> Alarms:
    found = analyze_source((CASES / name).read_bytes(), "layers.py").findings
    loud = [finding for finding in found if finding.severity is not Severity.NOTE]
    return Alarms(tuple((f.region.start_line, f.region.end_line, f.rule) for f in loud), ())


@pytest.mark.parametrize(
    "case",
    [case for case in FAULTY if case["expected_static"] is not None and case["id"] not in INVISIBLE],
    ids=lambda case: case["id"],
)
def test_a_reported_fault_is_located(case: dict[str, Any]) -> None:
    assert read(f"{case['id']}.py").near(faulty_lines(case))


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case["id"])
def test_what_mended_a_fault_raises_no_alarm(case: dict[str, Any]) -> None:
    faulty, fixed = CASES / f"{case['id']}.py", CASES / f"{case['id']}_fixed.py"
    assert not read(fixed.name).near(touched_lines(faulty, fixed))


@pytest.mark.parametrize("case", INNOCENT, ids=lambda case: case["id"])
def test_an_innocent_case_raises_no_alarm(case: dict[str, Any]) -> None:
    assert read(f"{case['id']}.py").names() == []
