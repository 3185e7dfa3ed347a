"""SARIF output is valid by the schema and keeps the limits of GitHub code scanning."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest

from analyzer.findings import Edit, Fix, FixSafety, Region, Related, Severity
from services.reports.document import Report
from services.reports.formats import Rendering, report_format
from services.reports.formats.sarif import MAXIMUM_RESULTS, MAXIMUM_TEXT, SHOWN_RESULTS
from services.reports.sources import DirectorySources
from tests.reports.samples import SOURCE, failing, finding, hostile_report, report_of, rich_report, target

SCHEMA = json.loads((Path(__file__).parents[1] / "fixtures/schemas/sarif-2.1.0.json").read_text(encoding="utf-8"))


def sarif(report: Report, rendering: Rendering | None = None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(report_format("sarif").render(report, rendering or Rendering()))
    return document


@pytest.mark.parametrize("report", [rich_report(), hostile_report(), report_of()], ids=["rich", "hostile", "empty"])
def test_it_is_valid_by_the_official_schema(report: Report) -> None:
    jsonschema.Draft4Validator(SCHEMA).validate(sarif(report))


def test_what_reading_found_and_what_running_showed_are_two_runs_with_categories_of_their_own() -> None:
    static, runtime = sarif(rich_report())["runs"]
    assert static["automationDetails"]["id"].startswith("gradproof/static/")
    assert runtime["automationDetails"]["id"].startswith("gradproof/runtime/")
    assert [result["ruleId"] for result in static["results"]] == ["GP303", "GP102"]  # the graver first
    assert [result["ruleId"] for result in runtime["results"]] == ["gradcheck"]


def test_github_finds_everything_it_needs() -> None:
    for report in (rich_report(), hostile_report()):
        for run in sarif(report)["runs"]:
            for rule in run["tool"]["driver"]["rules"]:
                for key in ("shortDescription", "fullDescription", "help"):
                    assert 0 < len(rule[key]["text"]) <= MAXIMUM_TEXT
                assert rule["help"]["markdown"]
                assert rule["properties"]["precision"] in {"very-high", "high", "medium", "low"}
                assert rule["properties"]["problem.severity"] in {"error", "warning", "recommendation"}
                assert len(rule["properties"]["tags"]) <= 10
            for result in run["results"]:
                assert 0 < len(result["message"]["text"]) <= MAXIMUM_TEXT
                assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
                region = result["locations"][0]["physicalLocation"]["region"]
                assert {"startLine", "startColumn", "endLine", "endColumn"} <= region.keys()
                assert result["partialFingerprints"]["primaryLocationLineHash"]


def test_the_fingerprint_depends_on_neither_the_line_nor_the_message() -> None:
    before = sarif(report_of((finding(),)))["runs"][0]["results"][0]["partialFingerprints"]
    moved = finding(message="another text", region=finding().region.__class__("pkg/a.py", 90, 1, 90, 9))
    assert sarif(report_of((moved,)))["runs"][0]["results"][0]["partialFingerprints"] == before
    assert before["gradproof/v1"] == finding().fingerprint


def test_equal_fingerprints_are_told_apart_by_their_occurrence() -> None:
    results = sarif(report_of((finding(), finding())))["runs"][0]["results"]
    hashes = [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]
    assert hashes == [f"{'f' * 32}:1", f"{'f' * 32}:2"]


def test_more_results_than_github_takes_are_cut_with_a_notice() -> None:
    report = report_of(tuple(finding() for _ in range(MAXIMUM_RESULTS + 5)))
    run = sarif(report)["runs"][0]
    assert len(run["results"]) == MAXIMUM_RESULTS
    notice = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    assert notice.startswith(f"5 of {MAXIMUM_RESULTS + 5} results are left out")


def test_a_path_becomes_a_relative_address_that_reads_back() -> None:
    result = sarif(hostile_report())["runs"][0]["results"][0]
    location = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert unquote(location["uri"]) == hostile_report().findings[0].path
    assert location["uriBaseId"] == "%SRCROOT%"
    assert not set('<>`|" ') & set(location["uri"])


def test_a_failing_check_marks_the_line_that_can_be_quoted(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_text(SOURCE, encoding="utf-8")
    report = report_of((), (target(checks=(failing(path="pkg/a.py", line=13),)),))
    (result,) = sarif(report, Rendering(DirectorySources(tmp_path)))["runs"][1]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 13, "startColumn": 9, "endLine": 13, "endColumn": 30}
    assert result["properties"]["repro"].startswith("import torch")


def test_fixes_related_places_and_decisions_are_carried() -> None:
    static = sarif(rich_report())["runs"][0]
    division = next(result for result in static["results"] if result["ruleId"] == "GP102")
    change = division["fixes"][0]["artifactChanges"][0]["replacements"][0]
    assert change["insertedContent"]["text"] == "torch.nn.functional.normalize(x)"
    assert division["relatedLocations"][0]["message"]["text"] == "x may be a row of zeros"
    assert static["properties"] == {"suppressedInSource": 1}


def test_a_rule_leads_to_its_page_where_there_is_a_server() -> None:
    rules = sarif(rich_report(public_url="https://gradproof.example"))["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["helpUri"] for rule in rules] == [f"https://gradproof.example/rules/{rule['id']}" for rule in rules]
    assert not [rule for rule in sarif(rich_report())["runs"][0]["tool"]["driver"]["rules"] if "helpUri" in rule]


def test_a_failed_analysis_is_not_called_successful() -> None:
    run = sarif(report_of(status="failed", reason="the archive vanished"))["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "the archive vanished"


def test_a_place_in_a_notebook_is_the_line_of_its_file(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": ["y = 1\n", "y = x / x.norm()"]}]
    text = json.dumps({"cells": cells}, indent=1)
    (tmp_path / "n.ipynb").write_text(text)
    region = Region("n.ipynb", 2, 5, 2, 17, 1)
    fix = Fix(FixSafety.SAFE, (Edit(region, "normalize(x)"),))
    report = report_of((finding(region=region, related=(Related(region, "here"),), fix=fix),))
    document = sarif(report, Rendering(DirectorySources(tmp_path)))
    jsonschema.Draft4Validator(SCHEMA).validate(document)
    (result,) = document["runs"][0]["results"]
    line = text.split("\n").index('    "y = x / x.norm()"') + 1
    for location in (*result["locations"], *result["relatedLocations"]):
        assert location["physicalLocation"]["region"]["startLine"] == line
    assert result["message"]["text"].startswith("Cell 1, line 2: ")
    assert result["properties"]["place"] == "n.ipynb:cell 1:2"
    assert "fixes" not in result  # its columns are those of the cell, not of the JSON document


def test_of_too_many_results_the_gravest_and_the_new_are_kept() -> None:
    notes = tuple(finding(severity=Severity.NOTE, fingerprint=f"n{number}") for number in range(MAXIMUM_RESULTS))
    errors = tuple(finding(severity=Severity.ERROR, fingerprint=f"e{number}") for number in range(20))
    run = sarif(report_of((*notes, *errors)))["runs"][0]
    levels = [result["level"] for result in run["results"]]
    assert levels[:20] == ["error"] * 20
    assert len(levels) == MAXIMUM_RESULTS
    assert "20 of" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_more_bytes_than_github_takes_are_cut_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.reports.formats.sarif.MAXIMUM_BYTES", 20_000)
    findings = tuple(
        finding(fingerprint=hashlib.sha256(bytes([number])).hexdigest(), severity=severity)
        for severity in (Severity.NOTE, Severity.ERROR)
        for number in range(200)
    )
    text = report_format("sarif").render(report_of(findings), Rendering())
    assert len(gzip.compress(text.encode())) <= 20_000
    run = json.loads(text)["runs"][0]
    left_out = 400 - len(run["results"])
    assert 0 < left_out < 400
    assert run["results"][0]["level"] == "error"
    notice = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    assert notice.startswith(f"{left_out} of 400 results are left out")


def test_results_that_github_will_not_show_are_announced() -> None:
    findings = tuple(finding(fingerprint=str(number)) for number in range(SHOWN_RESULTS + 1))
    run = sarif(report_of(findings))["runs"][0]
    assert len(run["results"]) == SHOWN_RESULTS + 1
    notice = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    assert "GitHub shows the first 5000" in notice
