"""Results come out in every format, page by page, and compared with those of another analysis."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from services.reports.document import Report
from services.reports.formats import FORMATS
from tests.reports.samples import check, failing
from tests.serving import MODULE, Workshop, upload

ANALYSES = "/api/v1/analyses"

FIXED = MODULE.replace("x / x.norm()", "torch.nn.functional.normalize(x)")
TWO = MODULE + "\n\nclass Other(torch.nn.Module):\n    def forward(self, x):\n        return x / x.norm()\n"


def analysed(
    client: httpx.Client, workshop: Workshop, source: str = MODULE, *results: Any, **data: str
) -> dict[str, Any]:
    """Submit a module, read it, say that its targets had these results."""
    response = client.post(ANALYSES, files=upload({"pkg/__init__.py": "", "pkg/a.py": source}), data=data)
    assert response.status_code == 202, response.text
    workshop.read()
    workshop.probe(*(results or (failing(path="pkg/a.py", line=6), check(check="compile_equivalence"))))
    state = client.get(response.json()["links"]["self"]).json()
    assert state["status"] == "finished", state
    return dict(state)


def test_findings_are_there_as_soon_as_the_snapshot_was_read(client: httpx.Client, workshop: Workshop) -> None:
    identity = client.post(ANALYSES, files=upload()).json()["id"]
    assert client.get(f"{ANALYSES}/{identity}/findings").json()["items"] == []
    workshop.read()
    state = client.get(f"{ANALYSES}/{identity}").json()
    assert state["status"] == "running"
    assert state["static_finished_at"] is not None
    found = client.get(f"{ANALYSES}/{identity}/findings").json()["items"]
    assert found
    assert {finding["verdict"] for finding in found} <= {"not_exercised", "static_only"}
    workshop.probe(check())
    assert client.get(f"{ANALYSES}/{identity}").json()["status"] == "finished"


def test_the_report_comes_in_every_format_with_a_name_and_no_power(client: httpx.Client, workshop: Workshop) -> None:
    identity = analysed(client, workshop)["id"]
    for name, each in FORMATS.items():
        response = client.get(f"{ANALYSES}/{identity}/report", params={"format": name})
        assert response.status_code == 200
        assert response.headers["content-type"].partition(";")[0] == each.media_type
        assert f'filename="gradproof-{identity}.{each.extension}"' in response.headers["content-disposition"]
        assert "sandbox" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        if each.media_type.endswith("json"):
            assert json.loads(response.text)
        if name == "junit":
            assert ElementTree.fromstring(response.text).tag == "testsuites"
    assert "return x / x.norm()" in client.get(f"{ANALYSES}/{identity}/report", params={"format": "text"}).text


def test_the_report_without_a_format_is_the_document(client: httpx.Client, workshop: Workshop) -> None:
    state = analysed(client, workshop)
    report = Report.model_validate_json(client.get(state["links"]["report"]).text)
    assert report.analysis.id == state["id"]
    assert report.gate.passed is False
    assert report.tool.torch == "2.13.0"
    assert report.snapshot.digest == state["snapshot"]
    assert report.summary.checks == {"fail": 1, "pass": 1}
    assert report.targets[0].harness is not None
    assert report.findings[0].explanation_url.endswith(f"/rules/{report.findings[0].rule}")


def test_an_unknown_format_is_refused_with_those_there_are(client: httpx.Client, workshop: Workshop) -> None:
    identity = analysed(client, workshop)["id"]
    response = client.get(f"{ANALYSES}/{identity}/report", params={"format": "pdf"})
    assert response.status_code == 422
    assert "sarif" in response.json()["detail"]


def test_findings_are_filtered_and_read_page_by_page(client: httpx.Client, workshop: Workshop) -> None:
    identity = analysed(client, workshop, TWO)["id"]
    everything = client.get(f"{ANALYSES}/{identity}/findings").json()["items"]
    assert len(everything) >= 2
    pages: list[Any] = []
    cursor: str | None = None
    while cursor is not None or not pages:
        params = {"limit": "1"} | ({"cursor": cursor} if cursor else {})
        page = client.get(f"{ANALYSES}/{identity}/findings", params=params).json()
        assert len(page["items"]) == 1
        pages += page["items"]
        cursor = page["next_cursor"]
    assert pages == everything
    one = everything[0]
    for key, value, expected in (
        ("rule", one["rule"], True),
        ("rule", one["name"], True),
        ("rule", "GP9", False),
        ("severity", one["severity"], True),
        ("verdict", one["verdict"], True),
        ("path", "pkg/a.py", True),
        ("path", "pkg/", True),
        ("path", "pkg", False),
        ("is_new", "true", True),
        ("is_new", "false", False),
        ("triage", "open", True),
        ("triage", "accepted", False),
    ):
        found = client.get(f"{ANALYSES}/{identity}/findings", params={key: value}).json()["items"]
        assert (one in found) is expected, (key, value)


@pytest.mark.parametrize("cursor", ["x", "-1", "１", "9" * 10])  # noqa: RUF001 - a digit that is none
def test_a_cursor_that_no_page_gave_is_refused(client: httpx.Client, workshop: Workshop, cursor: str) -> None:
    identity = analysed(client, workshop)["id"]
    response = client.get(f"{ANALYSES}/{identity}/findings", params={"cursor": cursor})
    assert response.status_code == 422
    assert response.json()["code"] == "invalid-cursor"


def test_targets_and_checks_are_listed_and_filtered(client: httpx.Client, workshop: Workshop) -> None:
    identity = analysed(client, workshop)["id"]
    (target,) = client.get(f"{ANALYSES}/{identity}/targets").json()["items"]
    assert target["name"] == "pkg.a:Norm"
    assert target["checks"] == {"fail": 1, "pass": 1}
    assert target["harness"]["constructor"] == "Norm()"
    assert client.get(f"{ANALYSES}/{identity}/targets", params={"kind": "function"}).json()["items"] == []
    assert len(client.get(f"{ANALYSES}/{identity}/targets", params={"run": "true"}).json()["items"]) == 1
    checks = client.get(f"{ANALYSES}/{identity}/checks").json()["items"]
    assert [(each["target"], each["check"], each["verdict"]) for each in checks] == [
        ("pkg.a:Norm", "gradcheck", "fail"),
        ("pkg.a:Norm", "compile_equivalence", "pass"),
    ]
    (failed,) = client.get(f"{ANALYSES}/{identity}/checks", params={"verdict": "fail"}).json()["items"]
    assert failed["diagnosis"]["cause"] == "backward_raises"
    assert failed["repro"].startswith("import torch")
    assert client.get(f"{ANALYSES}/{identity}/checks", params={"device": "cuda"}).json()["items"] == []


def test_what_could_not_be_run_says_why(client: httpx.Client, workshop: Workshop) -> None:
    identity = client.post(ANALYSES, files=upload()).json()["id"]
    workshop.read()
    workshop.probe()
    report = client.get(f"{ANALYSES}/{identity}/report").json()
    targets = {"found": 1, "run": 0, "not_run": {"inputs unsolved": 1}, "not_eligible": {}}
    assert report["summary"]["targets"] == targets
    reasons = [finding["verdict_reason"] for finding in report["findings"] if finding["verdict"] == "not_exercised"]
    assert any("could not be run (inputs unsolved): no shape fits." in reason for reason in reasons)


def test_two_analyses_are_compared(client: httpx.Client, workshop: Workshop) -> None:
    before = analysed(client, workshop, MODULE)
    after = analysed(client, workshop, TWO, check(), check(check="compile_equivalence"))
    changes = client.get(f"{ANALYSES}/{after['id']}/compare", params={"base": before["id"]}).json()
    assert {finding["symbol"] for finding in changes["new"]} == {"pkg.a.Other.forward"}
    assert {finding["symbol"] for finding in changes["unchanged"]} == {"pkg.a.Norm.forward"}
    # The failure that no rule had said is a finding of its own, and gone with the check that passes now.
    assert [finding["rule"] for finding in changes["fixed"]] == ["gradcheck"]
    of_norm = {change["check"]: change for change in changes["check_changes"] if change["target"] == "pkg.a:Norm"}
    assert (of_norm["gradcheck"]["before"], of_norm["gradcheck"]["after"]) == ("fail", "pass")
    of_other = [change for change in changes["check_changes"] if change["target"] == "pkg.a:Other"]
    assert {change["before"] for change in of_other} == {None}
    back = client.get(f"{ANALYSES}/{before['id']}/compare", params={"base": after["id"]}).json()
    assert {finding["symbol"] for finding in back["fixed"]} == {"pkg.a.Other.forward"}


def test_what_the_base_has_too_is_not_new(client: httpx.Client, workshop: Workshop) -> None:
    base = analysed(client, workshop, MODULE)["id"]
    head = analysed(client, workshop, TWO, base=base)["id"]
    findings = client.get(f"{ANALYSES}/{head}/findings").json()["items"]
    new = {finding["symbol"]: finding["is_new"] for finding in findings}
    failures = {"pkg.a.Norm": False, "pkg.a.Other": True}
    assert new == {"pkg.a.Norm.forward": False, "pkg.a.Other.forward": True} | failures


def test_an_analysis_waits_for_its_base_to_be_read_before_it_calls_anything_new(
    client: httpx.Client, workshop: Workshop
) -> None:
    slow = client.post(ANALYSES, json={"git_url": "https://github.com/example/vision"}).json()["id"]
    response = client.post(ANALYSES, files=upload(), data={"base": slow})
    workshop.read()
    workshop.probe(check())
    head = response.json()["links"]["self"]
    assert client.get(head).json()["status"] == "running"
    workshop.fail("control", "the host can't be reached")
    assert client.get(f"{ANALYSES}/{slow}").json()["status"] == "failed"
    workshop.reconciler.tick()
    assert client.get(head).json()["status"] == "finished"


def test_a_repaired_file_has_no_finding_any_more(client: httpx.Client, workshop: Workshop) -> None:
    state = analysed(client, workshop, FIXED, check())
    assert client.get(f"{ANALYSES}/{state['id']}/findings").json()["items"] == []
    assert state["gate"]["passed"] is True
