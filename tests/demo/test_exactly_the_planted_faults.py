"""The whole check of the demo repository: every planted fault, and nothing else."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.planted import REPOSITORY, compare, planted_faults

FAULTS = planted_faults()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `gradproof check` says of the repository, sandbox and all, with next to no time for inductor."""
    output = tmp_path_factory.mktemp("demo") / "report.json"
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("gradproof")),
            "check",
            str(REPOSITORY),
            *("--format", "json", "--output", str(output)),
        ],
        env={**os.environ, "GRADPROOF_INDUCTOR_BUDGET": "PT1S"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # the gate fails: that is what the repository is for
    document = json.loads(output.read_text(encoding="utf-8"))
    assert document["analysis"]["status"] == "finished"
    return dict(document)


def test_every_planted_fault_is_found(report: dict[str, Any]) -> None:
    assert [fault.id for fault in compare(report, FAULTS).missed] == []


def test_nothing_else_is_reported(report: dict[str, Any]) -> None:
    assert compare(report, FAULTS).surplus == ()


def test_every_target_runs(report: dict[str, Any]) -> None:
    assert report["summary"]["targets"]["not_run"] == {}
    assert report["summary"]["targets"]["run"] == report["summary"]["targets"]["found"] >= 30


def test_most_findings_of_reading_are_confirmed_by_running(report: dict[str, Any]) -> None:
    confirmed = {finding["rule"] for finding in report["findings"] if finding["verdict"] == "confirmed"}
    assert {"GP101", "GP102", "GP103", "GP104", "GP107", "GP114"} <= confirmed
    assert {"GP301", "GP302", "GP303", "GP305", "GP307", "GP404", "GP405"} <= confirmed
    assert not [finding["rule"] for finding in report["findings"] if finding["verdict"] == "not_reproduced"]


def test_what_only_running_shows_points_at_the_target_around_the_planted_line(report: dict[str, Any]) -> None:
    for fault in (fault for fault in FAULTS if fault.check is not None):
        (target,) = (target for target in report["targets"] if target["name"] in fault.targets)
        failing = [check for check in target["checks"] if check["verdict"] == "fail"]
        assert [check["check"] for check in failing] == [fault.check], fault.id
        assert failing[0]["path"] == fault.path
        # At best the statement that returns the gradient, at worst the line of the class.
        assert target["line"] <= failing[0]["line"] <= fault.line + 1


def test_the_comparison_notices_what_is_missing(report: dict[str, Any]) -> None:
    for fault in FAULTS:
        poorer = copy.deepcopy(report)
        poorer["findings"] = [finding for finding in poorer["findings"] if finding["rule"] != fault.rule]
        for target in poorer["targets"]:
            if fault.check is not None and target["name"] in fault.targets:
                target["checks"] = []
        assert compare(poorer, FAULTS).missed == (fault,)


def test_the_comparison_notices_what_was_not_planted(report: dict[str, Any]) -> None:
    richer = copy.deepcopy(report)
    richer["findings"].append({**richer["findings"][0], "start_line": 1, "end_line": 1})
    right = next(target for target in richer["targets"] if target["name"].endswith(":TwoTowers"))
    right["checks"][0]["verdict"] = "fail"
    surplus = compare(richer, FAULTS).surplus
    assert len(surplus) == 2
    assert "GP901" in surplus[0]
    assert "TwoTowers fails gradcheck" in surplus[1]
