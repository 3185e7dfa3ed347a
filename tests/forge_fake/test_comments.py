"""Comments of the conversation, reviews on lines of the diff, threads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.forge_fake.application import LINES, App, changed
from tools.fake_forge import FakeForge
from tools.fake_forge.world import PullRequest

COMMENTS = "/repos/octo/demo/issues/1/comments"
REVIEWS = "/repos/octo/demo/pulls/1/reviews"
THREADS = """
query($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) { pullRequest(number: $number) {
    reviewThreads(first: 2, after: $after) {
      pageInfo { hasNextPage endCursor }
      nodes { id isResolved isOutdated line
        comments(first: 100) { nodes { databaseId author { __typename login } body isMinimized } } }
    } } }
}"""
RESOLVE = "mutation($id: ID!) { resolveReviewThread(input: {threadId: $id}) { thread { isResolved } } }"
UNRESOLVE = "mutation($id: ID!) { unresolveReviewThread(input: {threadId: $id}) { thread { isResolved } } }"
MINIMIZE = """
mutation($id: ID!) { minimizeComment(input: {subjectId: $id, classifier: RESOLVED}) {
  minimizedComment { isMinimized minimizedReason } } }"""


@pytest.fixture
def pull(forge: FakeForge) -> PullRequest:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    return forge.open_pull_request(repository, {"a.py": changed(3, 5, 30)})


def review(app: App, pull: PullRequest, *places: dict[str, Any]) -> Any:
    comments = [{"path": "a.py", "side": "RIGHT", "body": "a fault"} | place for place in places]
    return app.post(REVIEWS, {"commit_id": pull.head_sha, "event": "COMMENT", "body": "b", "comments": comments})


def threads(app: App, after: str | None = None) -> dict[str, Any]:
    told = app.graphql(THREADS, owner="octo", name="demo", number=1, after=after)
    assert "errors" not in told
    return told["data"]["repository"]["pullRequest"]["reviewThreads"]  # type: ignore[no-any-return]


def test_a_comment_is_made_changed_and_deleted(forge: FakeForge, app: App, pull: PullRequest) -> None:
    made = app.post(COMMENTS, {"body": "one"}).json()
    assert (made["user"]["login"], made["user"]["type"]) == (forge.bot, "Bot")
    assert made["performed_via_github_app"]["id"] == forge.app_id
    address = f"/repos/octo/demo/issues/comments/{made['id']}"
    assert app.patch(address, {"body": "two"}).json()["body"] == "two"
    assert app.delete(address).status_code == 204
    assert [app.get(address).status_code, app.patch(address, {"body": "three"}).status_code] == [404, 404]
    assert forge.writes() == {"comment.create": 1, "comment.update": 1, "comment.delete": 1}
    assert forge.violations == []


def test_a_comment_that_a_person_deleted_is_gone(forge: FakeForge, app: App, pull: PullRequest) -> None:
    made = app.post(COMMENTS, {"body": "one"}).json()
    forge.comment(pull, "I don't want that", by="mia")
    forge.delete_comment(forge.comments(pull)[0], by="mia")
    assert app.patch(f"/repos/octo/demo/issues/comments/{made['id']}", {"body": "two"}).status_code == 404
    assert [each["user"]["login"] for each in app.get(COMMENTS).json()] == ["mia"]
    assert forge.violations == []


def test_a_comment_has_65536_characters_at_most(forge: FakeForge, app: App, pull: PullRequest) -> None:
    assert app.post(COMMENTS, {"body": "x" * 65_536}).status_code == 201
    answer = app.post(COMMENTS, {"body": "x" * 65_537})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"] == "body is too long (maximum is 65536 characters)"
    assert app.post(COMMENTS, {"body": " "}).status_code == 422


def test_a_reaction_is_given_once(forge: FakeForge, app: App, pull: PullRequest) -> None:
    comment = forge.comment(pull, "/gradproof rerun")
    address = f"/repos/octo/demo/issues/comments/{comment.id}/reactions"
    assert [app.post(address, {"content": "eyes"}).status_code for _ in range(2)] == [201, 200]
    assert forge.writes() == {"reaction.create": 1}


def test_a_review_comments_on_lines(forge: FakeForge, app: App, pull: PullRequest) -> None:
    made = review(app, pull, {"line": 3}, {"start_line": 29, "line": 31}, {"line": 5, "side": "LEFT"})
    assert (made.status_code, made.json()["state"]) == (200, "COMMENTED")
    one, two, three = app.get("/repos/octo/demo/pulls/1/comments").json()
    assert (one["line"], one["side"], one["diff_hunk"].splitlines()[-1]) == (3, "RIGHT", "+new line 3")
    assert (two["start_line"], two["line"]) == (29, 31)
    assert (three["side"], three["diff_hunk"].splitlines()[-1]) == ("LEFT", "-line 5")
    assert forge.writes() == {"review.create": 1}
    assert forge.violations == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"line": 15}, "Line could not be resolved"),
        ({}, "Line could not be resolved"),
        ({"path": "b.py", "line": 3}, "Path could not be resolved"),
        ({"start_line": 5, "line": 30}, "Start line must be part of the same hunk as the line."),
        ({"start_line": 5, "line": 3}, "Start line must precede the end line."),
    ],
    ids=["a line outside", "no line", "a file outside", "two hunks", "backwards"],
)
def test_a_review_outside_the_diff_fails_as_a_whole(
    forge: FakeForge, app: App, pull: PullRequest, place: dict[str, Any], message: str
) -> None:
    answer = review(app, pull, {"line": 3}, place)
    assert (answer.status_code, answer.json()["errors"]) == (422, [message])
    assert (forge.threads(pull), app.get(REVIEWS).json(), forge.writes()) == ([], [], {})


def test_a_review_knows_no_comments_on_files(forge: FakeForge, app: App, pull: PullRequest) -> None:
    assert review(app, pull, {"subject_type": "file"}).status_code == 422
    assert len(forge.violations) == 1
    body = {"body": "the whole file", "commit_id": pull.head_sha, "path": "a.py", "subject_type": "file"}
    assert app.post("/repos/octo/demo/pulls/1/comments", body).json()["subject_type"] == "file"


def test_threads_are_listed_resolved_and_unresolved(forge: FakeForge, app: App, pull: PullRequest) -> None:
    review(app, pull, {"line": 3}, {"line": 5}, {"line": 30})
    page = threads(app)
    assert (len(page["nodes"]), page["pageInfo"]["hasNextPage"]) == (2, True)
    assert [each["line"] for each in threads(app, page["pageInfo"]["endCursor"])["nodes"]] == [30]
    # GraphQL leaves out the "[bot]" that REST adds to the login.
    author = page["nodes"][0]["comments"]["nodes"][0]["author"]
    assert author == {"__typename": "Bot", "login": forge.bot.removesuffix("[bot]")}
    first = page["nodes"][0]["id"]
    for query, state in ((RESOLVE, True), (RESOLVE, True), (UNRESOLVE, False)):
        (thread,) = app.graphql(query, id=first)["data"].values()
        assert thread["thread"]["isResolved"] is state
    assert forge.writes() == {"review.create": 1, "thread.resolve": 1, "thread.unresolve": 1}
    assert forge.violations == []


def test_a_comment_is_minimised(forge: FakeForge, app: App, pull: PullRequest) -> None:
    made = app.post(COMMENTS, {"body": "one"}).json()
    told = app.graphql(MINIMIZE, id=made["node_id"])["data"]["minimizeComment"]["minimizedComment"]
    assert told == {"isMinimized": True, "minimizedReason": "resolved"}
    assert forge.comments(pull)[0].minimized == "resolved"
    assert forge.writes()["comment.minimize"] == 1


def test_graphql_tells_errors_with_200(forge: FakeForge, app: App, pull: PullRequest) -> None:
    told = app.graphql(RESOLVE, id="PRRT_nothing")
    assert told["errors"][0]["type"] == "NOT_FOUND"
    unbounded = THREADS.replace("first: 2, after: $after", "after: $after")
    told = app.graphql(unbounded, owner="octo", name="demo", number=1, after=None)
    assert told["errors"][0]["type"] == "MISSING_PAGINATION_BOUNDARIES"
    assert forge.violations == []
    assert (
        "isSolved"
        in app.graphql(THREADS.replace("isResolved", "isSolved"), owner="o", name="n", number=1)["errors"][0]["message"]
    )
    assert forge.violations != []


def test_without_permission_threads_stay_as_they_are(forge: FakeForge, app: App, pull: PullRequest) -> None:
    review(app, pull, {"line": 3})
    thread = threads(app)["nodes"][0]["id"]
    forge.set_permissions("octo", pull_requests="read")
    app.use(app.new_token().json()["token"])
    told = app.graphql(RESOLVE, id=thread)
    assert (told["data"], told["errors"][0]["type"]) == ({"resolveReviewThread": None}, "FORBIDDEN")
    assert not forge.threads(pull)[0].is_resolved


def test_resolving_may_take_another_permission(forge: FakeForge, app: App, pull: PullRequest) -> None:
    review(app, pull, {"line": 3})
    thread = threads(app)["nodes"][0]
    forge.resolving_needs = "contents"
    assert app.graphql(RESOLVE, id=thread["id"])["errors"][0]["type"] == "FORBIDDEN"
    (comment,) = app.get("/repos/octo/demo/pulls/1/comments").json()
    assert app.graphql(MINIMIZE, id=comment["node_id"])["data"]["minimizeComment"] is not None
    forge.set_permissions("octo", contents="write")
    app.use(app.new_token().json()["token"])
    assert app.graphql(RESOLVE, id=thread["id"])["data"]["resolveReviewThread"]["thread"]["isResolved"] is True


def test_a_token_changes_nothing_where_the_app_is_not_installed(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo")
    elsewhere = forge.create_repository("acme/open", {"a.py": LINES}, private=False, installed=False)
    pull = forge.open_pull_request(elsewhere, {"a.py": changed(3)})
    thread = forge.start_thread(pull, "a.py", 3, "Why?")
    told = app.graphql(THREADS, owner="acme", name="open", number=1, after=None)["data"]["repository"]["pullRequest"]
    (seen,) = told["reviewThreads"]["nodes"]
    assert app.graphql(RESOLVE, id=seen["id"])["errors"][0]["type"] == "FORBIDDEN"
    assert not thread.is_resolved
    assert app.post("/repos/acme/open/issues/1/comments", {"body": "one"}).status_code == 403


def test_a_thread_follows_its_line_and_is_outdated_when_that_changes(
    forge: FakeForge, app: App, pull: PullRequest
) -> None:
    review(app, pull, {"line": 5}, {"line": 30})
    forge.push(pull, {"a.py": "first\n" + changed(3, 5)})
    five, thirty = app.get("/repos/octo/demo/pulls/1/comments").json()
    assert (five["line"], five["original_line"]) == (6, 5)
    assert (thirty["line"], thirty["position"], thirty["original_line"]) == (None, None, 30)
    assert [each["isOutdated"] for each in threads(app)["nodes"]] == [False, True]
    assert forge.violations == []


def test_people_reply_and_the_bot_deletes_its_own(forge: FakeForge, app: App, pull: PullRequest) -> None:
    review(app, pull, {"line": 3})
    (thread,) = forge.threads(pull)
    forge.reply(thread, "Is that so?", by="mia")
    first, second = app.get("/repos/octo/demo/pulls/1/comments").json()
    assert second["in_reply_to_id"] == first["id"]
    answer = app.post(f"/repos/octo/demo/pulls/1/comments/{first['id']}/replies", {"body": "It is."})
    assert (answer.status_code, len(thread.comments)) == (201, 3)
    assert app.post(f"/repos/octo/demo/pulls/1/comments/{second['id']}/replies", {"body": "x"}).status_code == 422
    for each in app.get("/repos/octo/demo/pulls/1/comments").json():
        assert app.delete(f"/repos/octo/demo/pulls/comments/{each['id']}").status_code == 204
    assert forge.threads(pull) == []
    assert forge.violations == []
