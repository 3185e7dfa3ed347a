"""Notes and discussions of merge requests."""

from __future__ import annotations

from typing import Any, Final

from tools.fake_forge.exchange import Reply
from tools.fake_forge.gitlab.exchange import GitLabCall, GitLabOperations, refused
from tools.fake_forge.gitlab.hub import GitLabHub
from tools.fake_forge.gitlab.models import (
    LONGEST_NOTE,
    Award,
    ChangedDiscussion,
    ChangedNote,
    ChangedReply,
    NewDiscussion,
    NewNote,
    Position,
)
from tools.fake_forge.gitlab.models import Reply as ReplyBody
from tools.fake_forge.gitlab.state import MAINTAINER, REPORTER, Discussion, MergeRequest, Note, User

operations: Final = GitLabOperations()
_NOTES: Final = "/projects/{id}/merge_requests/{iid}/notes"
_DISCUSSIONS: Final = "/projects/{id}/merge_requests/{iid}/discussions"


@operations.add(f"GET {_NOTES}")
def notes(call: GitLabCall) -> Reply:
    """The newest first, unless `sort=asc`."""
    found = call.merge_request(REPORTER).notes()
    if call.query.get("order_by", "created_at") == "updated_at":
        found.sort(key=lambda note: (note.updated_at, note.id))
    if call.query.get("sort", "desc") == "desc":
        found.reverse()
    return call.page(found, call.hub.shapes.note)


@operations.add(f"GET {_NOTES}/{{note_id}}")
def note(call: GitLabCall) -> Reply:
    return Reply(200, call.hub.shapes.note(_note(call)))


@operations.add(f"POST {_NOTES}", wrote="note.create")
def create(call: GitLabCall) -> Reply:
    found, wanted = call.merge_request(REPORTER), call.parsed(NewNote)
    made = add_note(call.hub, found, call.hub.state.bot, checked(wanted.body), soon=True)
    return Reply(201, call.hub.shapes.note(made))


@operations.add(f"PUT {_NOTES}/{{note_id}}", wrote="note.update")
def update(call: GitLabCall) -> Reply:
    """Only one's own."""
    found, wanted = _own(call, _note(call), MAINTAINER + 1), call.parsed(ChangedNote)
    _change(call, found, wanted.body)
    return Reply(200, call.hub.shapes.note(found))


@operations.add(f"DELETE {_NOTES}/{{note_id}}", wrote="note.delete")
def delete(call: GitLabCall) -> Reply:
    remove_note(_own(call, _note(call), MAINTAINER))
    return Reply(204)


@operations.add(f"POST {_NOTES}/{{note_id}}/award_emoji", wrote="award.create")
def award(call: GitLabCall) -> Reply:
    """The same twice is a 404, as GitLab says it."""
    found, wanted, bot = _note(call), call.parsed(Award), call.hub.state.bot
    if any((user, name) == (bot, wanted.name) for _, user, name in found.awards):
        raise refused(404, "404 Award Emoji Name has already been taken Not Found")
    number = call.hub.state.world.new_id("gitlab award", 900_001)
    found.awards.append((number, bot, wanted.name))
    told = {"id": number, "name": wanted.name, "user": call.hub.shapes.user(bot), "awardable_id": found.id}
    return Reply(201, told | {"awardable_type": "Note"})


@operations.add(f"GET {_DISCUSSIONS}")
def discussions(call: GitLabCall) -> Reply:
    return call.page(call.merge_request(REPORTER).discussions, call.hub.shapes.discussion)


@operations.add(f"GET {_DISCUSSIONS}/{{discussion_id}}")
def discussion(call: GitLabCall) -> Reply:
    return Reply(200, call.hub.shapes.discussion(_discussion(call)))


@operations.add(f"POST {_DISCUSSIONS}", wrote="discussion.create")
def create_discussion(call: GitLabCall) -> Reply:
    found, wanted = call.merge_request(REPORTER), call.parsed(NewDiscussion)
    place = None if wanted.position is None else _place(found, wanted.position)
    made = start_discussion(call.hub, found, call.hub.state.bot, checked(wanted.body), position=place, soon=True)
    return Reply(201, call.hub.shapes.discussion(made))


@operations.add(f"PUT {_DISCUSSIONS}/{{discussion_id}}")
def resolve(call: GitLabCall) -> Reply:
    """`resolved=true` or `false`, in the query or the body."""
    found, wanted = _discussion(call), call.parsed(ChangedDiscussion)
    if found.individual:
        raise refused(403, "403 Forbidden")
    if (found.resolved_by is not None) != wanted.resolved:
        found.resolved_by = call.hub.state.bot if wanted.resolved else None
        call.wrote = "discussion.resolve" if wanted.resolved else "discussion.unresolve"
    return Reply(200, call.hub.shapes.discussion(found))


@operations.add(f"POST {_DISCUSSIONS}/{{discussion_id}}/notes", wrote="discussion.reply")
def reply(call: GitLabCall) -> Reply:
    found, wanted = _discussion(call), call.parsed(ReplyBody)
    made = reply_to(call.hub, found, call.hub.state.bot, checked(wanted.body), soon=True)
    return Reply(201, call.hub.shapes.note(made))


@operations.add(f"PUT {_DISCUSSIONS}/{{discussion_id}}/notes/{{note_id}}")
def update_reply(call: GitLabCall) -> Reply:
    """One thing at a time: the body or `resolved`."""
    found, wanted = _own(call, _note(call), MAINTAINER + 1), call.parsed(ChangedReply)
    if (wanted.body is None) == (wanted.resolved is None):
        raise refused(400, "body, resolved are mutually exclusive, exactly one parameter must be provided", key="error")
    if wanted.body is not None:
        _change(call, found, wanted.body)
        call.wrote = "note.update"
    elif (found.discussion.resolved_by is not None) != wanted.resolved:
        found.discussion.resolved_by = call.hub.state.bot if wanted.resolved else None
        call.wrote = "discussion.resolve" if wanted.resolved else "discussion.unresolve"
    return Reply(200, call.hub.shapes.note(found))


@operations.add(f"DELETE {_DISCUSSIONS}/{{discussion_id}}/notes/{{note_id}}", wrote="note.delete")
def delete_reply(call: GitLabCall) -> Reply:
    remove_note(_own(call, _note(call), MAINTAINER))
    return Reply(204)


def add_note(hub: GitLabHub, merge_request: MergeRequest, author: User, body: str, *, soon: bool = False) -> Note:
    """Somebody writes a comment that stands alone."""
    made = Discussion(merge_request, individual=True)
    merge_request.discussions.append(made)
    return reply_to(hub, made, author, body, soon=soon)


def add_system_note(hub: GitLabHub, merge_request: MergeRequest, author: User, body: str) -> None:
    """GitLab itself writes down what somebody did; it stands among the notes, and sends no webhook."""
    made, now = Discussion(merge_request, individual=True), hub.state.world.clock.now()
    number = hub.state.world.new_id("gitlab note", 300_001)
    made.notes.append(Note(number, made, author, body, now, now, system=True))
    merge_request.discussions.append(made)


def start_discussion(
    hub: GitLabHub,
    merge_request: MergeRequest,
    author: User,
    body: str,
    *,
    position: dict[str, Any] | None,
    soon: bool = False,
) -> Discussion:
    """Somebody begins a thread, at a place of the diff or on the whole."""
    made = Discussion(merge_request, individual=False, position=position)
    merge_request.discussions.append(made)
    reply_to(hub, made, author, body, soon=soon)
    return made


def reply_to(hub: GitLabHub, discussion: Discussion, author: User, body: str, *, soon: bool = False) -> Note:
    """Somebody writes in a thread."""
    now = hub.state.world.clock.now()
    made = Note(hub.state.world.new_id("gitlab note", 300_001), discussion, author, body, now, now)
    discussion.notes.append(made)
    hub.announce_note("create", made, soon=soon)
    return made


def remove_note(note: Note) -> None:
    """Gone; a thread without notes too. GitLab sends no webhook for that."""
    discussion = note.discussion
    discussion.notes.remove(note)
    if not discussion.notes:
        discussion.merge_request.discussions.remove(discussion)


def checked(body: str) -> str:
    """A note's text, if GitLab takes it. Raises `Refusal`."""
    if not body.strip():
        raise refused(400, '400 Bad request - Note {:note=>["can\'t be blank"]}')
    if len(body) > LONGEST_NOTE:
        raise refused(400, f'400 Bad request - Note {{:note=>["is too long (maximum is {LONGEST_NOTE} characters)"]}}')
    return body


def place_of(merge_request: MergeRequest, path: str, line: int) -> dict[str, Any]:
    """The position of an added line. Raises `Refusal`."""
    place = Position(
        base_sha=merge_request.base_sha,
        start_sha=merge_request.start_sha,
        head_sha=merge_request.head_sha,
        position_type="text",
        new_path=path,
        old_path=path,
        new_line=line,
    )
    return _place(merge_request, place)


def _place(merge_request: MergeRequest, wanted: Position) -> dict[str, Any]:
    """An added line is named by its new number, a removed one by its old number, an unchanged one by both."""
    bad = refused(400, '400 Bad request - Note {:line_code=>["can\'t be blank", "must be a valid line code"]}')
    git = merge_request.project.git
    shas = (wanted.base_sha, wanted.start_sha, wanted.head_sha)
    if any(git.sha(sha) != sha for sha in shas):
        raise bad
    shown = next((each for each in git.diff(wanted.base_sha, wanted.head_sha) if each.path == wanted.new_path), None)
    if shown is None or wanted.position_type == "image":
        raise bad
    lines = {(line.left, line.right) for hunk in shown.hunks for line in hunk.lines}
    if wanted.position_type == "text" and (wanted.old_line, wanted.new_line) not in lines:
        raise bad
    return wanted.model_dump() | {"old_path": wanted.old_path or shown.previous_path or shown.path}


def _change(call: GitLabCall, note: Note, body: str) -> None:
    note.body = checked(body)
    note.updated_at = call.hub.state.world.clock.now()
    call.hub.announce_note("update", note, soon=True)


def _note(call: GitLabCall) -> Note:
    found = call.merge_request(REPORTER)
    wanted = call.path["note_id"]
    note = next((each for each in found.notes() if str(each.id) == wanted), None)
    if note is None or call.path.get("discussion_id", note.discussion.id) != note.discussion.id:
        raise refused(404, "404 Not found")
    return note


def _discussion(call: GitLabCall) -> Discussion:
    found = call.hub.state.find_discussion(call.merge_request(REPORTER), call.path["discussion_id"])
    if found is None:
        raise refused(404, "404 Discussion Not Found")
    return found


def _own(call: GitLabCall, note: Note, level: int) -> Note:
    """A note that is the sender's, or that his access level lets him touch. Raises `Refusal`."""
    user = call.user
    if user is None or (note.author is not user and call.project(0).level(user.username) < level):
        raise refused(403, "403 Forbidden")
    return note
