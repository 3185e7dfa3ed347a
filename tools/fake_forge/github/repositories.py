"""Repositories, branches, commits, comparisons, and what a person may do."""

from __future__ import annotations

from typing import Final

from tools.fake_forge.exchange import Call, Json, Operations, Refusal, Reply, not_found
from tools.fake_forge.world import Repository

operations: Final = Operations()


@operations.add("GET /repos/{owner}/{repo}", ("metadata", "read"))
def repository(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.full_repository(call.repository))


@operations.add("GET /repos/{owner}/{repo}/branches/{branch}", ("contents", "read"))
def branch(call: Call) -> Reply:
    name = call.path["branch"]
    sha = call.repository.branches.get(name)
    if sha is None:
        raise Refusal(404, "Branch not found")
    address = f"{call.hub.api}/repos/{call.repository.full_name}/branches/{name}"
    page = f"{call.hub.web}/{call.repository.full_name}/tree/{name}"
    return Reply(
        200,
        {
            "name": name,
            "commit": call.hub.shapes.commit(call.repository, sha),
            "_links": {"self": address, "html": page},
            "protected": False,
            "protection": {"enabled": False},
            "protection_url": f"{address}/protection",
        },
    )


@operations.add("GET /repos/{owner}/{repo}/commits/{ref}", ("contents", "read"))
def commit(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.commit(call.repository, resolved(call.repository, call.path["ref"])))


@operations.add("GET /repos/{owner}/{repo}/compare/{basehead}", ("contents", "read"))
def compare(call: Call) -> Reply:
    """`base...head`; a fork's branch is named `owner:branch`."""
    repository, shapes = call.repository, call.hub.shapes
    base_name, dots, head_name = call.path["basehead"].partition("...")
    if not dots:
        raise not_found()
    base, head = _end(call, base_name), _end(call, head_name)
    merge_base = repository.git.merge_base(base, head)
    if merge_base is None:
        raise Refusal(404, f"No common ancestor between {base_name} and {head_name}.")
    ahead, behind = repository.git.commits(base, head), repository.git.commits(head, base)
    status = {(False, False): "identical", (True, False): "ahead", (False, True): "behind"}
    page = f"{call.hub.web}/{repository.full_name}/compare/{base}...{head}"
    told: Json = {
        "url": call.address,
        "html_url": page,
        "permalink_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "base_commit": shapes.commit(repository, base),
        "merge_base_commit": shapes.commit(repository, merge_base),
        "status": status.get((bool(ahead), bool(behind)), "diverged"),
        "ahead_by": len(ahead),
        "behind_by": len(behind),
        "total_commits": len(ahead),
        "commits": [shapes.commit(repository, each) for each in ahead[:250]],
        "files": [shapes.file(repository, head, each) for each in repository.git.diff(merge_base, head)[:300]],
    }
    return Reply(200, told)


@operations.add("GET /repos/{owner}/{repo}/collaborators/{username}/permission", ("metadata", "read"))
def permission(call: Call) -> Reply:
    """`permission` knows four words, `role_name` five: triage is told as read, maintain as write."""
    login = call.path["username"]
    account = call.hub.world.accounts.get(login)
    if account is None or account.kind == "Bot":
        raise Refusal(404, f"{login} is not a user")
    role = call.repository.role(login) or "none"
    told = {"maintain": "write", "triage": "read"}.get(role, role)
    ranks = ("read", "triage", "write", "maintain", "admin")
    may = {
        name: role in ranks and ranks.index(role) >= place
        for place, name in enumerate(("pull", "triage", "push", "maintain", "admin"))
    }
    user = call.hub.shapes.user(account) | {"permissions": may, "role_name": role}
    return Reply(200, {"permission": told, "role_name": role, "user": user})


def resolved(repository: Repository, name: str) -> str:
    """The commit of a branch, a ref or a commit name, as GitHub takes them. Raises `Refusal`."""
    known = repository.branches.get(name.removeprefix("heads/"))
    sha = known or repository.git.sha(name)
    if sha is None:
        raise Refusal(422, f"No commit found for SHA: {name}")
    return sha


def _end(call: Call, name: str) -> str:
    owner, colon, branch = name.partition(":")
    if not colon:
        try:
            return resolved(call.repository, name)
        except Refusal as refusal:
            raise not_found() from refusal
    for pull in call.repository.pulls.values():
        if pull.head_repository.owner.login == owner and pull.head == branch:
            return pull.head_sha
    if owner == call.repository.owner.login and branch in call.repository.branches:
        return call.repository.branches[branch]
    raise not_found()
