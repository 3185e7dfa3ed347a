"""Comments of the conversation of a pull request, and reactions to them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tools.fake_forge.clock import stamp
from tools.fake_forge.exchange import Call, Operations, Refusal, Reply, invalid, not_found
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.github.pulls import found_pull
from tools.fake_forge.github.shapes_repositories import node_id
from tools.fake_forge.world import Account, IssueComment, PullRequest

operations: Final = Operations()
LONGEST: Final = 65_536
# Either will do on a pull request.
_READ: Final = (("issues", "read"), ("pull_requests", "read"))
_WRITE: Final = (("issues", "write"), ("pull_requests", "write"))


@operations.add("GET /repos/{owner}/{repo}/issues/{issue_number}/comments", *_READ)
def comments(call: Call) -> Reply:
    """Oldest first; `since` is compared with the last change."""
    found = found_pull(call, "issue_number").comments
    if "since" in call.query:
        since = datetime.fromisoformat(call.query["since"])
        found = [each for each in found if each.updated_at >= since]
    return call.page(found, call.hub.shapes.issue_comment)


@operations.add("GET /repos/{owner}/{repo}/issues/comments/{comment_id}", *_READ)
def comment(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.issue_comment(_comment(call)))


@operations.add("POST /repos/{owner}/{repo}/issues/{issue_number}/comments", *_WRITE, wrote="comment.create")
def create(call: Call) -> Reply:
    pull = found_pull(call, "issue_number")
    if pull.locked:
        raise Refusal(403, "Unable to create comment because issue is locked.")
    made = add_comment(call.hub, pull, call.hub.app.bot, checked_body(call.body["body"], "IssueComment"), soon=True)
    shown = call.hub.shapes.issue_comment(made)
    return Reply(201, shown, {"location": shown["url"]})


@operations.add("PATCH /repos/{owner}/{repo}/issues/comments/{comment_id}", *_WRITE, wrote="comment.update")
def update(call: Call) -> Reply:
    found, hub = _comment(call), call.hub
    before = found.body
    found.body = checked_body(call.body["body"], "IssueComment")
    found.updated_at = hub.world.clock.now()
    changes: dict[str, object] = {"changes": {"body": {"from": before}}}
    _announce(hub, "edited", found, hub.app.bot, soon=True, more=changes)
    return Reply(200, hub.shapes.issue_comment(found))


@operations.add("DELETE /repos/{owner}/{repo}/issues/comments/{comment_id}", *_WRITE, wrote="comment.delete")
def delete(call: Call) -> Reply:
    remove_comment(call.hub, _comment(call), call.hub.app.bot, soon=True)
    return Reply(204)


@operations.add("POST /repos/{owner}/{repo}/issues/comments/{comment_id}/reactions", *_WRITE)
def react(call: Call) -> Reply:
    """The same reaction by the same account a second time answers 200, and writes nothing."""
    found, hub = _comment(call), call.hub
    content = call.body["content"]
    known = next((each for each in found.reactions if each[1] is hub.app.bot and each[2] == content), None)
    reaction = known or (hub.world.new_id("reaction", 80_001), hub.app.bot, content)
    if known is None:
        found.reactions.append(reaction)
        call.wrote = "reaction.create"
    told = {
        "id": reaction[0],
        "node_id": node_id("REA", reaction[0]),
        "user": hub.shapes.user(hub.app.bot),
        "content": content,
        "created_at": stamp(hub.world.clock.now()),
    }
    return Reply(200 if known else 201, told)


def add_comment(hub: Hub, pull: PullRequest, author: Account, body: str, *, soon: bool = False) -> IssueComment:
    """Somebody writes a comment."""
    now = hub.world.clock.now()
    made = IssueComment(hub.world.new_id("issue_comment", 20_001), pull, author, body, now, now)
    pull.comments.append(made)
    hub.world.issue_comments[made.id] = made
    _announce(hub, "created", made, author, soon=soon)
    return made


def remove_comment(hub: Hub, comment: IssueComment, by: Account, *, soon: bool = False) -> None:
    """Somebody deletes a comment: from now on it is not found."""
    comment.pull.comments.remove(comment)
    del hub.world.issue_comments[comment.id]
    _announce(hub, "deleted", comment, by, soon=soon)


def checked_body(body: str, resource: str) -> str:
    """A comment's text, if GitHub takes it. Raises `Refusal`."""
    if not body.strip():
        raise invalid(resource, "body", "body cannot be blank", "missing_field")
    if len(body) > LONGEST:
        raise invalid(resource, "body", f"body is too long (maximum is {LONGEST} characters)")
    return body


def _announce(
    hub: Hub,
    action: str,
    comment: IssueComment,
    sender: Account,
    *,
    soon: bool,
    more: dict[str, object] | None = None,
) -> None:
    told = {"issue": hub.shapes.issue(comment.pull), "comment": hub.shapes.issue_comment(comment), **(more or {})}
    hub.announce("issue_comment", action, sender, told, repository=comment.pull.repository, soon=soon)


def _comment(call: Call) -> IssueComment:
    found = call.hub.world.issue_comments.get(call.number("comment_id"))
    if found is None or found.pull.repository is not call.repository:
        raise not_found()
    return found
