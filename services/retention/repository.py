"""Queries over what may be dropped, and the dropping. Never commits.

An analysis is kept, however old, while somebody may come back to it: the newest of a project's main line and the one
that changes are compared with, the base of an analysis that is kept, the one in which a finding was last seen that a
person decided about, those of an open pull request, and one that a link still shows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, Select, and_, delete, false, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from services.analyses.models import OPEN_STATUSES, SETTLED_STATUSES, AnalysisRow, Purpose
from services.checks.models import CheckResultRow, TargetRow
from services.database.base import FromNow
from services.findings.models import FindingRow, SuppressionRow
from services.forges.models import PullRequestRow
from services.jobs.models import JobRow
from services.projects.models import ProjectRow, ShareLinkRow
from services.retention.model import Keep
from services.snapshots.models import SnapshotRow
from services.triage.models import ProjectFindingRow, TriageEventRow

# Rows that hang on an analysis, those that refer to others first: then no row that goes has to be looked for elsewhere.
_BELONGINGS = (CheckResultRow, JobRow, TargetRow, FindingRow, SuppressionRow)


def droppable(session: Session, keep: Keep, *, limit: int) -> Sequence[str]:
    """The ids of up to `limit` analyses that need not be kept, the newest first: a base goes after its change."""
    if keep.everything:
        return ()
    return session.scalars(_droppable(keep).limit(limit)).all()


def count_droppable(session: Session, keep: Keep) -> int:
    """How many analyses need not be kept."""
    if keep.everything:
        return 0
    return session.scalar(select(func.count()).select_from(_droppable(keep).subquery())) or 0


def count_freed(session: Session, keep: Keep) -> int:
    """How many snapshots nothing would refer to once these analyses were dropped."""
    going = _droppable(keep).subquery()
    needed = select(AnalysisRow.snapshot_digest).where(
        AnalysisRow.snapshot_digest.is_not(None), AnalysisRow.id.not_in(select(going.c.id))
    )
    if keep.everything:
        needed = select(AnalysisRow.snapshot_digest).where(AnalysisRow.snapshot_digest.is_not(None))
    statement = select(func.count()).select_from(SnapshotRow).where(SnapshotRow.digest.not_in(needed))
    return session.scalar(statement) or 0


def drop_analysis(session: Session, analysis_id: str) -> bool:
    """Drop one analysis with all that is its own; False if it is gone already, or runs.

    What refers to it without belonging to it (a finding of the project, a closed pull request) forgets it.
    """
    row = session.scalar(select(AnalysisRow).where(AnalysisRow.id == analysis_id).with_for_update())
    if row is None or row.status in OPEN_STATUSES:
        return False
    for belonging in _BELONGINGS:
        session.execute(delete(belonging).where(belonging.analysis_id == analysis_id))
    if row.project_id is not None:
        for column in (ProjectFindingRow.first_analysis_id, ProjectFindingRow.last_analysis_id):
            session.execute(
                update(ProjectFindingRow)
                .where(ProjectFindingRow.project_id == row.project_id, column == analysis_id)
                .values({column: None})
                .execution_options(synchronize_session=False)
            )
    for reference in (PullRequestRow.analysis_id, PullRequestRow.base_analysis_id):
        session.execute(
            update(PullRequestRow)
            .where(reference == analysis_id)
            .values({reference: None})
            .execution_options(synchronize_session=False)
        )
    session.execute(delete(AnalysisRow).where(AnalysisRow.id == analysis_id))
    return True


def forget_snapshots(session: Session, unused_for: timedelta, *, limit: int) -> int:
    """Drop the rows of snapshots that no analysis refers to and that nobody has stored for a while; how many.

    Whoever stores one again meanwhile holds its row until its own transaction ends (`record_snapshot`), and then the
    row is not old any more.
    """
    unused = (
        SnapshotRow.created_at < FromNow(-unused_for),
        ~select(AnalysisRow.id).where(AnalysisRow.snapshot_digest == SnapshotRow.digest).exists(),
    )
    chosen = (
        select(SnapshotRow.digest)
        .where(*unused)
        .order_by(SnapshotRow.digest)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    gone = session.scalars(
        delete(SnapshotRow)
        .where(SnapshotRow.digest.in_(select(chosen.c.digest)), *unused)
        .returning(SnapshotRow.digest)
        .execution_options(synchronize_session=False)
    )
    return len(gone.all())


def known_snapshots(session: Session, digests: Collection[str]) -> frozenset[str]:
    """Those of the digests that have a row."""
    return frozenset(session.scalars(select(SnapshotRow.digest).where(SnapshotRow.digest.in_(digests))))


def _droppable(keep: Keep) -> Select[str]:
    candidates = select(AnalysisRow.id).where(_may_go(keep), *_not_wanted()).cte("candidates")
    kept = (
        select(AnalysisRow.id, AnalysisRow.base_id)
        .where(AnalysisRow.id.not_in(select(candidates.c.id)))
        .cte("kept", recursive=True)
    )
    base = aliased(AnalysisRow)
    kept = kept.union(select(base.id, base.base_id).where(base.id == kept.c.base_id))
    return select(candidates.c.id).where(candidates.c.id.not_in(select(kept.c.id))).order_by(candidates.c.id.desc())


def _may_go(keep: Keep) -> ColumnElement[bool]:
    """Whether it has ended, and is older than wanted or one of more than wanted."""
    ended = AnalysisRow.status.not_in(OPEN_STATUSES)
    reasons = []
    if keep.age is not None:
        reasons.append(AnalysisRow.finished_at < FromNow(-keep.age))
    if keep.number:
        counted = aliased(AnalysisRow)
        place = func.row_number().over(partition_by=counted.project_id, order_by=counted.id.desc())
        ranked = select(counted.id, place.label("place")).where(counted.status.not_in(OPEN_STATUSES)).subquery()
        reasons.append(AnalysisRow.id.in_(select(ranked.c.id).where(ranked.c.place > keep.number)))
    return and_(ended, or_(false(), *reasons))


def _not_wanted() -> Sequence[ColumnElement[bool]]:
    """That nobody may come back to it, its being a base apart."""
    newest = aliased(AnalysisRow)
    of_main_line = (
        select(func.max(newest.id))
        .where(newest.purpose == Purpose.MAIN, newest.project_id.is_not(None))
        .group_by(newest.project_id)
    )
    decided = or_(
        ProjectFindingRow.decided_at.is_not(None),
        select(TriageEventRow.id)
        .where(TriageEventRow.finding_id == ProjectFindingRow.id, TriageEventRow.actor_kind != "system")
        .exists(),
    )
    wanted: tuple[Select[str] | Select[str | None], ...] = (
        of_main_line,
        of_main_line.where(newest.status.in_(SETTLED_STATUSES)),
        select(ProjectRow.baseline_id).where(ProjectRow.baseline_id.is_not(None)),
        select(ProjectFindingRow.last_analysis_id).where(ProjectFindingRow.last_analysis_id.is_not(None), decided),
        *(
            select(column).where(column.is_not(None), PullRequestRow.state == "open")
            for column in (PullRequestRow.analysis_id, PullRequestRow.base_analysis_id)
        ),
        select(ShareLinkRow.analysis_id).where(ShareLinkRow.revoked_at.is_(None), ShareLinkRow.expires_at > FromNow()),
    )
    return [AnalysisRow.id.not_in(each) for each in wanted]
