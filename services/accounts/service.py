"""Making, checking and revoking API tokens.

A token is shown once, when it is made; what is kept is a keyed hash. This module must not know HTTP.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy.orm import Session

from services.accounts import repository
from services.accounts.access import EVERYTHING, SYSTEM, Permission, Subject
from services.accounts.audit import note
from services.accounts.errors import PermissionDeniedError, TokenNameError, TokenNotFoundError, UnknownScopeError
from services.accounts.models import ApiTokenRow, UserRow
from services.accounts.secret import secret_key
from services.accounts.tokens import is_well_formed, new_token, token_digest
from services.accounts.user_repository import end_sessions
from services.accounts.users import named_user, require_installation
from services.database import Database
from services.database.base import utc_now
from services.projects.filing import named_project, require
from services.settings import Settings

# `last used` is there to find forgotten tokens: a write every request would cost more than it tells.
NOTE_USE_EVERY = timedelta(minutes=1)
LISTED = 200
NAME_LENGTH = 100


class Scope(StrEnum):
    """What a token may do; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    TRIAGE = "triage"
    ADMIN = "admin"


_ALLOWED = {
    Scope.READ: frozenset({Permission.READ}),
    Scope.SUBMIT: frozenset({Permission.READ, Permission.SUBMIT}),
    Scope.TRIAGE: frozenset({Permission.READ, Permission.SUBMIT, Permission.TRIAGE}),
    Scope.ADMIN: EVERYTHING,
}


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token without its text."""

    id: str
    name: str
    kind: str
    last_four: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    user_id: str | None = None
    project_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenPage:
    """Some tokens, the newest first; `next_cursor` asks for older ones."""

    items: tuple[TokenInfo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A fresh token, with the text that nobody will see again."""

    text: str
    info: TokenInfo


class TokenService:
    """Everything about API tokens."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._key = secret_key(settings)

    def create(
        self,
        name: str,
        scopes: Collection[str],
        *,
        expires_in: timedelta | None = None,
        kind: str = "api",
        user: str | None = None,
        project: str | None = None,
    ) -> CreatedToken:
        """Make a token for whoever runs the installation: for all of it, of a user, or of a project (by name).

        Raises `UnknownScopeError`, `UserNotFoundError`, `ProjectNotFoundError`.
        """
        wanted = _scopes(scopes)
        with self._database.unit_of_work() as uow:
            user_id = None if user is None else named_user(uow.session, user).id
            project_id = None if project is None else named_project(uow.session, SYSTEM, project).id
            return self._make(
                uow.session,
                SYSTEM,
                name,
                wanted,
                kind=kind,
                expires_in=expires_in,
                user_id=user_id,
                project_id=project_id,
            )

    def issue(
        self,
        subject: Subject,
        name: str,
        scope: str,
        *,
        lifetime: timedelta | None,
        project: str | None = None,
        installation: bool = False,
    ) -> CreatedToken:
        """Make a token: of a project, of the installation, or else of the user who asks. It may no more than they.

        Whoever holds a token that may not everything makes none, not even its equal: that one would outlive its end.
        Raises `UnknownScopeError`, `TokenNameError`, `ProjectNotFoundError`, `PermissionDeniedError`.
        """
        (wanted,) = _scopes([scope])
        name = " ".join(name.split())
        if not 0 < len(name) <= NAME_LENGTH or not name.isprintable():
            raise TokenNameError(f"a token's name has 1 to {NAME_LENGTH} printable characters")
        _require_keeper(subject)
        user_id = project_id = None
        with self._database.unit_of_work() as uow:
            if installation:
                require_installation(subject)
            elif project is not None:
                project_id = named_project(uow.session, subject, project, Permission.CONFIGURE).id
                for permission in sorted(_ALLOWED[wanted]):
                    require(uow.session, subject, project_id, permission)
            elif subject.user_id is not None:
                user_id = subject.user_id
            else:
                require_installation(subject)
            return self._make(
                uow.session,
                subject,
                name,
                {wanted},
                kind="api",
                expires_in=lifetime,
                user_id=user_id,
                project_id=project_id,
            )

    def authenticate(self, text: str) -> Subject | None:
        """Whose token this is; None if it is nobody's, revoked, or has expired. Notes that it was used."""
        if not is_well_formed(text):
            return None
        digest = token_digest(text, self._key)
        with self._database.reading() as session:
            row = repository.find_by_digest(session, digest)
            # The index compared hashes, not tokens: its timing says nothing about a token's text. Compared again in
            # constant time all the same, so that a database with a lenient collation can't let a look-alike in.
            if row is None or not hmac.compare_digest(row.digest, digest):
                return None
            subject = subject_of_token(session, row)
            if subject is None:
                return None
        if row.last_used_at is None or utc_now() - row.last_used_at > NOTE_USE_EVERY:
            with self._database.unit_of_work() as uow:
                repository.note_use(uow.session, row.id, NOTE_USE_EVERY)
        return subject

    def find(self, token_id: str) -> Subject | None:
        """The holder of the token with this id; None if there is no such token or it can't be used any more."""
        with self._database.reading() as session:
            row = session.get(ApiTokenRow, token_id)
            return None if row is None else subject_of_token(session, row)

    def revoke(self, token_id: str) -> TokenInfo:
        """Make a token useless at once; doing it again changes nothing. Raises `TokenNotFoundError`."""
        with self._database.unit_of_work() as uow:
            row = uow.session.get(ApiTokenRow, token_id)
            if row is None:
                raise TokenNotFoundError(f"there is no token {token_id!r}", id=token_id)
            return self._end(uow.session, SYSTEM, row)

    def withdraw(self, subject: Subject, token_id: str) -> TokenInfo:
        """Make a token useless at once, if it concerns `subject`: its user, maintainers of its project, operators.

        Doing it again changes nothing. Raises `TokenNotFoundError`, `PermissionDeniedError`.
        """
        _require_keeper(subject)
        with self._database.unit_of_work() as uow:
            row = repository.find_concerning(uow.session, subject, token_id)
            if row is None:
                raise TokenNotFoundError(f"there is no token {token_id[:50]!r}", id=token_id[:50])
            return self._end(uow.session, subject, row)

    def list(
        self, subject: Subject, *, project: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> TokenPage:
        """The tokens that concern `subject`, revoked ones too, the newest first: its own, those of projects that it may
        configure, for operators all. With `project`, only those of that project.

        Raises `ProjectNotFoundError`, `PermissionDeniedError`.
        """
        limit = max(1, min(limit, LISTED))
        with self._database.reading() as session:
            project_id = None
            if project is not None:
                project_id = named_project(session, subject, project, Permission.CONFIGURE).id
            rows = repository.concerning(session, subject, before=cursor, limit=limit + 1, project_id=project_id)
            items = tuple(_info(row) for row in rows[:limit])
            return TokenPage(items, items[-1].id if len(rows) > limit else None)

    def newest(self) -> tuple[TokenInfo, ...]:
        """The newest tokens, without their texts."""
        with self._database.reading() as session:
            return tuple(_info(row) for row in repository.newest_tokens(session, LISTED))

    def _make(
        self,
        session: Session,
        subject: Subject,
        name: str,
        scopes: Collection[Scope],
        *,
        kind: str,
        expires_in: timedelta | None,
        user_id: str | None,
        project_id: str | None,
    ) -> CreatedToken:
        text = new_token(kind)
        now = utc_now()
        row = ApiTokenRow(
            name=name,
            kind=kind,
            digest=token_digest(text, self._key),
            last_four=text[-4:],
            scopes=sorted(scopes),
            user_id=user_id,
            project_id=project_id,
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )
        session.add(row)
        session.flush()
        details = {"name": name, "scopes": row.scopes, "user": user_id}
        note(session, subject, "token.create", "token", row.id, project_id=project_id, details=details)
        return CreatedToken(text, _info(row))

    @staticmethod
    def _end(session: Session, subject: Subject, row: ApiTokenRow) -> TokenInfo:
        if row.revoked_at is None:
            row.revoked_at = utc_now()
            end_sessions(session, token_id=row.id)
            note(
                session, subject, "token.revoke", "token", row.id, project_id=row.project_id, details={"name": row.name}
            )
        return _info(row)

    def any_usable(self) -> bool:
        """Whether anybody can get in at all."""
        with self._database.reading() as session:
            return repository.count_usable(session) > 0


def _scopes(names: Collection[str]) -> frozenset[Scope]:
    known = {scope.value: scope for scope in Scope}
    for name in names:
        if name not in known:
            raise UnknownScopeError(f"there is no scope {name!r}: there are {', '.join(known)}", scope=name)
    if not names:
        raise UnknownScopeError("a token needs at least one scope: " + ", ".join(known))
    return frozenset(known[name] for name in names)


def _require_keeper(subject: Subject) -> None:
    """Raises `PermissionDeniedError` for the holder of a token that was not meant to look after tokens."""
    if Permission.ADMINISTER not in subject.permissions:
        raise PermissionDeniedError("a token looks after others only with the scope 'admin'", scope=Scope.ADMIN.value)


def _usable(row: ApiTokenRow) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > utc_now())


def subject_of_token(session: Session, row: ApiTokenRow) -> Subject | None:
    """Whoever holds this token; None if it is over, or its user is disabled."""
    user = None if row.user_id is None else session.get(UserRow, row.user_id)
    if not _usable(row) or (user is not None and user.disabled_at is not None):
        return None
    return Subject(
        kind="token",
        id=row.id,
        name=row.name if user is None else f"{user.name} ({row.name})",
        permissions=frozenset[Permission]().union(*(_ALLOWED[Scope(name)] for name in row.scopes)),
        everywhere=user.is_operator if user is not None else row.project_id is None,
        user_id=row.user_id,
        project_id=row.project_id,
    )


def _info(row: ApiTokenRow) -> TokenInfo:
    return TokenInfo(
        id=row.id,
        name=row.name,
        kind=row.kind,
        last_four=row.last_four,
        scopes=frozenset(Scope(name) for name in row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        user_id=row.user_id,
        project_id=row.project_id,
    )
