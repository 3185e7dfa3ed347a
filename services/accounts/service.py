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
from services.accounts.access import EVERYTHING, Permission, Subject
from services.accounts.errors import TokenNotFoundError, UnknownScopeError
from services.accounts.models import ApiTokenRow, UserRow
from services.accounts.secret import secret_key
from services.accounts.tokens import is_well_formed, new_token, token_digest
from services.database import Database
from services.database.base import utc_now
from services.settings import Settings

# `last used` is there to find forgotten tokens: a write every request would cost more than it tells.
NOTE_USE_EVERY = timedelta(minutes=1)
LISTED = 200


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
        self, name: str, scopes: Collection[str], *, expires_in: timedelta | None = None, kind: str = "api"
    ) -> CreatedToken:
        """Make a token. Raises `UnknownScopeError`."""
        wanted = _scopes(scopes)
        text = new_token(kind)
        now = utc_now()
        with self._database.unit_of_work() as uow:
            row = ApiTokenRow(
                name=name,
                kind=kind,
                digest=token_digest(text, self._key),
                last_four=text[-4:],
                scopes=sorted(wanted),
                created_at=now,
                expires_at=None if expires_in is None else now + expires_in,
            )
            uow.session.add(row)
            uow.session.flush()
            return CreatedToken(text, _info(row))

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
            row.revoked_at = row.revoked_at or utc_now()
            uow.session.flush()
            return _info(row)

    def newest(self) -> tuple[TokenInfo, ...]:
        """The newest tokens, without their texts."""
        with self._database.reading() as session:
            return tuple(_info(row) for row in repository.newest_tokens(session, LISTED))

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
    )
