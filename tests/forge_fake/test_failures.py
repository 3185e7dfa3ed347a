"""What goes wrong on purpose: limits, errors before and after a write, cut connections; and GitHub's own limits."""

from __future__ import annotations

import threading

import httpx
import pytest

from tests.forge_fake.application import LINES, App, changed
from tools.fake_forge import FakeForge, failures
from tools.fake_forge.world import PullRequest

COMMENTS = "/repos/octo/demo/issues/1/comments"


@pytest.fixture
def pull(forge: FakeForge, app: App) -> PullRequest:
    """A pull request, and a token fetched before anything fails."""
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    assert app.token
    return forge.open_pull_request(repository, {"a.py": changed(3)})


def test_a_failure_takes_the_requests_that_match_and_no_more(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.server_error(502), "POST", r"/issues/\d+/comments$", times=2)
    assert app.get(COMMENTS).status_code == 200
    assert [app.post(COMMENTS, {"body": "one"}).status_code for _ in range(3)] == [502, 502, 201]
    assert len(forge.comments(pull)) == 1
    told = [(each.status, each.failure) for each in forge.requests if each.method == "POST" and each.path == COMMENTS]
    assert told == [(502, "error_502"), (502, "error_502"), (201, None)]
    forge.fail(failures.server_error(500), times=None)
    assert {app.get(COMMENTS).status_code for _ in range(3)} == {500}
    forge.heal()
    assert app.get(COMMENTS).status_code == 200


def test_an_error_after_a_write_has_written(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.error_after(502), "POST", "/comments")
    assert app.post(COMMENTS, {"body": "one"}).status_code == 502
    assert [each.body for each in forge.comments(pull)] == ["one"]
    assert forge.writes() == {"comment.create": 1}


@pytest.mark.parametrize("failure", [failures.cut_before(), failures.cut_after()], ids=["before", "after"])
def test_the_connection_is_cut(forge: FakeForge, app: App, pull: PullRequest, failure: failures.Failure) -> None:
    forge.fail(failure, "POST", "/comments")
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        app.post(COMMENTS, {"body": "one"})
    assert len(forge.comments(pull)) == int(failure.after)
    assert forge.requests[-1].status is None
    assert app.get(COMMENTS).status_code == 200


def test_the_primary_limit(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.primary_limit(403))
    forge.fail(failures.primary_limit(429))
    for status in (403, 429):
        answer = app.get(COMMENTS)
        assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (status, "0")
        assert int(answer.headers["x-ratelimit-reset"]) > forge.clock.now().timestamp()
        assert "retry-after" not in answer.headers


def test_the_secondary_limit(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.secondary_limit(retry_after=30))
    forge.fail(failures.secondary_limit(retry_after=None))
    told, silent = app.post(COMMENTS, {"body": "one"}), app.post(COMMENTS, {"body": "one"})
    assert (told.status_code, told.headers["retry-after"]) == (403, "30")
    assert (silent.status_code, "retry-after" in silent.headers) == (403, False)
    assert all("secondary rate limit" in each.json()["message"] for each in (told, silent))
    assert forge.comments(pull) == []


def test_the_limit_of_graphql_is_told_with_200(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.graphql_limit(), "POST", "/graphql")
    answer = app.post("/graphql", {"query": "{ viewer { login } }"})
    assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (200, "0")
    assert answer.json()["errors"][0]["type"] == "RATE_LIMITED"


def test_errors_of_the_way_are_no_json(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.server_error(502))
    forge.fail(failures.server_error(500))
    assert app.get(COMMENTS).headers["content-type"].startswith("text/html")
    assert app.get(COMMENTS).json()["message"] == "Server Error"


def test_an_answer_is_late_while_the_write_is_done(forge: FakeForge, app: App, pull: PullRequest) -> None:
    hold = forge.hold("POST", "/comments", after=True)
    asking = threading.Thread(target=lambda: app.post(COMMENTS, {"body": "one"}))
    asking.start()
    hold.wait_reached()
    assert [each.body for each in forge.comments(pull)] == ["one"]
    hold.release()
    asking.join()


def test_a_token_expires_early(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.expired_token(), "GET", "/comments")
    answer = app.get(COMMENTS)
    assert (answer.status_code, answer.json()["message"]) == (401, "Bad credentials")


def test_a_slow_answer_leaves_time_for_a_push(forge: FakeForge, app: App, pull: PullRequest) -> None:
    stale = pull.head_sha
    hold = forge.hold("POST", "/check-runs")
    answers = []
    body = {"name": "gradproof", "head_sha": stale}
    asking = threading.Thread(target=lambda: answers.append(app.post("/repos/octo/demo/check-runs", body)))
    asking.start()
    hold.wait_reached()
    assert forge.force_push(pull, {"a.py": changed(7)}) != stale
    assert (answers, forge.check_runs()) == ([], [])
    assert forge.most_at_once == 1
    assert app.get(COMMENTS).status_code == 200
    assert forge.most_at_once == 2
    hold.release()
    asking.join()
    assert answers[0].status_code == 201
    assert [run.head_sha for run in forge.check_runs()] == [stale]


def test_git_fails_too(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.fail(failures.server_error(503), path=r"\.git/info/refs")
    address = f"{forge.url}/octo/demo.git/info/refs?service=git-upload-pack"
    assert [app.http.get(address).status_code for _ in range(2)] == [503, 401]
    assert [each.operation for each in forge.requests[-2:]] == ["git", "git"]


def test_the_limit_counts_down_and_comes_back(forge: FakeForge, app: App, pull: PullRequest) -> None:
    forge.installation("octo").limit = 3
    answers = [app.get(COMMENTS) for _ in range(4)]
    assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["2", "1", "0", "0"]
    assert [each.status_code for each in answers] == [200, 200, 200, 403]
    assert app.get("/rate_limit").json()["rate"]["remaining"] == 0
    forge.clock.advance(hours=1)
    app.use(app.new_token().json()["token"])
    assert app.get(COMMENTS).headers["x-ratelimit-remaining"] == "2"


def test_what_has_not_changed_is_a_304_and_not_counted(forge: FakeForge, app: App, pull: PullRequest) -> None:
    first = app.get(COMMENTS)
    known = {"if-none-match": first.headers["etag"]}
    again = app.get(COMMENTS, headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["x-ratelimit-remaining"] == first.headers["x-ratelimit-remaining"]
    forge.comment(pull, "news")
    assert app.get(COMMENTS, headers=known).status_code == 200


def test_what_github_does_not_describe_is_a_violation(forge: FakeForge, app: App, pull: PullRequest) -> None:
    assert app.post(COMMENTS, {"text": "one"}).status_code == 422
    assert app.get(COMMENTS, params={"limit": 3}).status_code == 422
    assert [each.partition(":")[0] for each in forge.violations] == [
        "body, as a whole",
        "body, as a whole",
        "GET /repos/{owner}/{repo}/issues/{issue_number}/comments has no query parameter 'limit'",
    ]
    assert app.get("/repos/octo/demo/issues/1/events").status_code == 404


def test_a_version_that_github_does_not_know_is_a_400(forge: FakeForge, app: App, pull: PullRequest) -> None:
    for version, status in (("2022-11-28", 200), ("2021-01-01", 400)):
        assert app.get(COMMENTS, headers={"x-github-api-version": version}).status_code == status


def test_requests_are_remembered_without_their_secrets(forge: FakeForge, app: App, pull: PullRequest) -> None:
    app.post(COMMENTS, {"body": "one"})
    asked = forge.requests[-1]
    assert (asked.method, asked.path, asked.body, asked.wrote) == ("POST", COMMENTS, {"body": "one"}, "comment.create")
    assert app.token not in repr(forge.requests)
