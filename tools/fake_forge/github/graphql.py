"""GraphQL, for what REST can't do: resolve threads, minimise comments, and ask which threads are resolved.

Queries are parsed and checked by graphql-core against `schema.graphql`; REST's log, limits and failures hold here too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from graphql import GraphQLError, GraphQLResolveInfo, GraphQLSchema, build_schema, graphql_sync

from tools.fake_forge.clock import stamp
from tools.fake_forge.exchange import Call, Json, Operations, Reply
from tools.fake_forge.github.shapes_repositories import node_id
from tools.fake_forge.world import Account, IssueComment, PullRequest, Repository, ReviewComment, Thread, Token

operations: Final = Operations()
_Info = GraphQLResolveInfo[Any]
_SCHEMA: Final = Path(__file__).with_name("schema.graphql")
_LARGEST_PAGE: Final = 100


@operations.add("POST /graphql", ("metadata", "read"))
def graphql(call: Call) -> Reply:
    """Always 200: what went wrong stands in `errors`, with GitHub's `type` of it."""
    body = call.body
    if not isinstance(body.get("query"), str):
        return Reply(400, {"message": "A query attribute must be specified and must be a string."})
    result = graphql_sync(
        _schema(),
        body["query"],
        _Root(call),
        variable_values=body.get("variables") or {},
        operation_name=body.get("operationName"),
    )
    answer: Json = {}
    if result.data is not None or not result.errors:
        answer["data"] = result.data
    if result.errors:
        answer["errors"] = [_told(error) for error in result.errors]
        if any(error.extensions is None or "type" not in error.extensions for error in result.errors):
            call.hub.world.violations += [f"GraphQL: {error.message}" for error in result.errors]
    return Reply(200, answer)


@cache
def _schema() -> GraphQLSchema:
    schema = build_schema(_SCHEMA.read_text(encoding="utf-8"))
    for name in ("Node", "Actor", "Minimizable"):
        schema.type_map[name].resolve_type = lambda value, *_: value.kind  # type: ignore[attr-defined]
    return schema


def _told(error: GraphQLError) -> Json:
    told: Json = dict(error.formatted)
    told |= told.pop("extensions", {})
    return told


def _refused(kind: str, message: str) -> GraphQLError:
    return GraphQLError(message, extensions={"type": kind})


class _Root:
    """The fields of queries and mutations."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._world = call.hub.world

    # Queries

    def repository(self, _info: _Info, owner: str, name: str, *, followRenames: bool = True) -> Any:  # noqa: N803
        full_name = f"{owner}/{name}"
        found = self._world.repository(full_name)
        if found is None and followRenames and full_name in self._world.moved:
            found = self._world.repositories[self._world.moved[full_name]]
        if found is None or not self._sees(found):
            raise _refused("NOT_FOUND", f"Could not resolve to a Repository with the name '{full_name}'.")
        return _RepositoryNode(self._call, found)

    def node(self, _info: _Info, id: str) -> Any:  # noqa: A002
        found = self._found(id)
        match found:
            case Thread():
                return _ThreadNode(self._call, found)
            case ReviewComment():
                return _ReviewCommentNode(self._call, found)
            case IssueComment():
                return _IssueCommentNode(self._call, found)
            case PullRequest():
                return _PullNode(self._call, found)
        raise _unknown(id)

    def viewer(self, _info: _Info) -> Any:
        raise _refused("FORBIDDEN", "Resource not accessible by integration")

    # Mutations

    def resolveReviewThread(self, _info: _Info, input: Json) -> Json:  # noqa: A002, N802
        thread = self._writable_thread(input["threadId"])
        if not thread.is_resolved:
            thread.resolved_by = self._call.hub.app.bot
            self._call.wrote = "thread.resolve"
            self._announce("resolved", thread)
        return {"thread": _ThreadNode(self._call, thread), "clientMutationId": input.get("clientMutationId")}

    def unresolveReviewThread(self, _info: _Info, input: Json) -> Json:  # noqa: A002, N802
        thread = self._writable_thread(input["threadId"])
        if thread.is_resolved:
            thread.resolved_by = None
            self._call.wrote = "thread.unresolve"
            self._announce("unresolved", thread)
        return {"thread": _ThreadNode(self._call, thread), "clientMutationId": input.get("clientMutationId")}

    def minimizeComment(self, _info: _Info, input: Json) -> Json:  # noqa: A002, N802
        comment = self._minimised(input["subjectId"], input["classifier"].lower(), "comment.minimize")
        return {"minimizedComment": comment, "clientMutationId": input.get("clientMutationId")}

    def unminimizeComment(self, _info: _Info, input: Json) -> Json:  # noqa: A002, N802
        comment = self._minimised(input["subjectId"], None, "comment.unminimize")
        return {"unminimizedComment": comment, "clientMutationId": input.get("clientMutationId")}

    def _minimised(self, subject: str, reason: str | None, wrote: str) -> Any:
        found = self._found(subject)
        if not isinstance(found, (ReviewComment, IssueComment)):
            raise _unknown(subject)
        pull = found.pull if isinstance(found, IssueComment) else found.thread.pull
        self._require_write("pull_requests", pull.repository)
        if found.minimized != reason:
            found.minimized = reason
            self._call.wrote = wrote
        node = _ReviewCommentNode if isinstance(found, ReviewComment) else _IssueCommentNode
        return node(self._call, found)  # type: ignore[arg-type]

    def _writable_thread(self, name: str) -> Thread:
        found = self._found(name)
        if not isinstance(found, Thread):
            raise _unknown(name)
        self._require_write(self._call.hub.resolving_needs, found.pull.repository)
        return found

    def _require_write(self, permission: str, repository: Repository) -> None:
        if not self._call.allows(permission, "write", repository):
            raise _refused("FORBIDDEN", "Resource not accessible by integration")

    def _announce(self, action: str, thread: Thread) -> None:
        hub, pull = self._call.hub, thread.pull
        told = {"pull_request": hub.shapes.simple_pull(pull), "thread": hub.shapes.thread(thread)}
        hub.announce("pull_request_review_thread", action, hub.app.bot, told, repository=pull.repository, soon=True)

    def _found(self, name: str) -> Thread | ReviewComment | IssueComment | PullRequest:
        """What a global id stands for, if the sender may see it."""
        kind, _, text = name.partition("_")
        try:
            padded = text + "=" * (-len(text) % 4)
            number = int(base64.urlsafe_b64decode(padded).decode().rpartition(":")[2])
        except (ValueError, binascii.Error) as error:
            raise _unknown(name) from error
        world = self._world
        pulls = {pull.id: pull for each in world.repositories.values() for pull in each.pulls.values()}
        tables: dict[str, dict[int, Any]] = {
            "PRRT": world.threads,
            "PRRC": world.review_comments,
            "IC": world.issue_comments,
            "PR": pulls,
        }
        found = tables.get(kind, {}).get(number)
        if found is None:
            raise _unknown(name)
        pull = found if isinstance(found, PullRequest) else getattr(found, "pull", None) or found.thread.pull
        if not self._sees(pull.repository):
            raise _unknown(name)
        return found  # type: ignore[no-any-return]

    def _sees(self, repository: Repository) -> bool:
        token = self._call.principal
        return isinstance(token, Token) and (not repository.private or token.covers(repository))


def _unknown(name: str) -> GraphQLError:
    return _refused("NOT_FOUND", f"Could not resolve to a node with the global id of '{name}'.")


class _Fields:
    """One object; its attributes and methods are the fields, by GitHub's names."""

    kind: str

    def __init__(self, call: Call) -> None:
        self._call = call

    def _actor(self, account: Account) -> Any:
        return _ActorNode(self._call, account)


class _ActorNode(_Fields):
    def __init__(self, call: Call, account: Account) -> None:
        super().__init__(call)
        self.kind = "Bot" if account.kind == "Bot" else "User"
        self.id = node_id("U", account.id)
        self.databaseId = account.id
        # REST says `name[bot]`, GraphQL says `name` and tells of the bot by the type.
        self.login = account.login.removesuffix("[bot]")
        self.url = f"{call.hub.web}/{account.login}"
        self.avatarUrl = f"{call.hub.web}/avatars/{account.id}"


class _RepositoryNode(_Fields):
    kind = "Repository"

    def __init__(self, call: Call, repository: Repository) -> None:
        super().__init__(call)
        self._repository = repository
        self.id = node_id("R", repository.id)
        self.databaseId = repository.id
        self.name = repository.name
        self.nameWithOwner = repository.full_name

    def pullRequest(self, _info: _Info, number: int) -> Any:  # noqa: N802
        found = self._repository.pulls.get(number)
        if found is None:
            raise _refused("NOT_FOUND", f"Could not resolve to a PullRequest with the number of {number}.")
        return _PullNode(self._call, found)


class _PullNode(_Fields):
    kind = "PullRequest"

    def __init__(self, call: Call, pull: PullRequest) -> None:
        super().__init__(call)
        self._pull = pull
        self.id = node_id("PR", pull.id)
        self.databaseId = pull.id
        self.number = pull.number
        self.state = "MERGED" if pull.merged_at else pull.state.upper()
        self.isDraft = pull.draft
        self.headRefOid = pull.head_sha
        self.baseRefOid = pull.base_sha
        self.author = self._actor(pull.author)

    def reviewThreads(self, _info: _Info, **page: Any) -> Json:  # noqa: N802
        return _connection(self._pull.threads, lambda each: _ThreadNode(self._call, each), "reviewThreads", page)

    def comments(self, _info: _Info, **page: Any) -> Json:
        return _connection(self._pull.comments, lambda each: _IssueCommentNode(self._call, each), "comments", page)


class _ThreadNode(_Fields):
    kind = "PullRequestReviewThread"

    def __init__(self, call: Call, thread: Thread) -> None:
        super().__init__(call)
        self._thread = thread
        repository = thread.pull.repository
        may_resolve = call.allows(call.hub.resolving_needs, "write", repository)
        self.id = node_id("PRRT", thread.id)
        self.isResolved = thread.is_resolved
        self.isOutdated = thread.is_outdated
        self.isCollapsed = thread.is_resolved or thread.is_outdated
        self.path = thread.path
        self.line = thread.line
        self.startLine = thread.start_line
        self.originalLine = thread.original_line
        self.originalStartLine = thread.original_start_line
        self.diffSide = thread.side
        self.subjectType = thread.kind.upper()
        self.resolvedBy = self._actor(thread.resolved_by) if thread.resolved_by else None
        self.viewerCanReply = call.allows("pull_requests", "write", repository)
        self.viewerCanResolve = may_resolve and not thread.is_resolved
        self.viewerCanUnresolve = may_resolve and thread.is_resolved

    def pullRequest(self, _info: _Info) -> Any:  # noqa: N802
        return _PullNode(self._call, self._thread.pull)

    def comments(self, _info: _Info, **page: Any) -> Json:
        return _connection(self._thread.comments, lambda each: _ReviewCommentNode(self._call, each), "comments", page)


class _CommentNode(_Fields):
    def __init__(self, call: Call, comment: ReviewComment | IssueComment, prefix: str) -> None:
        super().__init__(call)
        self.id = node_id(prefix, comment.id)
        self.databaseId = comment.id
        self.fullDatabaseId = str(comment.id)
        self.author = self._actor(comment.author)
        self.body = comment.body
        self.createdAt = stamp(comment.created_at)
        self.updatedAt = stamp(comment.updated_at)
        self.isMinimized = comment.minimized is not None
        self.minimizedReason = comment.minimized
        self.viewerDidAuthor = comment.author is call.hub.app.bot


class _ReviewCommentNode(_CommentNode):
    kind = "PullRequestReviewComment"

    def __init__(self, call: Call, comment: ReviewComment) -> None:
        super().__init__(call, comment, "PRRC")
        thread = comment.thread
        self._comment = comment
        self.outdated = thread.is_outdated
        self.path = thread.path
        self.line = thread.line
        self.originalLine = thread.original_line
        self.url = f"{call.hub.shapes.pull_page(thread.pull)}#discussion_r{comment.id}"

    def replyTo(self, _info: _Info) -> Any:  # noqa: N802
        first = self._comment.reply_to
        return _ReviewCommentNode(self._call, first) if first else None


class _IssueCommentNode(_CommentNode):
    kind = "IssueComment"

    def __init__(self, call: Call, comment: IssueComment) -> None:
        super().__init__(call, comment, "IC")
        self.url = f"{call.hub.shapes.pull_page(comment.pull)}#issuecomment-{comment.id}"


def _connection(items: Sequence[Any], node: Callable[[Any], Any], name: str, page: Json) -> Json:
    """One page; GitHub insists on a bound, of at most 100."""
    first, last = page.get("first"), page.get("last")
    size = first if first is not None else last
    if size is None:
        raise _refused(
            "MISSING_PAGINATION_BOUNDARIES",
            f"You must provide a `first` or `last` value to properly paginate the `{name}` connection.",
        )
    if not 0 <= size <= _LARGEST_PAGE:
        raise _refused(
            "EXCESSIVE_PAGINATION", f"Requesting {size} records on the `{name}` connection exceeds the limit of 100."
        )
    start = _place(page.get("after"), 0)
    stop = _place(page.get("before"), len(items) + 1) - 1 if page.get("before") else len(items)
    if first is not None:
        stop = min(stop, start + first)
    else:
        start = max(start, stop - size)
    return {
        "nodes": [node(each) for each in items[start:stop]],
        "totalCount": len(items),
        "pageInfo": {
            "hasNextPage": stop < len(items),
            "hasPreviousPage": start > 0,
            "startCursor": _cursor(start + 1) if stop > start else None,
            "endCursor": _cursor(stop) if stop > start else None,
        },
    }


def _cursor(place: int) -> str:
    return base64.b64encode(f"cursor:{place}".encode()).decode()


def _place(cursor: str | None, otherwise: int) -> int:
    if cursor is None:
        return otherwise
    try:
        return int(base64.b64decode(cursor).decode().rpartition(":")[2])
    except (ValueError, binascii.Error) as error:
        raise _refused("INVALID_CURSOR_ARGUMENTS", f"`{cursor}` does not appear to be a valid cursor.") from error
