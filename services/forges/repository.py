"""The queries of the bot: installations, repositories, pull requests, threads, analyses of them. Never commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased

from services.accounts.models import DEFAULT_ORGANISATION, OrganisationRow
from services.analyses.models import OPEN_STATUSES, AnalysisRow, Purpose
from services.database import new_id
from services.database.base import utc_now
from services.findings.models import FindingRow
from services.forges.events import InstallationRef, RepositoryRef
from services.forges.models import (
    InstallationRow,
    PullRequestRow,
    RepositoryRow,
    ReviewThreadRow,
)
from services.projects.models import ProjectRow

# ---------------------------------------------------------------------------------------------- installations


def organisation_id(session: Session, slug: str) -> str:
    """The organisation with this slug, else the default one."""
    found = session.scalar(select(OrganisationRow.id).where(OrganisationRow.slug == slug))
    return found or DEFAULT_ORGANISATION


def organisation_slug(session: Session, row_id: str) -> str:
    """What names of an organisation's projects begin with; empty for the default one."""
    if row_id == DEFAULT_ORGANISATION:
        return ""
    return session.scalar(select(OrganisationRow.slug).where(OrganisationRow.id == row_id)) or ""


def find_installation(session: Session, forge: str, external_id: str) -> str | None:
    """The id of an installation."""
    return session.scalar(
        select(InstallationRow.id).where(InstallationRow.forge == forge, InstallationRow.external_id == external_id)
    )


def ensure_installation(session: Session, forge: str, ref: InstallationRef, organisation: str) -> InstallationRow:
    """The installation, made if it is new; the name of its account is kept up to date."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(InstallationRow)
        .values(
            id=new_id(),
            forge=forge,
            external_id=ref.external_id,
            account=ref.account,
            organisation_id=organisation_id(session, organisation),
            permissions={},
            created_at=utc_now(),
        )
        .on_conflict_do_nothing(index_elements=["forge", "external_id"])
    )
    row = session.scalars(
        select(InstallationRow).where(InstallationRow.forge == forge, InstallationRow.external_id == ref.external_id)
    ).one()
    if ref.account and row.account != ref.account:
        row.account = ref.account
    return row


def quieten(session: Session, installation_id: str, until: datetime, reason: str) -> None:
    """Send nothing for an installation before then; an earlier end never replaces a later one."""
    session.execute(
        update(InstallationRow)
        .where(
            InstallationRow.id == installation_id,
            or_(InstallationRow.quiet_until.is_(None), InstallationRow.quiet_until < until),
        )
        .values(quiet_until=until, quiet_reason=reason)
        .execution_options(synchronize_session=False)
    )


def repositories_of(session: Session, installation_id: str, external_ids: Collection[str]) -> Sequence[RepositoryRow]:
    """The repositories of an installation that have these ids at the forge."""
    return session.scalars(
        select(RepositoryRow).where(
            RepositoryRow.installation_id == installation_id, RepositoryRow.external_id.in_(list(external_ids)[:1000])
        )
    ).all()


def find_repository(session: Session, forge: str, external_id: str) -> RepositoryRow | None:
    """A repository by its id at the forge."""
    return session.scalar(
        select(RepositoryRow).where(RepositoryRow.forge == forge, RepositoryRow.external_id == external_id)
    )


def ensure_repository(
    session: Session, installation: InstallationRow, ref: RepositoryRef, project_name: str
) -> RepositoryRow:
    """The repository, made with its project if it is new; names and addresses are kept up to date."""
    row = find_repository(session, installation.forge, ref.external_id)
    if row is None:
        project_id = _ensure_project(session, installation, project_name, ref)
        insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
        session.execute(
            insert(RepositoryRow)
            .values(
                id=new_id(),
                forge=installation.forge,
                external_id=ref.external_id,
                full_name=ref.full_name,
                clone_url=ref.clone_url,
                web_url=ref.web_url,
                is_private=ref.is_private,
                default_branch=ref.default_branch,
                installation_id=installation.id,
                project_id=project_id,
                created_at=utc_now(),
            )
            .on_conflict_do_nothing(index_elements=["forge", "external_id"])
        )
        row = find_repository(session, installation.forge, ref.external_id)
        assert row is not None
    _follow(session, row, installation, ref, project_name)
    return row


def _follow(
    session: Session, row: RepositoryRow, installation: InstallationRow, ref: RepositoryRef, project_name: str
) -> None:
    """Bring a repository up to what an event says of it; its project follows, unless a person named it."""
    moved = row.full_name != ref.full_name
    row.full_name, row.clone_url, row.web_url = ref.full_name, ref.clone_url, ref.web_url
    row.is_private, row.default_branch = ref.is_private, ref.default_branch
    row.installation_id, row.removed_at = installation.id, None
    project = session.get(ProjectRow, row.project_id)
    if project is not None:
        project.repository_url, project.default_branch = ref.clone_url, ref.default_branch
        if moved and project.organisation_id == installation.organisation_id:
            _rename(session, project, project_name)
    session.flush()


def _rename(session: Session, project: ProjectRow, name: str) -> None:
    taken = session.scalar(select(ProjectRow.id).where(ProjectRow.name == name))
    if taken is None:
        project.name = name


def _ensure_project(session: Session, installation: InstallationRow, name: str, ref: RepositoryRef) -> str:
    """The project of a repository: made, or one that names this repository as its own and that no other one has.

    A project that somebody made for something else is not taken, whatever it is called.
    """
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    for wanted in (name, f"{name}.{ref.external_id}", f"{name}.{new_id()}"):
        made = session.scalar(
            insert(ProjectRow)
            .values(
                id=new_id(),
                name=wanted,
                organisation_id=installation.organisation_id,
                repository_url=ref.clone_url,
                default_branch=ref.default_branch,
                settings={},
                created_at=utc_now(),
            )
            .on_conflict_do_nothing(index_elements=[ProjectRow.name])
            .returning(ProjectRow.id)
        )
        project_id = made or _project_for(session, installation, wanted, ref)
        if project_id is not None:
            return project_id
    raise AssertionError("an id is never taken")


def _project_for(session: Session, installation: InstallationRow, name: str, ref: RepositoryRef) -> str | None:
    """The project of this name, if it is for this repository."""
    row = session.scalar(select(ProjectRow).where(ProjectRow.name == name))
    if row is None or row.organisation_id != installation.organisation_id or row.repository_url is None:
        return None
    if _bare(row.repository_url) not in {_bare(ref.clone_url), _bare(ref.web_url)}:
        return None
    another = session.scalar(
        select(RepositoryRow.id)
        .where(
            RepositoryRow.project_id == row.id,
            or_(RepositoryRow.forge != installation.forge, RepositoryRow.external_id != ref.external_id),
        )
        .limit(1)
    )
    return row.id if another is None else None


def project_settings(session: Session, project_id: str) -> Mapping[str, object]:
    """What a project has set for itself, as it is stored."""
    return session.scalar(select(ProjectRow.settings).where(ProjectRow.id == project_id)) or {}


def archive_project(session: Session, project_id: str) -> None:
    """The repository of the project is gone."""
    session.execute(
        update(ProjectRow)
        .where(ProjectRow.id == project_id, ProjectRow.archived_at.is_(None))
        .values(archived_at=utc_now())
        .execution_options(synchronize_session=False)
    )


# ---------------------------------------------------------------------------------------------- pull requests


def find_pull_request(session: Session, repository_id: str, number: int) -> PullRequestRow | None:
    """A pull request by its number, held until the transaction ends. Rows that refer to it can be added meanwhile."""
    return session.scalar(
        select(PullRequestRow)
        .where(PullRequestRow.repository_id == repository_id, PullRequestRow.number == number)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )


def known_pull_request(session: Session, repository_id: str, number: int) -> PullRequestRow | None:
    """A pull request by its number, to look at."""
    return session.scalar(
        select(PullRequestRow).where(PullRequestRow.repository_id == repository_id, PullRequestRow.number == number)
    )


def lock_pull_request(session: Session, row_id: str) -> PullRequestRow | None:
    """A pull request, held until the transaction ends. Rows that refer to it can be added meanwhile: who ends an
    analysis queues a task for it, holding other rows.
    """
    return session.scalar(
        select(PullRequestRow)
        .where(PullRequestRow.id == row_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )


def numbers_with_head(session: Session, repository_id: str, head_sha: str) -> Sequence[int]:
    """The open pull requests of a repository that have this head, as far as we know."""
    return session.scalars(
        select(PullRequestRow.number)
        .where(
            PullRequestRow.repository_id == repository_id,
            PullRequestRow.head_sha == head_sha,
            PullRequestRow.state == "open",
        )
        .order_by(PullRequestRow.number)
        .limit(20)
    ).all()


def threads_of(session: Session, pull_request_id: str) -> Sequence[ReviewThreadRow]:
    """Our comments at lines of a pull request, the oldest first; ten times what one review may hold."""
    return session.scalars(
        select(ReviewThreadRow)
        .where(ReviewThreadRow.pull_request_id == pull_request_id)
        .order_by(ReviewThreadRow.id)
        .limit(1000)
    ).all()


def remember_thread(session: Session, row: ReviewThreadRow) -> None:
    """Write down a comment of ours at a line; one that is known is brought up to date."""
    known = session.scalar(
        select(ReviewThreadRow).where(
            ReviewThreadRow.pull_request_id == row.pull_request_id, ReviewThreadRow.comment_id == row.comment_id
        )
    )
    if known is None:
        session.add(row)
    else:
        known.thread_id, known.line, known.state = row.thread_id, row.line, row.state
    session.flush()


# ---------------------------------------------------------------------------------------------- analyses


def open_analyses_of(session: Session, pull_request_id: str) -> Sequence[str]:
    """The analyses of a pull request's heads that have not ended."""
    return session.scalars(
        select(AnalysisRow.id)
        .where(AnalysisRow.pull_request_id == pull_request_id, AnalysisRow.status.in_(OPEN_STATUSES))
        .order_by(AnalysisRow.id)
        .limit(100)
    ).all()


def ended_early(session: Session, pull_request_id: str, sha: str) -> int:
    """How many analyses of a head came to nothing: each makes room for another one."""
    count = session.scalar(
        select(func.count())
        .select_from(AnalysisRow)
        .where(
            AnalysisRow.pull_request_id == pull_request_id,
            AnalysisRow.source_ref == sha,
            AnalysisRow.status.in_(("failed", "cancelled")),
        )
    )
    return count or 0


def overtaken_main_analyses(session: Session, project_id: str, submitter: str, newer: str) -> Sequence[str]:
    """Analyses of the main line that `submitter` asked for before `newer`, that nobody has begun and nobody needs.

    One that an open analysis is to be compared with is needed, whatever the main line has come to.
    """
    change = aliased(AnalysisRow)
    needed = select(change.id).where(change.base_id == AnalysisRow.id, change.status.in_(OPEN_STATUSES)).exists()
    return session.scalars(
        select(AnalysisRow.id)
        .where(
            AnalysisRow.project_id == project_id,
            AnalysisRow.purpose == Purpose.MAIN,
            AnalysisRow.status == "queued",
            AnalysisRow.submitted_by == submitter,
            AnalysisRow.id < newer,
            ~needed,
        )
        .order_by(AnalysisRow.id)
        .limit(100)
    ).all()


def main_line_is_at(session: Session, project_id: str, sha: str) -> bool:
    """Whether the newest analysis of the main line that did not come to nothing is of this commit."""
    newest = session.execute(
        select(AnalysisRow.source_commit, AnalysisRow.source_ref)
        .where(
            AnalysisRow.project_id == project_id,
            AnalysisRow.purpose == Purpose.MAIN,
            AnalysisRow.status.not_in(("failed", "cancelled")),
        )
        .order_by(AnalysisRow.id.desc())
        .limit(1)
    ).first()
    return newest is not None and sha in newest


def main_analyses_of(session: Session, project_id: str, sha: str) -> int:
    """How often a commit of the main line was analysed, or was to be: it may come back to that commit."""
    count = session.scalar(
        select(func.count())
        .select_from(AnalysisRow)
        .where(
            AnalysisRow.project_id == project_id,
            AnalysisRow.purpose == Purpose.MAIN,
            AnalysisRow.source_ref == sha,
        )
    )
    return count or 0


def analysis_of_commit(session: Session, project_id: str, sha: str) -> str | None:
    """The newest analysis of a commit in a project that others may be compared with: settled, or under way."""
    return session.scalar(
        select(AnalysisRow.id)
        .where(
            AnalysisRow.project_id == project_id,
            AnalysisRow.purpose.in_((Purpose.MAIN, Purpose.BASE)),
            or_(AnalysisRow.source_commit == sha, AnalysisRow.source_ref == sha),
            AnalysisRow.status.not_in(("failed", "cancelled")),
        )
        .order_by(AnalysisRow.id.desc())
        .limit(1)
    )


def earlier_fingerprints(session: Session, pull_request_id: str, analysis_id: str, heads: int) -> frozenset[str]:
    """What the analyses of a pull request before this one have found, of the newest `heads` of them."""
    earlier = (
        select(AnalysisRow.id)
        .where(AnalysisRow.pull_request_id == pull_request_id, AnalysisRow.id < analysis_id)
        .order_by(AnalysisRow.id.desc())
        .limit(heads)
    )
    found = select(FindingRow.fingerprint).where(FindingRow.analysis_id.in_(earlier)).distinct()
    return frozenset(session.scalars(found))


# ---------------------------------------------------------------------------------------------- all that is around one


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A pull request with where it is: rows of this transaction."""

    pull_request: PullRequestRow
    repository: RepositoryRow
    installation: InstallationRow
    project: ProjectRow


def surroundings(session: Session, pull_request_id: str) -> Surroundings | None:
    """A pull request and everything around it."""
    found = session.execute(
        select(PullRequestRow, RepositoryRow, InstallationRow, ProjectRow)
        .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
        .join(InstallationRow, InstallationRow.id == RepositoryRow.installation_id)
        .join(ProjectRow, ProjectRow.id == RepositoryRow.project_id)
        .where(PullRequestRow.id == pull_request_id)
    ).first()
    return None if found is None else Surroundings(*found)


def silent_pull_requests(session: Session, installation_id: str, limit: int = 50) -> Sequence[PullRequestRow]:
    """Open pull requests of an installation, those that were changed last, about which something was left unsaid."""
    rows = session.scalars(
        select(PullRequestRow)
        .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
        .where(RepositoryRow.installation_id == installation_id, PullRequestRow.state == "open")
        .order_by(PullRequestRow.updated_at.desc())
        .limit(limit)
    )
    return [row for row in rows if row.silence]


def out_of_reach(around: Surroundings) -> str | None:
    """Why nothing can be read or written there, however things stand with the pull request; None if it can."""
    return beyond_reach(around.installation, around.repository, around.project)


def beyond_reach(installation: InstallationRow, place: RepositoryRow, project: ProjectRow) -> str | None:
    """Why nothing can be read or written in a repository; None if it can."""
    if installation.removed_at is not None:
        return f"the application was removed from {installation.account}"
    if installation.suspended_at is not None:
        return f"{installation.account} suspended the application"
    if place.removed_at is not None:
        return "the repository was taken out of the installation"
    if project.archived_at is not None:
        return "the project is archived"
    return None


def clone_of(session: Session, analysis_id: str) -> tuple[RepositoryRow, InstallationRow, str] | None:
    """The repository that an analysis fetches from, if it is one of its project's and within reach; and the address."""
    rows = session.execute(
        select(RepositoryRow, InstallationRow, AnalysisRow.source_url)
        .join(InstallationRow, InstallationRow.id == RepositoryRow.installation_id)
        .join(AnalysisRow, AnalysisRow.project_id == RepositoryRow.project_id)
        .where(
            AnalysisRow.id == analysis_id,
            AnalysisRow.source_kind == "git",
            RepositoryRow.removed_at.is_(None),
            InstallationRow.removed_at.is_(None),
            InstallationRow.suspended_at.is_(None),
        )
        .limit(20)
    )
    for place, installation, url in rows:
        if url is not None and _bare(url) == _bare(place.clone_url):
            return place, installation, url
    return None


def _bare(url: str) -> str:
    """An address without what may differ in two ways of writing it."""
    return url.lower().rstrip("/").removesuffix(".git")
