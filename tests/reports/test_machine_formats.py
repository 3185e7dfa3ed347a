"""JUnit and Code Quality are read by machines that are strict about them."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from services.problems import BadInputError
from services.reports.document import Report
from services.reports.formats import FORMATS, Rendering, report_format
from tests.reports.samples import finding, hostile_report, report_of, rich_report


@pytest.mark.parametrize("report", [rich_report(), hostile_report(), report_of()], ids=["rich", "hostile", "empty"])
def test_junit_is_well_formed_and_its_counts_are_those_of_its_cases(report: Report) -> None:
    root = ElementTree.fromstring(report_format("junit").render(report, Rendering()))
    assert root.tag == "testsuites"
    cases = root.findall("testsuite/testcase")
    assert int(root.get("tests", "")) == len(cases)
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(root.get(key, "")) == len(root.findall(f"testsuite/testcase/{tag}"))


def test_junit_tells_failures_errors_and_what_did_not_run_apart() -> None:
    root = ElementTree.fromstring(report_format("junit").render(rich_report(), Rendering()))
    outcomes = {
        f"{case.get('classname')} {case.get('name')}": [child.tag for child in case]
        for case in root.findall("testsuite/testcase")
    }
    assert outcomes["pkg.a:Square gradcheck [cpu]"] == ["failure"]
    assert outcomes["pkg.a:Square compile_equivalence [cpu]"] == []
    assert outcomes["pkg.a:Norm device_compare [cpu]"] == ["skipped"]
    assert outcomes["pkg.a:Lonely harness"] == ["skipped"]
    assert outcomes["pkg/a.py GP102 hand-normalisation at line 18"] == ["failure"]


def test_junit_passes_over_what_is_known() -> None:
    report = report_of((finding(), finding(fingerprint="2")))
    report.findings[0].is_new = False
    root = ElementTree.fromstring(report_format("junit").render(report, Rendering()))
    assert [[child.tag for child in case] for case in root.findall("testsuite/testcase")] == [["skipped"], ["failure"]]


@pytest.mark.parametrize("report", [rich_report(), hostile_report(), report_of()], ids=["rich", "hostile", "empty"])
def test_code_quality_has_the_fields_that_gitlab_asks_for(report: Report) -> None:
    written = report_format("codequality").render(report, Rendering())
    assert not written.startswith("\ufeff")
    for issue in json.loads(written):
        assert issue["description"]
        assert issue["check_name"]
        assert issue["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert not issue["location"]["path"].startswith("/")
        assert issue["location"]["lines"]["begin"] >= 1


def test_code_quality_fingerprints_are_unique_even_for_equal_findings() -> None:
    issues = json.loads(report_format("codequality").render(report_of((finding(),) * 3), Rendering()))
    assert len({issue["fingerprint"] for issue in issues}) == 3


def test_code_quality_leaves_out_what_people_decided() -> None:
    report = report_of((finding(),))
    report.findings[0].triage = "false_positive"
    assert json.loads(report_format("codequality").render(report, Rendering())) == []


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInputError, match="choose one of json, sarif") as raised:
        report_format("pdf")
    assert raised.value.details == {"format": "pdf", "formats": list(FORMATS)}


def test_every_format_has_a_media_type_and_an_extension_of_its_own() -> None:
    assert len({each.extension for each in FORMATS.values()}) == len(FORMATS)
    assert all("/" in each.media_type for each in FORMATS.values())
