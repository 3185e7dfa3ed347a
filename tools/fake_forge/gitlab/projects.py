"""Projects, members, merge requests and their diffs, commit statuses."""

from __future__ import annotations

from typing import Final

from tools.fake_forge.exchange import Reply
from tools.fake_forge.gitlab.exchange import GitLabCall, GitLabOperations, refused
from tools.fake_forge.gitlab.models import LONGEST_DESCRIPTION, NewStatus
from tools.fake_forge.gitlab.state import DEVELOPER, REPORTER, STATUS_EVENTS, Status

operations: Final = GitLabOperations()


@operations.add("GET /user")
def current_user(call: GitLabCall) -> Reply:
    if call.user is None:
        raise refused(401, "401 Unauthorized")
    return Reply(200, call.hub.shapes.user(call.user) | {"bot": call.user.is_bot, "email": None})


@operations.add("GET /projects/{id}")
def project(call: GitLabCall) -> Reply:
    return Reply(200, call.hub.shapes.project(call.project(0)))


@operations.add("GET /projects/{id}/members/all/{user_id}")
def member(call: GitLabCall) -> Reply:
    """With what comes from groups; who is no member is not found."""
    found = call.project(0)
    for user in call.hub.state.users.values():
        if str(user.id) == call.path["user_id"] and found.level(user.username):
            return Reply(200, call.hub.shapes.member(user, found.level(user.username)))
    raise refused(404, "404 Not found")


@operations.add("GET /projects/{id}/repository/branches/{branch}")
def branch(call: GitLabCall) -> Reply:
    found, name = call.project(REPORTER), call.path["branch"]
    if name not in found.branches:
        raise refused(404, "404 Branch Not Found")
    commit = call.hub.shapes.commit(found, found.branches[name])
    return Reply(200, {"name": name, "commit": commit, "default": name == found.default_branch, "protected": False})


@operations.add("GET /projects/{id}/repository/merge_base")
def merge_base(call: GitLabCall) -> Reply:
    """Of two commits or branches, each in a `refs[]` of its own."""
    found, names = call.project(REPORTER), call.repeated.get("refs[]", [])
    if len(names) < 2:
        raise refused(400, "Provide at least 2 refs")
    shas = [found.branches.get(name) or found.git.sha(name) for name in names]
    base = found.git.merge_base(shas[0], shas[1]) if shas[0] and shas[1] else None
    if base is None:
        raise refused(400, f"Could not find ref: {names[shas.index(None)]}" if None in shas else "404 Not found")
    return Reply(200, call.hub.shapes.commit(found, base))


@operations.add("GET /projects/{id}/merge_requests")
def merge_requests(call: GitLabCall) -> Reply:
    """Filtered by `state`, `source_branch` and `target_branch`; the newest first."""
    query = call.query
    found = [
        each
        for each in call.project(REPORTER).merge_requests.values()
        if query.get("state", "all") in ("all", each.state)
        and query.get("source_branch", each.source_branch) == each.source_branch
        and query.get("target_branch", each.target_branch) == each.target_branch
    ]
    return call.page(sorted(found, key=lambda each: each.iid, reverse=True), call.hub.shapes.listed_merge_request)


@operations.add("GET /projects/{id}/repository/commits/{sha}/merge_requests")
def merge_requests_of_commit(call: GitLabCall) -> Reply:
    found, sha = call.project(REPORTER), call.path["sha"]
    having = [
        each
        for each in found.merge_requests.values()
        if sha == each.head_sha or sha in found.git.commits(each.start_sha, each.head_sha)
    ]
    return call.page(having, call.hub.shapes.listed_merge_request)


@operations.add("GET /projects/{id}/merge_requests/{iid}")
def merge_request(call: GitLabCall) -> Reply:
    return Reply(200, call.hub.shapes.merge_request(call.merge_request(REPORTER)))


@operations.add("GET /projects/{id}/merge_requests/{iid}/diffs")
def diffs(call: GitLabCall) -> Reply:
    return call.page(call.merge_request(REPORTER).files(), call.hub.shapes.file)


@operations.add("GET /projects/{id}/merge_requests/{iid}/changes")
def changes(call: GitLabCall) -> Reply:
    """The old form: all files at once."""
    found = call.merge_request(REPORTER)
    told = call.hub.shapes.merge_request(found)
    files = [call.hub.shapes.file(each) for each in found.files()]
    return Reply(200, told | {"changes": files, "overflow": any(each["too_large"] for each in files)})


@operations.add("POST /projects/{id}/statuses/{sha}", wrote="status.create")
def create_status(call: GitLabCall) -> Reply:
    """A state machine: the same state twice in a row is refused, and so is a way back to the start."""
    found, sha = call.project(DEVELOPER), call.path["sha"]
    wanted = call.parsed(NewStatus)
    if found.git.sha(sha) != sha:
        raise refused(404, "404 Commit Not Found")
    if wanted.description is not None and len(wanted.description) > LONGEST_DESCRIPTION:
        raise refused(400, "description is too long (maximum is 255 characters)")
    name = wanted.context or wanted.name
    ref = wanted.ref or next((each for each, tip in found.branches.items() if tip == sha), found.default_branch)
    known = next((each for each in found.statuses if (each.sha, each.name, each.ref) == (sha, name, ref)), None)
    if known is not None and _stuck(known.state, wanted.state):
        event = STATUS_EVENTS[wanted.state]
        raise refused(400, f"Cannot transition status via :{event} from :{known.state}")
    if known is None or known.state in _FINAL:
        # A finished status is kept as history, and a new one stands in its place.
        number = call.hub.state.world.new_id("gitlab status", 700_001)
        now = call.hub.state.world.clock.now()
        status = Status(number, sha, ref, name, wanted.state, None, None, None, now)
        found.statuses = [each for each in found.statuses if each is not known] + [status]
        if known is not None:
            status.history = known.history
        known = status
    known.state = wanted.state
    known.history.append(wanted.state)
    known.description = wanted.description if wanted.description is not None else known.description
    known.target_url = wanted.target_url or known.target_url
    known.coverage = wanted.coverage if wanted.coverage is not None else known.coverage
    return Reply(201, call.hub.shapes.status(found, known, call.hub.state.bot))


_FINAL: Final = frozenset({"success", "failed", "canceled", "skipped"})


def _stuck(now: str, wanted: str) -> bool:
    """Whether GitLab refuses that way."""
    if now == wanted:
        return now not in ("success", "skipped")
    return (now, wanted) == ("running", "pending")


@operations.add("GET /projects/{id}/repository/commits/{sha}/statuses")
def statuses(call: GitLabCall) -> Reply:
    found, query = call.project(REPORTER), call.query
    listed = [
        each
        for each in found.statuses
        if each.sha == call.path["sha"]
        and query.get("name", each.name) == each.name
        and query.get("ref", each.ref) == each.ref
    ]
    return call.page(listed, lambda each: call.hub.shapes.status(found, each, call.hub.state.bot))
