"""Check runs: their life, annotations that are appended, caps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.forge_fake.application import LINES, App, changed
from tools.fake_forge import FakeForge
from tools.fake_forge.world import PullRequest

RUNS = "/repos/octo/demo/check-runs"


@pytest.fixture
def pull(forge: FakeForge) -> PullRequest:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    return forge.open_pull_request(repository, {"a.py": changed(3)})


def annotation(line: int = 3, **more: Any) -> dict[str, Any]:
    told = {"path": "a.py", "start_line": line, "end_line": line, "annotation_level": "warning", "message": "m"}
    return told | more


def output(*annotations: dict[str, Any]) -> dict[str, Any]:
    return {"title": "Three findings", "summary": "…", "annotations": list(annotations)}


def test_a_run_goes_from_queued_to_completed(forge: FakeForge, app: App, pull: PullRequest) -> None:
    run = app.post(RUNS, {"name": "gradproof", "head_sha": pull.head_sha, "external_id": "7"}).json()
    assert (run["status"], run["conclusion"], run["completed_at"]) == ("queued", None, None)
    address = f"{RUNS}/{run['id']}"
    assert app.patch(address, {"status": "in_progress"}).json()["status"] == "in_progress"
    done = app.patch(address, {"conclusion": "neutral", "output": output(annotation())}).json()
    assert (done["status"], done["conclusion"], done["output"]["annotations_count"]) == ("completed", "neutral", 1)
    (known,) = forge.check_runs(pull)
    assert known.history == ["queued", "in_progress", "completed"]
    assert forge.writes() == {"check_run.create": 1, "check_run.update": 2}
    assert forge.violations == []


def test_annotations_are_appended_so_that_a_retry_doubles_them(forge: FakeForge, app: App, pull: PullRequest) -> None:
    run = app.post(RUNS, {"name": "gradproof", "head_sha": pull.head_sha}).json()
    body = {"output": output(*(annotation(line) for line in range(1, 41)))}
    for _ in range(2):
        app.patch(f"{RUNS}/{run['id']}", body)
    assert len(forge.check_runs(pull)[0].annotations) == 80
    listed = app.get(f"{RUNS}/{run['id']}/annotations", params={"per_page": 100})
    assert len(listed.json()) == 80
    assert listed.json()[0]["blob_href"].endswith(f"{pull.head_sha}/a.py")


@pytest.mark.parametrize(
    "wrong",
    [
        {"output": output(*(annotation() for _ in range(51)))},
        {"output": {"title": "t", "summary": "s" * 65_536}},
        {"output": {"title": "t", "summary": "s", "text": "s" * 65_536}},
        {"output": output(annotation(end_line=4, start_column=1, end_column=2))},
        {"output": output(annotation(start_column=5, end_column=2))},
        {"output": output(annotation(title="t" * 256))},
        {"output": output(annotation(message="é" * 32_769))},
        {"output": output(annotation(raw_details="d" * 65_537))},
        {"output": output(annotation(end_line=2))},
        {"output": output(annotation(annotation_level="error"))},
        {"output": {"summary": "s", "anotations": []}},
        {"status": "completed"},
        {"conclusion": "passed"},
        {"conclusion": "stale"},
        {"actions": [{"label": "l", "description": "d", "identifier": "i"}] * 4},
        {"actions": [{"label": "l" * 21, "description": "d", "identifier": "i"}]},
        {"actions": [{"label": "l", "description": "d" * 41, "identifier": "i"}]},
        {"actions": [{"label": "l", "description": "d", "identifier": "i" * 21}]},
    ],
    ids=[
        "51 annotations",
        "summary over 65,535",
        "text over 65,535",
        "columns over two lines",
        "columns backwards",
        "title over 255",
        "message over 64 KB",
        "raw details over 64 KB",
        "lines backwards",
        "level of our own",
        "a misspelt field",
        "completed without conclusion",
        "conclusion of our own",
        "conclusion of GitHub's own",
        "four actions",
        "label over 20",
        "description over 40",
        "identifier over 20",
    ],
)
def test_what_github_refuses_changes_nothing(
    forge: FakeForge, app: App, pull: PullRequest, wrong: dict[str, Any]
) -> None:
    run = app.post(RUNS, {"name": "gradproof", "head_sha": pull.head_sha}).json()
    answer = app.patch(f"{RUNS}/{run['id']}", wrong)
    assert answer.status_code == 422
    (known,) = forge.check_runs(pull)
    assert (known.annotations, known.status, known.summary) == ([], "queued", None)
    assert forge.writes() == {"check_run.create": 1}


def test_runs_are_found_by_commit_name_and_app(forge: FakeForge, app: App, pull: PullRequest) -> None:
    for external in ("1", "2"):
        app.post(RUNS, {"name": "gradproof", "head_sha": pull.head_sha, "external_id": external})
    app.post(RUNS, {"name": "other", "head_sha": pull.head_sha})
    address = f"/repos/octo/demo/commits/{pull.head_sha}/check-runs"
    mine: dict[str, Any] = {"check_name": "gradproof", "app_id": forge.app_id}
    assert [each["external_id"] for each in app.get(address, params=mine).json()["check_runs"]] == ["2"]
    everything = app.get(address, params=mine | {"filter": "all"}).json()
    assert (everything["total_count"], everything["check_runs"][0]["external_id"]) == (2, "2")
    assert app.get(address, params={"app_id": 1}).json()["total_count"] == 0
    assert forge.violations == []


def test_a_run_of_an_unknown_commit_is_refused(forge: FakeForge, app: App, pull: PullRequest) -> None:
    assert app.post(RUNS, {"name": "gradproof", "head_sha": "0" * 40}).status_code == 422
    assert app.get(f"{RUNS}/1").status_code == 404
    assert forge.check_runs() == []
