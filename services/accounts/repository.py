"""Queries over API tokens. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, false, func, or_, select, true, update
from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject, belongs_to_readable
from services.accounts.models import ApiTokenRow
from services.database.base import FromNow, utc_now


def find_by_digest(session: Session, digest: str) -> ApiTokenRow | None:
    """The token with this hash."""
    return session.scalars(select(ApiTokenRow).where(ApiTokenRow.digest == digest)).one_or_none()


def newest_tokens(session: Session, limit: int) -> Sequence[ApiTokenRow]:
    """Up to `limit` tokens, revoked ones too, the newest first."""
    return session.scalars(select(ApiTokenRow).order_by(ApiTokenRow.id.desc()).limit(limit)).all()


def concerning(
    session: Session, subject: Subject, *, before: str | None, limit: int, project_id: str | None
) -> Sequence[ApiTokenRow]:
    """Up to `limit` tokens that concern `subject`, older than the cursor `before`, the newest first."""
    statement = select(ApiTokenRow).where(_concern(subject)).order_by(ApiTokenRow.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(ApiTokenRow.id < before)
    if project_id is not None:
        statement = statement.where(ApiTokenRow.project_id == project_id)
    return session.scalars(statement).all()


def find_concerning(session: Session, subject: Subject, token_id: str) -> ApiTokenRow | None:
    """The token with this id, if it concerns `subject`."""
    return session.scalars(select(ApiTokenRow).where(ApiTokenRow.id == token_id, _concern(subject))).one_or_none()


def _concern(subject: Subject) -> ColumnElement[bool]:
    if subject.everywhere and Permission.ADMINISTER in subject.permissions:
        return true()
    own = false() if subject.user_id is None else ApiTokenRow.user_id == subject.user_id
    return or_(own, belongs_to_readable(ApiTokenRow.project_id, subject, Permission.CONFIGURE))


def count_usable(session: Session) -> int:
    """How many tokens can be used at present."""
    statement = select(func.count(ApiTokenRow.id)).where(
        ApiTokenRow.revoked_at.is_(None), or_(ApiTokenRow.expires_at.is_(None), ApiTokenRow.expires_at > FromNow())
    )
    return session.scalar(statement) or 0


def note_use(session: Session, token_id: str, every: timedelta) -> None:
    """Note that the token was used, at most once in `every`."""
    session.execute(
        update(ApiTokenRow)
        .where(
            ApiTokenRow.id == token_id,
            or_(ApiTokenRow.last_used_at.is_(None), ApiTokenRow.last_used_at < FromNow(-every)),
        )
        .values(last_used_at=utc_now())
        .execution_options(synchronize_session=False)
    )
