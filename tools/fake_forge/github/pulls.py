"""Pull requests, as they are read."""

from __future__ import annotations

from typing import Final

from tools.fake_forge.exchange import Call, Operations, Reply, not_found
from tools.fake_forge.github.repositories import resolved
from tools.fake_forge.world import PullRequest

operations: Final = Operations()
_MOST_FILES: Final = 3000  # GitHub lists no more


@operations.add("GET /repos/{owner}/{repo}/pulls", ("pull_requests", "read"))
def listed(call: Call) -> Reply:
    """Filtered by `state` (open by default), `head` (as `owner:branch`) and `base`; the newest first."""
    state, head, base = call.query.get("state", "open"), call.query.get("head"), call.query.get("base")
    found = [
        pull
        for pull in call.repository.pulls.values()
        if state in ("all", pull.state)
        and head in (None, "", f"{pull.head_repository.owner.login}:{pull.head}")
        and base in (None, "", pull.base)
    ]
    key = {"updated": lambda pull: (pull.updated_at, pull.number)}.get(
        call.query.get("sort", "created"), lambda pull: pull.number
    )
    found.sort(key=key, reverse=call.query.get("direction", "desc") == "desc")
    return call.page(found, call.hub.shapes.simple_pull)


@operations.add("GET /repos/{owner}/{repo}/pulls/{pull_number}", ("pull_requests", "read"))
def pull(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.pull(found_pull(call)))


@operations.add("GET /repos/{owner}/{repo}/pulls/{pull_number}/files", ("pull_requests", "read"))
def files(call: Call) -> Reply:
    """`patch` is left out of binary and of large changes."""
    found = found_pull(call)
    return call.page(
        found.files()[:_MOST_FILES], lambda each: call.hub.shapes.file(found.repository, found.head_sha, each)
    )


@operations.add("GET /repos/{owner}/{repo}/commits/{commit_sha}/pulls", ("pull_requests", "read"), ("contents", "read"))
def pulls_of_commit(call: Call) -> Reply:
    """Pull requests that have this commit; unlike a check's list, forks are among them."""
    sha = resolved(call.repository, call.path["commit_sha"])
    git, pulls = call.repository.git, call.repository.pulls.values()
    found = [each for each in pulls if sha == each.head_sha or sha in git.commits(each.base_sha, each.head_sha)]
    return call.page(found, call.hub.shapes.simple_pull)


def found_pull(call: Call, name: str = "pull_number") -> PullRequest:
    """The pull request that the path names. Raises `Refusal`."""
    found = call.repository.pulls.get(call.number(name))
    if found is None:
        raise not_found()
    return found
