"""Who asks too often or for too much is told so with 429: which limit, how much of it is used, when to come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from services.settings import Settings
from tests.serving import RunningServer, token, upload

ANALYSES = "/api/v1/analyses"


@contextmanager
def serving(settings: Settings, **changes: object) -> Iterator[httpx.Client]:
    """A client with a token of its own, of a server with these settings."""
    changed = settings.model_copy(update=changes)
    headers = {"Authorization": f"Bearer {token(changed)}"}
    with RunningServer(changed) as server, httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client


def refusal(response: httpx.Response) -> dict[str, object]:
    """The details of a refusal, which says all there is to say."""
    assert response.status_code == 429
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["code"], problem["status"]) == ("limit-reached", 429)
    details = problem["details"]
    assert response.headers["retry-after"] == str(details["retry_after_s"])
    assert f"{details['allowed']:,}" in problem["detail"]
    assert int(response.headers["retry-after"]) >= 1
    assert isinstance(details, dict)
    return details


def test_a_caller_in_a_loop_is_refused_and_others_are_not(embedded_settings: Settings) -> None:
    with serving(embedded_settings, request_rate=5) as client:
        assert [client.get(ANALYSES).status_code for _ in range(5)] == [200] * 5
        details = refusal(client.get(ANALYSES))
        assert (details["limit"], details["allowed"], details["used"]) == ("request_rate", 5, 5)
        twisted = {"Authorization": client.headers["authorization"].replace("Bearer ", "bEARER   ")}
        refusal(client.get(ANALYSES, headers=twisted))
        other = {"Authorization": f"Bearer {token(embedded_settings)}"}
        assert client.get(ANALYSES, headers=other).status_code == 200
        with httpx.Client(base_url=client.base_url) as nobody:
            assert {nobody.get("/healthz").status_code for _ in range(20)} == {200}


def test_a_browser_that_asks_too_often_gets_a_page(embedded_settings: Settings) -> None:
    with serving(embedded_settings, request_rate=1) as client:
        browser = {"Accept": "text/html", "Cookie": "gradproof_session=x"}
        with httpx.Client(base_url=client.base_url, headers=browser) as asking:
            asking.get("/rules")
            response = asking.get("/rules")
    assert response.status_code == 429
    assert response.headers["content-type"].startswith("text/html")
    assert "Too much was asked for" in response.text


def test_reading_writes_nothing_for_its_limit(embedded_settings: Settings) -> None:
    with serving(embedded_settings, request_rate=1_000) as client:
        client.get(ANALYSES)  # notes that the token was used
        file = embedded_settings.effective_database_url.removeprefix("sqlite:///")
        with open(f"{file}-wal", "rb") as log:  # noqa: PTH123
            before = log.read()
        for _ in range(10):
            client.get(ANALYSES)
        with open(f"{file}-wal", "rb") as log:  # noqa: PTH123
            assert log.read() == before


@pytest.mark.parametrize(
    ("limit", "project"),
    [
        ("submission_rate", {}),
        ("open_analyses_of_caller", {}),
        ("open_analyses_of_project", {"project": "vision"}),
        ("open_analyses", {}),
    ],
)
def test_each_limit_of_submissions_holds_for_two_processes_together(
    service_settings: Settings, limit: str, project: dict[str, str]
) -> None:
    changed = service_settings.model_copy(update={limit: 3})
    headers = {"Authorization": f"Bearer {token(changed)}"}
    with RunningServer(changed) as first, RunningServer(changed) as second:
        servers = [first, second, first, second]
        answers = [
            httpx.post(server.url + ANALYSES, files=upload(), data=project, headers=headers, timeout=30)
            for server in servers
        ]
        assert [answer.status_code for answer in answers[:3]] == [202] * 3
        details = refusal(answers[3])
        assert (details["limit"], details["allowed"], details["used"]) == (limit, 3, 3)
        # What was accepted before can be asked for again, and what has ended makes room.
        httpx.post(first.url + answers[0].json()["links"]["self"] + "/cancel", headers=headers)
        again = httpx.post(second.url + ANALYSES, files=upload(), data=project, headers=headers, timeout=30)
        assert again.status_code == (429 if limit == "submission_rate" else 202)


def test_the_limits_of_one_caller_or_project_are_not_those_of_another(embedded_settings: Settings) -> None:
    with serving(embedded_settings, open_analyses_of_caller=1, open_analyses_of_project=1) as client:
        other = {"Authorization": f"Bearer {token(embedded_settings)}"}
        assert client.post(ANALYSES, files=upload(), data={"project": "a"}).status_code == 202
        assert refusal(client.post(ANALYSES, files=upload()))["limit"] == "open_analyses_of_caller"
        refused = client.post(ANALYSES, files=upload(), data={"project": "a"}, headers=other)
        assert refusal(refused)["limit"] == "open_analyses_of_project"
        assert client.post(ANALYSES, files=upload(), data={"project": "b"}, headers=other).status_code == 202


def test_a_base_is_not_run_for_an_analysis_that_is_refused(embedded_settings: Settings) -> None:
    with serving(embedded_settings, open_analyses=2) as client:
        assert client.post(ANALYSES, files=upload()).status_code == 202
        both = {"git_url": "https://github.com/example/vision", "ref": "main", "base_ref": "v1"}
        refused = client.post(ANALYSES, json=both)
        assert refusal(refused)["used"] == 1
        assert "this takes 2 more" in refused.json()["detail"]
        assert len(client.get(ANALYSES).json()["items"]) == 1
        assert client.post(ANALYSES, files=upload()).status_code == 202


def test_a_repeated_submission_gives_its_analysis_even_where_no_other_would_be_taken(
    embedded_settings: Settings,
) -> None:
    with serving(embedded_settings, open_analyses=1) as client:
        key = {"Idempotency-Key": "once"}
        first = client.post(ANALYSES, files=upload(), headers=key)
        again = client.post(ANALYSES, files=upload(), headers=key)
        assert (first.status_code, again.status_code) == (202, 202)
        assert again.json()["id"] == first.json()["id"]
        refusal(client.post(ANALYSES, files=upload()))
