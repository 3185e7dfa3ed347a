"""The survey counts what ran, by which step and grade, and keeps apart what can have no gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.survey import Row, asked_paths, verdicts
from services.reports.document import CheckInfo
from tests.reports.samples import check, failing, norm, report_of, target
from tools.cases import read_alarms


def report_with(*checks: CheckInfo) -> dict[str, Any]:
    targets = (
        target(checks=checks or (check(),), duration_s=2.0),
        norm(harness=None, not_run_reason="inputs unsolved", checks=(), duration_s=4.0),
        norm(name="pkg.a:Counter", harness=None, not_run_reason="no differentiable output", checks=()),
    )
    made: dict[str, Any] = json.loads(report_of((), targets).model_dump_json())
    return made


def test_a_row_counts_eligible_targets_by_step_grade_and_reason() -> None:
    row = Row.of(report_with(), 7.0)
    assert (row.found, row.ran) == (2, 1)
    assert row.not_run == {"inputs unsolved": 1}
    assert row.not_eligible == {"no differentiable output": 1}
    assert row.grades == {"C": 1}
    assert row.found_by == {"names": 1}
    assert row.figures()["median_s"] == 3.0
    total = Row()
    total.add(row)
    total.add(row)
    assert (total.found, total.total_s, total.not_run["inputs unsolved"]) == (4, 14.0, 2)
    assert next(total.lines()).startswith("ran forward and backward 2 of 4 (50%), grade A or B 0 (0%); 2 counted apart")


def test_verdicts_are_compared_by_target_check_and_device() -> None:
    assert verdicts(report_with(failing())) == {("pkg.a:Square", "gradcheck", "cpu"): "fail"}


def test_a_sample_is_files_that_hold_enough_targets_the_same_each_time(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"layer_{number}.py").write_text("import torch\n\n\ndef squared(x):\n    return torch.square(x)\n")
    drawn = asked_paths("unknown", tmp_path, sample=2, seed=1)
    assert len(drawn) == 2
    assert drawn == asked_paths("unknown", tmp_path, sample=2, seed=1)
    assert asked_paths("unknown", tmp_path, sample=None, seed=1) == [str(tmp_path)]
    assert asked_paths("torchmetrics", tmp_path, sample=None, seed=1) == [str(tmp_path / "torchmetrics/functional")]


def test_what_a_case_was_told_is_kept_for_the_list_of_misses() -> None:
    heard = read_alarms(report_with(failing(line=13)))
    assert heard.failures == ((13, "gradcheck"),)
    assert heard.ran
    assert "Square (C) gradcheck fail" in heard.told
    assert any(line.startswith("Norm not run: inputs unsolved") for line in heard.told)
