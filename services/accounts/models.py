"""The tables of accounts: users, their sessions and identities, organisations, memberships, API tokens.

No secret is kept in a form that could be used: of tokens and sessions there is a keyed hash, of passwords an Argon2id
one. This module must not know what anybody may do (`services.accounts.access`).
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn, UtcDateTime, utc_now
from services.projects.models import DEFAULT_ORGANISATION as DEFAULT_ORGANISATION  # noqa: PLC0414 - asked for here

_ROLE_IS_KNOWN = "role IN ('viewer', 'triager', 'maintainer', 'admin')"


class UserRow(Base):
    """A person. `password` is an Argon2id hash, null for who signs in through an identity provider only.

    `is_operator`: may do everything everywhere, as whoever runs the installation.
    """

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    display_name: Mapped[str]
    email: Mapped[str | None] = mapped_column(index=True)
    password: Mapped[str | None]
    is_operator: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class IdentityRow(Base):
    """Whom an identity provider means: `subject` at `issuer` is this user."""

    __tablename__ = "identities"

    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class OrganisationRow(Base):
    """Who owns projects. `slug` is what addresses and full project names use."""

    __tablename__ = "organisations"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    slug: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)


class MembershipRow(Base):
    """A person's role in all projects of an organisation."""

    __tablename__ = "memberships"

    organisation_id: Mapped[str] = mapped_column(ForeignKey("organisations.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

    __table_args__ = (CheckConstraint(_ROLE_IS_KNOWN, name="role_is_known"),)


class ProjectMembershipRow(Base):
    """A person's role in one project; of this and the one in the organisation the greater counts."""

    __tablename__ = "project_memberships"

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

    __table_args__ = (CheckConstraint(_ROLE_IS_KNOWN, name="role_is_known"),)


class SessionRow(Base):
    """A browser that has signed in: as a user, or with a token. `digest` is the keyed hash of what its cookie holds."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    digest: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    token_id: Mapped[str | None] = mapped_column(ForeignKey("api_tokens.id", ondelete="CASCADE"), index=True)
    agent: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)

    __table_args__ = (CheckConstraint("(user_id IS NULL) <> (token_id IS NULL)", name="belongs_to_one"),)


class SignInAttemptsRow(Base):
    """Failed attempts to sign in, by what they have in common: a name, or an address."""

    __tablename__ = "sign_in_attempts"

    key: Mapped[str] = mapped_column(primary_key=True)
    failures: Mapped[int]
    last_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    closed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ApiTokenRow(Base):
    """One API token: what it may do, until when, and the last four characters by which its owner knows it.

    One of a user may do what that user may, within its scopes; one of a project acts there only; one of neither acts
    for the installation, everywhere.
    """

    __tablename__ = "api_tokens"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    kind: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    last_four: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JsonColumn)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AuditEventRow(Base):
    """Something that somebody did that a team may have to answer for. Never changed, never deleted: see the triggers
    of migration 0006.
    """

    __tablename__ = "audit_events"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    actor_kind: Mapped[str]
    actor_id: Mapped[str]
    actor_name: Mapped[str]
    organisation_id: Mapped[str | None]
    project_id: Mapped[str | None]
    action: Mapped[str]
    object_kind: Mapped[str]
    object_id: Mapped[str]
    details: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)

    __table_args__ = (Index(None, "organisation_id", "id"), Index(None, "project_id", "id"))
