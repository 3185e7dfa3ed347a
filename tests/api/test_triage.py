"""Findings of a project over REST: listed, decided about, talked about, by those who may."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from services.reports.compliance import verify
from tests.api.test_results import TWO, analysed
from tests.reports.samples import check, failing
from tests.serving import MODULE, RunningServer, Workshop, token

FINDINGS = "/api/v1/projects/vision/findings"


@pytest.fixture
def triager(server: RunningServer) -> Any:
    headers = {"Authorization": f"Bearer {token(server.settings, 'triage')}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
def found(client: httpx.Client, workshop: Workshop) -> dict[str, Any]:
    """The finding of reading, of a project whose analysis fails its gate."""
    analysis = analysed(client, workshop, MODULE, project="vision")
    (finding, _) = client.get(FINDINGS).json()["items"]
    return {"analysis": analysis["id"], "finding": finding}


def test_findings_of_a_project_are_listed_filtered_and_paged(client: httpx.Client, found: dict[str, Any]) -> None:
    items = client.get(FINDINGS).json()["items"]
    assert [item["state"] for item in items] == ["open", "open"]
    assert {item["last_analysis"] for item in items} == {found["analysis"]}
    first = client.get(FINDINGS, params={"limit": 1}).json()
    second = client.get(FINDINGS, params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert [*first["items"], *second["items"]] == items
    assert second["next_cursor"] is None
    for wanted, number in (
        ({"state": ["open", "regressed"]}, 2),
        ({"state": "fixed"}, 0),
        ({"rule": "gradcheck"}, 1),
        ({"path": "pkg/"}, 2),
        ({"on_main": "false"}, 0),
        ({"assignee": "nobody"}, 2),
        ({"text": "\N{NULL}nothing"}, 0),
    ):
        assert len(client.get(FINDINGS, params=wanted).json()["items"]) == number, wanted
    for wrong in ({"state": "closed"}, {"limit": 0}, {"cursor": "7.x!"}, {"unknown": "1"}):
        assert client.get(FINDINGS, params=wrong).status_code == 422, wrong
    assert client.get("/api/v1/projects/nobody/findings").json()["code"] == "project-not-found"


def test_a_finding_is_accepted_and_the_gate_follows(
    client: httpx.Client, triager: httpx.Client, found: dict[str, Any]
) -> None:
    before = client.get(f"/api/v1/analyses/{found['analysis']}").json()["gate"]
    assert before["passed"] is False
    for item in client.get(FINDINGS).json()["items"]:
        body = {"state": "accepted", "reason": "measured", "until": {"occurrences": 3}}
        response = triager.patch(f"{FINDINGS}/{item['fingerprint']}", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["state"] == "accepted"
        assert response.json()["until"] == {"date": None, "occurrences": 3, "torch": None}
    after = client.get(f"/api/v1/analyses/{found['analysis']}").json()["gate"]
    assert after["passed"] is True
    assert after["at_end"]["conditions"] == before["conditions"]
    listed = client.get(f"/api/v1/analyses/{found['analysis']}/findings", params={"triage": "accepted"}).json()["items"]
    assert len(listed) == 2
    one = client.get(f"{FINDINGS}/{found['finding']['fingerprint']}").json()
    assert [event["kind"] for event in one["history"]] == ["accepted"]
    assert one["history"][0]["details"] == {"until": {"occurrences": 3}}


def test_the_compliance_record_tells_who_accepted_what_and_can_be_verified(
    client: httpx.Client, triager: httpx.Client, found: dict[str, Any]
) -> None:
    fingerprint = found["finding"]["fingerprint"]
    triager.patch(f"{FINDINGS}/{fingerprint}", json={"state": "accepted", "reason": "Ω: measured"})
    address = f"/api/v1/analyses/{found['analysis']}/compliance"
    record = client.get(address).json()
    assert verify(record)
    assert client.get(address).json() == record
    told = {item["fingerprint"]: item["decision"] for item in record["findings"]}
    assert (told[fingerprint]["state"], told[fingerprint]["reason"]) == ("accepted", "Ω: measured")
    assert told[fingerprint]["by"]
    assert [each for key, each in told.items() if key != fingerprint] == [None]
    (target,) = record["targets"]
    assert {(each["check"], each["verdict"]) for each in target["checks"]} == {
        ("gradcheck", "fail"),
        ("compile_equivalence", "pass"),
    }
    assert (record["subject"]["project"], record["terms"]["seed"], record["tool"]["torch"]) == ("vision", 0, "2.13.0")
    changes: tuple[dict[str, object], ...] = ({"digest": "sha256:0"}, {"targets": []}, {"unknown": 1})
    for change in changes:
        assert not verify(record | change)
    target["checks"][0]["verdict"] = "pass"
    assert not verify(record)
    strange = client.get(f"/api/v1/analyses/{'0' * 27}/compliance")
    assert (strange.status_code, strange.json()["code"]) == (404, "analysis-not-found")


def test_what_can_not_be_decided_is_refused_with_the_field(triager: httpx.Client, found: dict[str, Any]) -> None:
    address = f"{FINDINGS}/{found['finding']['fingerprint']}"
    for body, code in (
        ({"state": "accepted"}, "invalid-decision"),
        ({"state": "fixed", "reason": "x"}, "invalid-request"),
        ({}, "invalid-request"),
        ({"state": "accepted", "reason": "x", "until": {"date": "2020-01-01T00:00:00Z"}}, "invalid-decision"),
        ({"state": "accepted", "reason": "x", "until": {"date": "2120-01-01T00:00:00"}}, "invalid-request"),
        ({"state": "accepted", "reason": "x", "assignee": "nobody-here"}, "invalid-decision"),
        ({"state": "accepted", "reason": "x", "owner": "me"}, "invalid-request"),
    ):
        response = triager.patch(address, json=body)
        assert (response.status_code, response.json()["code"]) == (422, code), body
    assert triager.get(address).json()["state"] == "open"
    assert triager.get(address).json()["history"] == []
    for unknown in ("nothing", "%00", "a" * 300):
        response = triager.patch(f"{FINDINGS}/{unknown}", json={"state": "open"})
        assert (response.status_code, response.json()["code"]) == (404, "finding-not-found")


def test_comments_and_bulk_decisions(triager: httpx.Client, found: dict[str, Any]) -> None:
    fingerprint = found["finding"]["fingerprint"]
    said = triager.post(f"{FINDINGS}/{fingerprint}/comments", json={"text": "<script>alert(1)</script>"})
    assert said.status_code == 201
    assert (said.json()["kind"], said.json()["text"]) == ("commented", "<script>alert(1)</script>")
    body = {"state": "false_positive", "reason": "generated code", "filter": {"path": "pkg/"}}
    done = triager.post(f"{FINDINGS}/bulk", json=body).json()
    assert (len(done["changed"]), done["unchanged"], done["missing"]) == (2, [], [])
    body = {"state": "open", "fingerprints": [fingerprint, "nothing"]}
    done = triager.post(f"{FINDINGS}/bulk", json=body).json()
    assert done == {"changed": [fingerprint], "unchanged": [], "missing": ["nothing"]}
    assert triager.post(f"{FINDINGS}/bulk", json={"state": "open"}).json()["code"] == "invalid-decision"


def test_a_token_that_may_only_read_or_submit_decides_nothing(client: httpx.Client, found: dict[str, Any]) -> None:
    address = f"{FINDINGS}/{found['finding']['fingerprint']}"
    for response in (
        client.patch(address, json={"state": "accepted", "reason": "x"}),
        client.post(f"{FINDINGS}/bulk", json={"state": "open", "fingerprints": ["x"]}),
        client.post(f"{address}/comments", json={"text": "x"}),
    ):
        assert (response.status_code, response.json()["code"]) == (403, "missing-scope")


def test_a_comparison_comes_in_pages(client: httpx.Client, workshop: Workshop) -> None:
    base = analysed(client, workshop, MODULE, project="vision")["id"]
    head = analysed(client, workshop, TWO, failing(path="pkg/a.py", line=6), check(check="hvp"), project="vision")["id"]
    address = f"/api/v1/analyses/{head}/compare"
    whole = client.get(address, params={"base": base}).json()
    assert whole["next_cursors"] == {}
    assert whole["counts"]["new"] == len(whole["new"])
    assert whole["counts"]["check_changes"] == len(whole["check_changes"]) > 1
    part = client.get(address, params={"base": base, "part": "check_changes", "limit": 1}).json()
    assert part["new"] == []
    assert part["check_changes"] == whole["check_changes"][:1]
    rest = {"base": base, "part": "check_changes", "cursor": part["next_cursors"]["check_changes"]}
    assert client.get(address, params=rest).json()["check_changes"] == whole["check_changes"][1:]
    assert client.get(address, params={"base": base, "part": "everything"}).status_code == 422
