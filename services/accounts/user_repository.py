"""Queries over users, their sessions, their identities and failed attempts to sign in. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, exists, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from services.accounts.models import IdentityRow, SessionRow, SignInAttemptsRow, UserRow
from services.database.base import utc_now


def find_user(session: Session, name: str) -> UserRow | None:
    """The user of this name; names have no capitals."""
    return session.scalars(select(UserRow).where(UserRow.name == name.strip().lower())).one_or_none()


def users_after(session: Session, name: str, limit: int) -> Sequence[UserRow]:
    """Up to `limit` users whose names come after `name`, in their order."""
    return session.scalars(select(UserRow).where(UserRow.name > name).order_by(UserRow.name).limit(limit)).all()


def anybody_has_password(session: Session) -> bool:
    """Whether signing in with a password can succeed at all."""
    statement = select(exists().where(UserRow.password.is_not(None), UserRow.disabled_at.is_(None)))
    return bool(session.scalar(statement))


def find_identity(session: Session, issuer: str, subject: str) -> IdentityRow | None:
    """Whom an identity provider means."""
    return session.get(IdentityRow, (issuer, subject))


def find_session(session: Session, digest: str) -> SessionRow | None:
    """The session with this hash."""
    return session.scalars(select(SessionRow).where(SessionRow.digest == digest)).one_or_none()


def sessions_of(session: Session, user_id: str, limit: int) -> Sequence[SessionRow]:
    """Up to `limit` sessions of a user that are not over, the last seen first."""
    return session.scalars(
        select(SessionRow)
        .where(SessionRow.user_id == user_id, SessionRow.expires_at > utc_now())
        .order_by(SessionRow.seen_at.desc())
        .limit(limit)
    ).all()


def end_sessions(
    session: Session, *, user_id: str | None = None, token_id: str | None = None, spare: str | None = None
) -> None:
    """End all sessions of a user or of a token, but not the one with the id `spare`."""
    statement = delete(SessionRow).where(
        SessionRow.user_id == user_id if user_id is not None else SessionRow.token_id == token_id
    )
    if spare is not None:
        statement = statement.where(SessionRow.id != spare)
    session.execute(statement.execution_options(synchronize_session=False))


def forget_sessions(session: Session, now: datetime) -> None:
    """Delete the sessions that are over."""
    session.execute(delete(SessionRow).where(SessionRow.expires_at <= now).execution_options(synchronize_session=False))


def attempts(session: Session, key: str) -> SignInAttemptsRow:
    """The failures counted under a key, made if there were none, and held until the transaction ends."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(SignInAttemptsRow)
        .values(key=key, failures=0, last_at=utc_now(), closed_until=None)
        .on_conflict_do_nothing(index_elements=["key"])
    )
    return session.scalars(
        select(SignInAttemptsRow)
        .where(SignInAttemptsRow.key == key)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def forget_attempts(session: Session, before: datetime) -> None:
    """Delete what was counted last before a moment."""
    session.execute(
        delete(SignInAttemptsRow).where(SignInAttemptsRow.last_at < before).execution_options(synchronize_session=False)
    )


def count_operators(session: Session) -> int:
    """How many users run the installation."""
    statement = select(func.count(UserRow.id)).where(UserRow.is_operator, UserRow.disabled_at.is_(None))
    return session.scalar(statement) or 0
