"""Reviews, their comments on lines of the diff, and answers to those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from tools.fake_forge.diffs import FileDiff, Side
from tools.fake_forge.exchange import Call, Operations, Refusal, Reply, not_found, unprocessable
from tools.fake_forge.github.comments import checked_body
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.github.pulls import found_pull
from tools.fake_forge.world import Account, PullRequest, Review, ReviewComment, Thread

operations: Final = Operations()
_STATES: Final = {"COMMENT": "COMMENTED", "APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED"}
_READ: Final = ("pull_requests", "read")
_WRITE: Final = ("pull_requests", "write")


@operations.add("GET /repos/{owner}/{repo}/pulls/{pull_number}/reviews", _READ)
def reviews(call: Call) -> Reply:
    return call.page(found_pull(call).reviews, call.hub.shapes.review)


@operations.add("POST /repos/{owner}/{repo}/pulls/{pull_number}/reviews", _WRITE, wrote="review.create")
def create(call: Call) -> Reply:
    """All of it or nothing: one comment outside the diff, and no part of the review is made."""
    pull, hub, body = found_pull(call), call.hub, call.body
    state = _STATES.get(body.get("event", ""), "PENDING")
    wanted = body.get("comments", [])
    if state in ("COMMENTED", "CHANGES_REQUESTED") and not body.get("body") and not wanted:
        raise unprocessable("A review must have a body or comments")
    if state == "PENDING" and any(each.state == "PENDING" for each in pull.reviews):
        raise unprocessable("User can only have one pending review per pull request")
    if body.get("body"):
        checked_body(body["body"], "PullRequestReview")
    commit = _commit(pull, body.get("commit_id"))
    diff = pull.files(commit)
    threads = [_new_thread(hub, pull, each, diff, commit) for each in wanted]
    now = hub.world.clock.now()
    number = hub.world.new_id("review", 40_001)
    review = Review(number, pull, hub.app.bot, body.get("body", ""), state, commit, now)  # type: ignore[arg-type]
    pull.reviews.append(review)
    for thread, each in zip(threads, wanted, strict=True):
        _keep(hub, thread)
        add_to_thread(hub, thread, hub.app.bot, each["body"], review=review, soon=True)
    return Reply(200, hub.shapes.review(review))


@operations.add("GET /repos/{owner}/{repo}/pulls/{pull_number}/comments", _READ)
def comments(call: Call) -> Reply:
    found = found_pull(call).review_comments()
    if call.query.get("direction") == "desc" and "sort" in call.query:
        found.reverse()
    return call.page(found, call.hub.shapes.review_comment)


@operations.add("GET /repos/{owner}/{repo}/pulls/comments/{comment_id}", _READ)
def comment(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.review_comment(_comment(call)))


@operations.add("POST /repos/{owner}/{repo}/pulls/{pull_number}/comments", _WRITE, wrote="review_comment.create")
def create_one(call: Call) -> Reply:
    """A single comment, which is a review of its own; only here can a comment be on a file as a whole."""
    pull, hub, body = found_pull(call), call.hub, call.body
    if "in_reply_to" in body:
        return _reply(call, pull, body["in_reply_to"])
    commit = _commit(pull, body["commit_id"])
    try:
        thread = _new_thread(hub, pull, body, pull.files(commit), commit)
    except Refusal as refusal:
        # The same mistake is told in another form than of a review.
        error = {"resource": "PullRequestReviewComment", "code": "custom", "field": "pull_request_review_thread.line"}
        message = "pull_request_review_thread.line must be part of the diff"
        raise Refusal(422, "Validation Failed", errors=[error | {"message": message}]) from refusal
    _keep(hub, thread)
    made = add_to_thread(hub, thread, hub.app.bot, body["body"], soon=True)
    return Reply(201, hub.shapes.review_comment(made))


@operations.add(
    "POST /repos/{owner}/{repo}/pulls/{pull_number}/comments/{comment_id}/replies", _WRITE, wrote="review_comment.reply"
)
def reply(call: Call) -> Reply:
    return _reply(call, found_pull(call), call.number("comment_id"))


@operations.add("PATCH /repos/{owner}/{repo}/pulls/comments/{comment_id}", _WRITE, wrote="review_comment.update")
def update(call: Call) -> Reply:
    found = _comment(call)
    found.body = checked_body(call.body["body"], "PullRequestReviewComment")
    found.updated_at = call.hub.world.clock.now()
    return Reply(200, call.hub.shapes.review_comment(found))


@operations.add("DELETE /repos/{owner}/{repo}/pulls/comments/{comment_id}", _WRITE, wrote="review_comment.delete")
def delete(call: Call) -> Reply:
    remove_from_thread(call.hub, _comment(call), call.hub.app.bot, soon=True)
    return Reply(204)


def add_to_thread(
    hub: Hub, thread: Thread, author: Account, body: str, *, review: Review | None = None, soon: bool = False
) -> ReviewComment:
    """Somebody writes in a thread; without a review the comment makes one of its own, as on GitHub."""
    now = hub.world.clock.now()
    checked_body(body, "PullRequestReviewComment")
    if review is None:
        review = Review(
            hub.world.new_id("review", 40_001), thread.pull, author, "", "COMMENTED", thread.pull.head_sha, now
        )
        thread.pull.reviews.append(review)
    first = thread.comments[0] if thread.comments else None
    number = hub.world.new_id("review_comment", 50_001)
    made = ReviewComment(number, thread, review, author, body, now, now, reply_to=first)
    thread.comments.append(made)
    hub.world.review_comments[made.id] = made
    _announce(hub, "created", made, author, soon=soon)
    return made


def remove_from_thread(hub: Hub, comment: ReviewComment, by: Account, *, soon: bool = False) -> None:
    """Somebody deletes a comment; a thread without comments is no more."""
    _announce(hub, "deleted", comment, by, soon=soon)
    thread = comment.thread
    thread.comments.remove(comment)
    del hub.world.review_comments[comment.id]
    if not thread.comments:
        thread.pull.threads.remove(thread)
        del hub.world.threads[thread.id]


def start_thread(hub: Hub, pull: PullRequest, author: Account, place: Mapping[str, Any]) -> Thread:
    """A person begins a thread at a place as REST names it. Raises `Refusal` for lines outside the diff."""
    thread = _new_thread(hub, pull, place, pull.files(), pull.head_sha)
    _keep(hub, thread)
    add_to_thread(hub, thread, author, place["body"])
    return thread


def _keep(hub: Hub, thread: Thread) -> None:
    thread.pull.threads.append(thread)
    hub.world.threads[thread.id] = thread
    thread.follow(thread.pull.head_sha)


def _announce(hub: Hub, action: str, comment: ReviewComment, sender: Account, *, soon: bool) -> None:
    pull = comment.thread.pull
    told = {"pull_request": hub.shapes.pull(pull), "comment": hub.shapes.review_comment(comment)}
    hub.announce("pull_request_review_comment", action, sender, told, repository=pull.repository, soon=soon)


def _reply(call: Call, pull: PullRequest, number: int) -> Reply:
    first = call.hub.world.review_comments.get(number)
    if first is None or first.thread.pull is not pull:
        raise not_found()
    if first.reply_to is not None:
        raise unprocessable("in_reply_to must be the first comment of a thread")
    made = add_to_thread(call.hub, first.thread, call.hub.app.bot, call.body["body"], soon=True)
    return Reply(201, call.hub.shapes.review_comment(made))


def _comment(call: Call) -> ReviewComment:
    found = call.hub.world.review_comments.get(call.number("comment_id"))
    if found is None or found.thread.pull.repository is not call.repository:
        raise not_found()
    return found


def _commit(pull: PullRequest, wanted: str | None) -> str:
    """The commit that a review is of: one that is or was in the pull request. Raises `Refusal`."""
    if wanted is None:
        return pull.head_sha
    if pull.repository.git.sha(wanted) != wanted:
        raise unprocessable("commit_id is not part of the pull request")
    return wanted


def _new_thread(hub: Hub, pull: PullRequest, place: Mapping[str, Any], diff: list[FileDiff], commit: str) -> Thread:
    """A thread at that place. Raises `Refusal` when the place isn't in the diff."""
    changed = next((each for each in diff if each.path == place["path"]), None)
    if changed is None:
        raise unprocessable("Path could not be resolved")
    checked_body(place["body"], "PullRequestReviewComment")
    kind = place.get("subject_type", "line")
    line, start = place.get("line"), place.get("start_line")
    side: Side = place.get("side", "RIGHT")
    start_side: Side | None = None
    if side not in get_args(Side):
        raise unprocessable("Side is not included in the list")
    if kind == "line":
        if line is None:
            raise unprocessable("Line could not be resolved")  # `position` is on its way out, and not served here
        hunk = changed.hunk(line, side)
        if hunk is None:
            raise unprocessable("Line could not be resolved")
        if start is not None:
            start_side = place.get("start_side", side)
            if hunk.index(start, start_side or side) is None:
                raise unprocessable("Start line must be part of the same hunk as the line.")
            if start >= line and start_side == side:
                raise unprocessable("Start line must precede the end line.")
    else:
        line = start = None
    return Thread(
        id=hub.world.new_id("thread", 60_001),
        pull=pull,
        path=place["path"],
        kind=kind,
        side=side,
        line=line,
        start_line=start,
        start_side=start_side,
        commit=commit,
        original_line=line,
        original_start_line=start,
        excerpt=changed.excerpt(line, side) if line is not None else "",
    )
