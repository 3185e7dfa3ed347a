"""Queries over API tokens. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from services.accounts.models import ApiTokenRow
from services.database.base import FromNow, utc_now


def find_by_digest(session: Session, digest: str) -> ApiTokenRow | None:
    """The token with this hash."""
    return session.scalars(select(ApiTokenRow).where(ApiTokenRow.digest == digest)).one_or_none()


def newest_tokens(session: Session, limit: int) -> Sequence[ApiTokenRow]:
    """Up to `limit` tokens, revoked ones too, the newest first."""
    return session.scalars(select(ApiTokenRow).order_by(ApiTokenRow.id.desc()).limit(limit)).all()


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
