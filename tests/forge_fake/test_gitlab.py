"""The small GitLab: merge requests, notes, discussions on the diff, statuses, webhooks with a token or a signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.forge_fake.application import LINES, Receiver, changed, git
from tools.fake_forge import FakeForge, failures
from tools.fake_forge.gitlab.state import GUEST, MAINTAINER, REPORTER, MergeRequest, Project

REQUEST = "/projects/501/merge_requests/1"
NOTES = f"{REQUEST}/notes"
DISCUSSIONS = f"{REQUEST}/discussions"


@pytest.fixture
def project(forge: FakeForge) -> Project:
    return forge.gitlab.create_project("octo/tools/demo", {"a.py": LINES})


@pytest.fixture
def merge_request(forge: FakeForge, project: Project) -> MergeRequest:
    return forge.gitlab.open_merge_request(project, {"a.py": changed(3, 30)})


@pytest.fixture
def api(forge: FakeForge, project: Project) -> Iterator[httpx.Client]:
    headers = {"private-token": forge.gitlab.token}
    with httpx.Client(base_url=f"{forge.url}/api/v4", headers=headers, verify=False, timeout=20) as client:
        yield client


def place(merge_request: MergeRequest, **lines: Any) -> dict[str, Any]:
    shas = {"base_sha": merge_request.base_sha, "start_sha": merge_request.start_sha}
    told = {"head_sha": merge_request.head_sha, "position_type": "text", "old_path": "a.py", "new_path": "a.py"}
    return shas | told | lines


def test_a_project_is_found_by_number_and_by_path(forge: FakeForge, api: httpx.Client) -> None:
    told = api.get("/projects/501").json()
    assert told["path_with_namespace"] == "octo/tools/demo"
    assert api.get("/projects/octo%2Ftools%2Fdemo").json() == told
    assert api.get("/projects/octo%2Fnone").json() == {"message": "404 Project Not Found"}
    assert httpx.get(f"{forge.url}/api/v4/projects/501", verify=False).status_code == 404
    assert api.get("/projects/501", headers={"private-token": "glpat-wrong"}).status_code == 401


def test_a_merge_request_tells_of_its_diff(api: httpx.Client, merge_request: MergeRequest) -> None:
    told = api.get(REQUEST).json()
    assert told["diff_refs"] == {
        "base_sha": merge_request.base_sha,
        "start_sha": merge_request.start_sha,
        "head_sha": merge_request.head_sha,
    }
    (changed_file,) = api.get(f"{REQUEST}/diffs").json()
    assert changed_file["diff"].startswith("@@ -1,6 +1,6 @@\n")
    assert api.get(f"{REQUEST}/changes").json()["changes"] == [changed_file]
    (found,) = api.get(f"/projects/501/repository/commits/{merge_request.head_sha}/merge_requests").json()
    assert (found["iid"], "diff_refs" in found) == (1, False)
    params = {"refs[]": ["main", merge_request.head_sha]}
    assert api.get("/projects/501/repository/merge_base", params=params).json()["id"] == merge_request.base_sha
    params = {"refs[]": ["main", "nowhere"]}
    assert api.get("/projects/501/repository/merge_base", params=params).status_code == 400
    assert api.get("/projects/octo%2Ftools%2Fdemo/repository/branches/feature").json()["name"] == "feature"


def test_notes_are_listed_in_pages_newest_first(
    forge: FakeForge, api: httpx.Client, merge_request: MergeRequest
) -> None:
    for number in range(45):
        forge.gitlab.comment(merge_request, f"note {number}")
    answer = api.get(NOTES)
    assert (len(answer.json()), answer.json()[0]["body"], answer.headers["x-next-page"]) == (20, "note 44", "2")
    seen = answer.json()
    while "next" in answer.links:
        answer = api.get(answer.links["next"]["url"])
        seen += answer.json()
    assert [each["body"] for each in seen] == [f"note {number}" for number in reversed(range(45))]
    assert (answer.headers["x-total"], answer.headers["x-next-page"]) == ("45", "")
    assert api.get(NOTES, params={"sort": "asc"}).json()[0]["body"] == "note 0"


def test_a_push_leaves_a_note_of_the_system(forge: FakeForge, api: httpx.Client, merge_request: MergeRequest) -> None:
    forge.gitlab.push(merge_request, {"b.py": "x\n"})
    (note,) = api.get(NOTES).json()
    assert (note["system"], note["body"]) == (True, "added 1 commit")
    assert forge.gitlab.notes(merge_request) == []


def test_a_note_is_made_changed_and_deleted(forge: FakeForge, api: httpx.Client, merge_request: MergeRequest) -> None:
    made = api.post(NOTES, json={"body": "one"}).json()
    assert (made["author"]["username"], made["resolvable"]) == (forge.gitlab.bot, False)
    address = f"{NOTES}/{made['id']}"
    assert api.put(address, json={"body": "two"}).json()["body"] == "two"
    assert api.post(f"{address}/award_emoji", json={"name": "eyes"}).status_code == 201
    assert api.post(f"{address}/award_emoji", json={"name": "eyes"}).status_code == 404
    assert api.delete(address).status_code == 204
    assert api.put(address, json={"body": "three"}).status_code == 404
    theirs = forge.gitlab.comment(merge_request, "mine")
    assert api.put(f"{NOTES}/{theirs.id}", json={"body": "x"}).status_code == 403
    assert api.delete(f"{NOTES}/{theirs.id}").status_code == 403
    assert forge.writes() == {"note.create": 1, "note.update": 1, "note.delete": 1, "award.create": 1}
    assert forge.violations == []
    assert api.post(NOTES, json={"text": "one"}).status_code == 400
    assert len(forge.violations) == 2


def test_discussions_begin_at_lines_of_the_diff(
    forge: FakeForge, api: httpx.Client, merge_request: MergeRequest
) -> None:
    good: tuple[dict[str, Any], ...] = ({"new_line": 3}, {"old_line": 3}, {"old_line": 2, "new_line": 2})
    for lines in good:
        answer = api.post(DISCUSSIONS, json={"body": "a fault", "position": place(merge_request, **lines)})
        assert answer.status_code == 201
        (note,) = answer.json()["notes"]
        assert (note["type"], note["resolvable"], note["resolved"]) == ("DiffNote", True, False)
    wrong: tuple[dict[str, Any], ...] = (
        {"new_line": 15},
        {"new_line": 2},
        {"old_line": 2, "new_line": 3},
        {"new_line": 3, "new_path": "b.py"},
        {"new_line": 3, "head_sha": "0" * 40},
    )
    for lines in wrong:
        answer = api.post(DISCUSSIONS, json={"body": "a fault", "position": place(merge_request, **lines)})
        assert answer.status_code == 400
        assert "must be a valid line code" in answer.json()["message"]
    assert len(forge.gitlab.discussions(merge_request)) == len(good)
    assert forge.writes() == {"discussion.create": len(good)}


def test_discussions_are_answered_resolved_and_deleted(
    forge: FakeForge, api: httpx.Client, merge_request: MergeRequest
) -> None:
    told = api.post(DISCUSSIONS, json={"body": "a fault", "position": place(merge_request, new_line=3)}).json()
    (discussion,) = forge.gitlab.discussions(merge_request)
    address = f"{DISCUSSIONS}/{told['id']}"
    for _ in range(2):
        resolved = api.put(address, params={"resolved": "true"}).json()["notes"][0]
        assert (resolved["resolved"], resolved["resolved_by"]["username"]) == (True, forge.gitlab.bot)
    assert api.put(address, json={"resolved": False}).json()["notes"][0]["resolved"] is False
    forge.gitlab.reply(discussion, "Is that so?", by="mia")
    answer = api.post(f"{address}/notes", json={"body": "It is."}).json()
    assert api.put(f"{address}/notes/{answer['id']}", json={"body": "It was."}).status_code == 200
    assert api.delete(f"{address}/notes/{answer['id']}").status_code == 204
    assert [note.body for note in forge.gitlab.notes(merge_request)] == ["a fault", "Is that so?"]
    assert forge.writes() == {
        "discussion.create": 1,
        "discussion.resolve": 1,
        "discussion.unresolve": 1,
        "discussion.reply": 1,
        "note.update": 1,
        "note.delete": 1,
    }
    assert forge.violations == []


def test_a_position_follows_its_line_until_that_changes(
    forge: FakeForge, api: httpx.Client, merge_request: MergeRequest
) -> None:
    for line in (3, 30):
        api.post(DISCUSSIONS, json={"body": "a fault", "position": place(merge_request, new_line=line)})
    old = merge_request.head_sha
    new = forge.gitlab.push(merge_request, {"a.py": "first\n" + changed(3)})
    kept, outdated = (each["notes"][0]["position"] for each in api.get(DISCUSSIONS).json()[:2])
    assert (kept["new_line"], kept["head_sha"]) == (4, new)
    assert (outdated["new_line"], outdated["head_sha"]) == (30, old)


def test_a_status_is_a_state_machine(forge: FakeForge, api: httpx.Client, merge_request: MergeRequest) -> None:
    address = f"/projects/501/statuses/{merge_request.head_sha}"
    states = ("pending", "pending", "running", "pending", "running", "success", "running")
    answers = [api.post(address, json={"state": state, "name": "gradproof"}) for state in states]
    assert [each.status_code for each in answers] == [201, 400, 201, 400, 400, 201, 201]
    assert answers[1].json()["message"] == "Cannot transition status via :enqueue from :pending"
    (status,) = forge.gitlab.statuses(merge_request.project, merge_request.head_sha)
    assert status.history == ["pending", "running", "success", "running"]
    assert forge.writes() == {"status.create": 4}
    assert api.post(f"/projects/501/statuses/{'0' * 40}", json={"state": "pending"}).status_code == 404
    assert api.post(address, json={"state": "pending", "description": "x" * 256}).status_code == 400


def test_access_levels_decide(forge: FakeForge, api: httpx.Client, merge_request: MergeRequest) -> None:
    project = merge_request.project
    forge.gitlab.set_access(project, "mia", MAINTAINER)
    address = "/projects/501/members/all/{}"
    assert api.get(address.format(forge.gitlab.user_id("mia"))).json()["access_level"] == 40
    assert api.get(address.format(forge.gitlab.user_id("eve"))).status_code == 404
    forge.gitlab.set_access(project, forge.gitlab.bot, REPORTER)
    assert api.post(NOTES, json={"body": "one"}).status_code == 201
    status = {"state": "pending"}
    assert api.post(f"/projects/501/statuses/{merge_request.head_sha}", json=status).status_code == 403
    forge.gitlab.set_access(project, forge.gitlab.bot, GUEST)
    assert api.post(NOTES, json={"body": "one"}).status_code == 403
    forge.gitlab.set_access(project, forge.gitlab.bot, 0)
    assert api.get(REQUEST).status_code == 404


def test_tokens_end(forge: FakeForge, api: httpx.Client) -> None:
    headers = {"private-token": "", "authorization": f"Bearer {forge.gitlab.new_token(hours=1)}"}
    told = api.get("/user", headers=headers).json()
    assert (told["username"], told["bot"]) == (forge.gitlab.bot, True)
    forge.clock.advance(hours=1)
    assert api.get("/user", headers=headers).json() == {"error": "invalid_token"}
    forge.gitlab.revoke(forge.gitlab.token)
    assert api.get("/user").status_code == 401


def test_git_clones_with_a_token(forge: FakeForge, merge_request: MergeRequest) -> None:
    fork = forge.gitlab.open_merge_request(merge_request.project, {"b.py": "x\n"}, by="eve", fork=True)
    address = forge.gitlab.clone_url(merge_request.project)
    assert git(forge, "ls-remote", address).returncode != 0
    listed = git(forge, "ls-remote", address, "refs/merge-requests/2/head", token=forge.gitlab.token)
    assert listed.stdout.split() == [fork.head_sha, "refs/merge-requests/2/head"]


def test_webhooks_carry_the_plain_token(forge: FakeForge, project: Project) -> None:
    with Receiver() as receiver:
        forge.gitlab.webhook_url = receiver.url
        merge_request = forge.gitlab.open_merge_request(project, {"a.py": changed(3)})
        old = merge_request.head_sha
        forge.gitlab.push(merge_request, {"a.py": changed(3, 5)})
        forge.gitlab.comment(merge_request, "/gradproof rerun")
        forge.gitlab.close_merge_request(merge_request)
        forge.gitlab.reopen_merge_request(merge_request)
        forge.gitlab.merge(merge_request)
        forge.gitlab.redeliver(forge.gitlab.deliveries[0])
    told = [(got.headers["x-gitlab-event"], json.loads(got.body)) for got in receiver.got]
    assert [(event, body.get("object_attributes", {}).get("action")) for event, body in told[:-1]] == [
        ("Push Hook", None),
        ("Merge Request Hook", "open"),
        ("Push Hook", None),
        ("Merge Request Hook", "update"),
        ("Note Hook", "create"),
        ("Merge Request Hook", "close"),
        ("Merge Request Hook", "reopen"),
        ("Push Hook", None),
        ("Merge Request Hook", "merge"),
    ]
    assert told[3][1]["object_attributes"]["oldrev"] == old
    assert told[4][1]["merge_request"]["iid"] == 1
    assert {got.headers["x-gitlab-token"] for got in receiver.got} == {forge.gitlab.webhook_token}
    assert not any("webhook-signature" in got.headers for got in receiver.got)
    first, again = receiver.got[0], receiver.got[-1]
    assert (first.body, first.headers["idempotency-key"]) == (again.body, again.headers["idempotency-key"])


def test_webhooks_are_signed_as_standard_webhooks(forge: FakeForge, project: Project) -> None:
    key = bytes(range(32))
    forge.gitlab.webhook_token, forge.gitlab.signing_token = None, f"whsec_{base64.b64encode(key).decode()}"
    with Receiver() as receiver:
        forge.gitlab.webhook_url = receiver.url
        forge.gitlab.open_merge_request(project, {"a.py": changed(3)}, title="Größe")
        forge.gitlab.send("Push Hook", {}, webhook_signature=None, x_gitlab_token="é".encode())
    for got in receiver.got[:2]:
        told = got.headers
        signed = f"{told['webhook-id']}.{told['webhook-timestamp']}.".encode() + got.body
        digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert told["webhook-signature"] == f"v1,{digest}"
        assert told["webhook-id"] == told["idempotency-key"]
        assert "x-gitlab-token" not in told
    forged = receiver.got[2].headers
    assert ("webhook-signature" in forged, forged["x-gitlab-token"].encode("latin-1")) == (False, "é".encode())


def test_failures_are_the_same_as_githubs(forge: FakeForge, api: httpx.Client, merge_request: MergeRequest) -> None:
    forge.fail(failures.gitlab_limit(retry_after=30), "POST", "/notes")
    forge.fail(failures.cut_after(), "POST", "/notes")
    limited = api.post(NOTES, json={"body": "one"})
    assert (limited.status_code, limited.headers["retry-after"], limited.text) == (429, "30", "Retry later\n")
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        api.post(NOTES, json={"body": "two"})
    assert [note.body for note in forge.gitlab.notes(merge_request)] == ["two"]
    assert [each.status for each in forge.requests] == [429, None]
    assert forge.gitlab.token not in repr(forge.requests)
