"""Queues work towards a forge. A leaf on purpose: whoever ends an analysis calls it, and so it knows nothing of that.

The reconciler rings for what is due, within `reconcile_every`. This module must not know what a task does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.database.base import FromNow
from services.forges.models import ForgeTaskRow, PullRequestRow, RepositoryRow

TaskKind = Literal["delivery", "analyse", "publish"]
AT_ONCE: Final = timedelta(0)


def queue_task(
    session: Session,
    kind: TaskKind,
    subject_id: str,
    *,
    installation_id: str | None,
    pull_request_id: str | None = None,
    delivery_id: str | None = None,
    after: timedelta = AT_ONCE,
    details: dict[str, object] | None = None,
) -> None:
    """Have something done, once `after` has passed. What waits already is not queued twice, but waits anew.

    Tasks are safe to be done twice, so two that queue the same at one moment do no harm. `details` add to those that
    the waiting task has.
    """
    key = f"{kind}:{subject_id}"
    waiting = session.scalar(
        select(ForgeTaskRow)
        .where(ForgeTaskRow.key == key, ForgeTaskRow.state == "queued")
        .order_by(ForgeTaskRow.id)
        .limit(1)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    due: ColumnElement[datetime] = FromNow(after)
    if waiting is None:
        session.add(
            ForgeTaskRow(
                kind=kind,
                key=key,
                installation_id=installation_id,
                pull_request_id=pull_request_id,
                delivery_id=delivery_id,
                details=details or {},
                due_at=due,
            )
        )
    else:
        changed = {"due_at": due, "details": {**waiting.details, **(details or {})}}
        session.execute(
            update(ForgeTaskRow)
            .where(ForgeTaskRow.id == waiting.id, ForgeTaskRow.state == "queued")
            .values(**changed)
            .execution_options(synchronize_session=False)
        )
    session.flush()


def queue_publishing(session: Session, analysis: AnalysisRow) -> None:
    """The analysis was begun or has ended: bring the pull requests that it is of up to date, if it is of any.

    One that a newer head has superseded is of none any more.
    """
    rows = session.execute(
        select(PullRequestRow.id, RepositoryRow.installation_id)
        .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
        .where(PullRequestRow.analysis_id == analysis.id)
        .limit(100)
    ).all()
    for pull_request_id, installation_id in rows:
        queue_task(
            session, "publish", pull_request_id, installation_id=installation_id, pull_request_id=pull_request_id
        )
