"""Queries over outgoing hooks, what they were told, and links that share an analysis. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from services.projects.models import HookDeliveryRow, HookRow, ShareLinkRow


def hooks_of(session: Session, project_id: str, limit: int) -> Sequence[HookRow]:
    """Up to `limit` hooks of a project, the oldest first."""
    return session.scalars(
        select(HookRow).where(HookRow.project_id == project_id).order_by(HookRow.id).limit(limit)
    ).all()


def count_hooks(session: Session, project_id: str) -> int:
    """How many hooks a project has."""
    return session.scalar(select(func.count(HookRow.id)).where(HookRow.project_id == project_id)) or 0


def find_hook(session: Session, project_id: str, hook_id: str) -> HookRow | None:
    """A hook of a project."""
    return session.scalars(select(HookRow).where(HookRow.id == hook_id, HookRow.project_id == project_id)).one_or_none()


def deliveries_of(session: Session, hook_id: str, *, before: str | None, limit: int) -> Sequence[HookDeliveryRow]:
    """Up to `limit` deliveries of a hook, older than the cursor `before`, the newest first."""
    statement = (
        select(HookDeliveryRow)
        .where(HookDeliveryRow.hook_id == hook_id)
        .order_by(HookDeliveryRow.id.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(HookDeliveryRow.id < before)
    return session.scalars(statement).all()


def due_deliveries(session: Session, now: datetime, limit: int) -> Sequence[HookDeliveryRow]:
    """Up to `limit` deliveries whose time has come, the longest due first."""
    return session.scalars(
        select(HookDeliveryRow).where(HookDeliveryRow.due_at <= now).order_by(HookDeliveryRow.due_at).limit(limit)
    ).all()


def end_calls_of_disabled(session: Session) -> None:
    """End what still waits to be told to hooks that were switched off meanwhile."""
    off = select(HookRow.id).where(HookRow.disabled_at.is_not(None))
    session.execute(
        update(HookDeliveryRow)
        .where(HookDeliveryRow.due_at.is_not(None), HookDeliveryRow.hook_id.in_(off))
        .values(due_at=None, reason="the hook was switched off")
        .execution_options(synchronize_session=False)
    )


def take_delivery(session: Session, delivery: HookDeliveryRow, until: datetime) -> bool:
    """Count an attempt and keep others from it until then; False if somebody else was quicker."""
    taken = session.scalar(
        update(HookDeliveryRow)
        .where(HookDeliveryRow.id == delivery.id, HookDeliveryRow.due_at == delivery.due_at)
        .values(due_at=until, attempts=HookDeliveryRow.attempts + 1)
        .returning(HookDeliveryRow.id)
        .execution_options(synchronize_session=False)
    )
    return taken is not None


def forget_deliveries(session: Session, before: datetime, limit: int) -> None:
    """Delete up to `limit` deliveries that were over before a moment."""
    old = (
        select(HookDeliveryRow.id)
        .where(HookDeliveryRow.due_at.is_(None), HookDeliveryRow.created_at < before)
        .limit(limit)
    )
    session.execute(
        delete(HookDeliveryRow).where(HookDeliveryRow.id.in_(old)).execution_options(synchronize_session=False)
    )


def links_of(session: Session, analysis_id: str, limit: int) -> Sequence[ShareLinkRow]:
    """Up to `limit` links that share an analysis, the newest first."""
    return session.scalars(
        select(ShareLinkRow)
        .where(ShareLinkRow.analysis_id == analysis_id)
        .order_by(ShareLinkRow.id.desc())
        .limit(limit)
    ).all()
