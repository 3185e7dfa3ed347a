"""Who might look after a finding: whose file it is in, and who brought it in, as far as anybody says so.

The file of code owners is that of the main line: a change that is proposed must not appoint anybody. Who wrote a commit
is what the commit says, which anybody can write; so all of it suggests and permits nothing. A snapshot has no history:
who wrote a line is known only where it came with the commit that was looked at. Never commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.accounts.models import UserRow
from services.analyses.models import AnalysisRow
from services.forges.models import PullRequestRow
from services.projects.models import ProjectRow
from services.snapshots.owners import CodeOwners
from services.snapshots.repository import code_owners
from services.triage.models import ProjectFindingRow
from services.triage.people import member_at, member_called

Role = Literal["code owner", "brought in by"]

# New findings in more files than that have no owner looked up: a first analysis is sorted by people, with filters, and
# 100 files against 2,000 lines take a second.
MOST_FILES: Final = 100


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Who might look after a finding, and why. `user_id` is None where that is no member of the project, `name` where
    nobody is known.
    """

    role: Role
    name: str | None
    user_id: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Whom a new finding is given to, and why."""

    user_id: str
    name: str
    why: str


def suggestions(session: Session, project: ProjectRow, row: ProjectFindingRow) -> tuple[Suggestion, ...]:
    """Whose file it is, then who brought it in; the last is always said, if only that nobody knows."""
    owners = _owners_on_main(session, project).of(row.path)
    return (
        *(_owner(session, project.id, owner, row.path) for owner in owners),
        *_origins(session, project.id, row.first_analysis_id),
    )


def owner_of(session: Session, project: ProjectRow, snapshot: str | None) -> Callable[[str], Assignment | None]:
    """Gives the first code owner of a path who is a member, by the owners of a snapshot (None: of the main line)."""
    owners = _owners_on_main(session, project) if snapshot is None else code_owners(session, snapshot)
    found: dict[str, Assignment | None] = {}

    @cache
    def user_of(owner: str) -> UserRow | None:
        return _user(session, project.id, owner)

    def assigned(path: str) -> Assignment | None:
        if path not in found and len(found) < MOST_FILES:
            user = next((user for owner in owners.of(path) if (user := user_of(owner)) is not None), None)
            found[path] = None if user is None else Assignment(user.id, user.name, _why_owner(path))
        return found.get(path)

    return assigned


def author_of(session: Session, project_id: str, analysis_id: str) -> Assignment | None:
    """Who brought about what an analysis is the first to show, if a member wrote its pull request or its commit."""
    for origin, user in _written(session, project_id, analysis_id):
        if user is not None:
            return Assignment(user.id, user.name, origin.why)
    return None


def _owners_on_main(session: Session, project: ProjectRow) -> CodeOwners:
    digest = session.scalar(select(AnalysisRow.snapshot_digest).where(AnalysisRow.id == project.baseline_id))
    return CodeOwners(()) if digest is None else code_owners(session, digest)


def _owner(session: Session, project_id: str, owner: str, path: str) -> Suggestion:
    user = _user(session, project_id, owner)
    return Suggestion("code owner", owner, None if user is None else user.id, _why_owner(path))


def _why_owner(path: str) -> str:
    return f"the repository's CODEOWNERS names them for {path}"


def _user(session: Session, project_id: str, owner: str) -> UserRow | None:
    """The member that an owner is: `@name`, or an address. A team is no member, whatever its name."""
    if not owner.startswith("@"):
        return member_at(session, project_id, owner)
    return None if "/" in owner else member_called(session, project_id, owner.removeprefix("@"))


def _origins(session: Session, project_id: str, analysis_id: str | None) -> Sequence[Suggestion]:
    row = None if analysis_id is None else session.get(AnalysisRow, analysis_id)
    if row is None:
        return [_nobody("the analysis that first showed it is not kept any more")]
    written = [origin for origin, _ in _written(session, project_id, row.id)]
    if written:
        return written
    if row.submitted_by_name:
        # By id where there is one: a token of somebody's goes by a name of its own.
        user = member_called(session, project_id, row.submitted_by or row.submitted_by_name)
        why = "submitted the analysis that first showed it; who wrote the line is not known"
        return [Suggestion("brought in by", row.submitted_by_name, None if user is None else user.id, why)]
    return [_nobody("who wrote the line is not known")]


def _written(session: Session, project_id: str, analysis_id: str) -> Iterator[tuple[Suggestion, UserRow | None]]:
    """The author of the pull request, whom the forge has checked, and that of the commit; each member once."""
    row = session.execute(
        select(
            AnalysisRow.source_commit, AnalysisRow.source_author, AnalysisRow.source_author_email, PullRequestRow.author
        )
        .outerjoin(PullRequestRow, PullRequestRow.id == AnalysisRow.pull_request_id)
        .where(AnalysisRow.id == analysis_id)
    ).one()
    opener = None
    if row.author:
        opener = member_called(session, project_id, row.author)
        yield _brought(row.author, opener, "the author of the pull request that first showed it")
    if row.source_author and row.source_author_email:
        user = member_at(session, project_id, row.source_author_email)
        if opener is None or user is None or opener.id != user.id:
            why = f"wrote the last commit ({(row.source_commit or '')[:10]}) when it was first seen, as the commit says"
            yield _brought(row.source_author, user, why)


def _brought(name: str, user: UserRow | None, why: str) -> tuple[Suggestion, UserRow | None]:
    return Suggestion("brought in by", name, None if user is None else user.id, why), user


def _nobody(why: str) -> Suggestion:
    return Suggestion("brought in by", None, None, why)
