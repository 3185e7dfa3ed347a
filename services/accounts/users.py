"""People: making them known, letting them in by password, disabling them.

This module must not know HTTP, nor what a session looks like to a browser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from services.accounts import passwords
from services.accounts import user_repository as repository
from services.accounts.access import EVERYTHING, Permission, Subject
from services.accounts.attempts import Attempts
from services.accounts.audit import note
from services.accounts.errors import (
    LastAdminError,
    PermissionDeniedError,
    UserExistsError,
    UserNameError,
    UserNotFoundError,
    WrongPasswordError,
)
from services.accounts.models import UserRow
from services.database import Database
from services.database.base import utc_now

NAME_PATTERN: Final = r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?"
_EMAIL: Final = re.compile(r"[^\s@<>\x00-\x1f]{1,100}@[^\s@<>\x00-\x1f]{1,150}")
_NOTED_NAME: Final = 64
PAGE_LIMIT: Final = 200
DISPLAY_NAME_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user without the hash of the password."""

    id: str
    name: str
    display_name: str
    email: str | None
    is_operator: bool
    has_password: bool
    created_at: datetime
    disabled_at: datetime | None
    last_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class UserPage:
    """Some users in the order of their names; `next_cursor` asks for the next ones."""

    items: tuple[UserInfo, ...]
    next_cursor: str | None


class UserService:
    """Everything about users but what they are members of."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        subject: Subject,
        name: str,
        *,
        password: str | None,
        email: str | None = None,
        display_name: str | None = None,
        is_operator: bool = False,
    ) -> UserInfo:
        """Make a user known. Without a password, only an identity provider can let it in.

        Raises `UserNameError`, `PasswordRefusedError`, `UserExistsError`, `PermissionDeniedError`.
        """
        require_installation(subject)
        name = checked_name(name)
        if email is not None:
            email = _checked_email(email)
        if password is not None:
            passwords.judge(password, name=name)
        kept = None if password is None else passwords.hash_password(password)
        try:
            with self._database.unit_of_work() as uow:
                if repository.find_user(uow.session, name) is not None:
                    raise _taken(name)
                row = UserRow(
                    name=name,
                    display_name=(display_name or name)[:200],
                    email=email,
                    password=kept,
                    is_operator=is_operator,
                )
                uow.session.add(row)
                uow.session.flush()
                note(
                    uow.session, subject, "user.create", "user", row.id, details={"name": name, "operator": is_operator}
                )
                return user_info(row)
        except IntegrityError as error:
            raise _taken(name) from error

    def find(self, name: str) -> UserInfo:
        """A user by name. Raises `UserNotFoundError`."""
        with self._database.reading() as session:
            return user_info(named_user(session, name))

    def me(self, subject: Subject) -> UserInfo:
        """The user that `subject` is. Raises `PermissionDeniedError` for whoever is none."""
        with self._database.reading() as session:
            return user_info(myself(session, subject))

    def list(self, subject: Subject, *, cursor: str | None = None, limit: int = 50) -> UserPage:
        """All users, in the order of their names; for operators. Raises `PermissionDeniedError`."""
        require_installation(subject)
        limit = max(1, min(limit, PAGE_LIMIT))
        with self._database.reading() as session:
            rows = repository.users_after(session, cursor or "", limit + 1)
            items = tuple(user_info(row) for row in rows[:limit])
            return UserPage(items, items[-1].name if len(rows) > limit else None)

    def set_email(self, subject: Subject, name: str, email: str | None) -> UserInfo:
        """Give somebody another e-mail address, or none; for operators.

        Raises `UserNotFoundError`, `UserNameError`, `PermissionDeniedError`.
        """
        require_installation(subject)
        wanted = None if email is None else _checked_email(email)
        with self._database.unit_of_work() as uow:
            row = named_user(uow.session, name)
            if row.email != wanted:
                row.email = wanted
                note(
                    uow.session,
                    subject,
                    "user.email",
                    "user",
                    row.id,
                    details={"name": row.name, "has_one": wanted is not None},
                )
            return user_info(row)

    def rename(self, subject: Subject, display_name: str) -> UserInfo:
        """A user is shown to others by another name from now on; what it did before keeps the name of then.

        Raises `UserNameError`, or `PermissionDeniedError` for whoever is no user.
        """
        wanted = " ".join(display_name.split())
        if not 0 < len(wanted) <= DISPLAY_NAME_LENGTH or not wanted.isprintable():
            raise UserNameError(
                f"a display name has 1 to {DISPLAY_NAME_LENGTH} printable characters", field="display_name"
            )
        with self._database.unit_of_work() as uow:
            row = myself(uow.session, subject)
            if row.display_name != wanted:
                details = {"name": row.name, "from": row.display_name, "to": wanted}
                row.display_name = wanted
                note(uow.session, subject, "user.rename", "user", row.id, details=details)
            return user_info(row)

    def disable(self, subject: Subject, name: str) -> UserInfo:
        """Let somebody in no more: sessions end, tokens let nobody in. Doing it again changes nothing.

        Raises `UserNotFoundError`, `PermissionDeniedError`, `LastAdminError` for the last operator.
        """
        require_installation(subject)
        with self._database.unit_of_work() as uow:
            row = named_user(uow.session, name)
            if row.disabled_at is None:
                _require_another(uow.session, row)
                row.disabled_at = utc_now()
                repository.end_sessions(uow.session, user_id=row.id)
                note(uow.session, subject, "user.disable", "user", row.id, details={"name": row.name})
            return user_info(row)

    def enable(self, subject: Subject, name: str) -> UserInfo:
        """Let somebody in again, with the password and the tokens of before. Raises as `disable` does."""
        require_installation(subject)
        with self._database.unit_of_work() as uow:
            row = named_user(uow.session, name)
            if row.disabled_at is not None:
                row.disabled_at = None
                note(uow.session, subject, "user.enable", "user", row.id, details={"name": row.name})
            return user_info(row)

    def set_operator(self, subject: Subject, name: str, *, operator: bool) -> UserInfo:
        """Let somebody do everything everywhere, or no longer; it holds from their next request on.

        Raises `UserNotFoundError`, `PermissionDeniedError`, `LastAdminError` for the last operator.
        """
        require_installation(subject)
        with self._database.unit_of_work() as uow:
            row = named_user(uow.session, name)
            if row.is_operator is not operator:
                if not operator:
                    _require_another(uow.session, row)
                row.is_operator = operator
                details = {"name": row.name, "operator": operator}
                note(uow.session, subject, "user.operator", "user", row.id, details=details)
            return user_info(row)

    def set_password(self, subject: Subject, name: str, password: str) -> UserInfo:
        """Give somebody a new password; all their sessions end.

        Raises `UserNotFoundError`, `PasswordRefusedError`, `PermissionDeniedError`.
        """
        require_installation(subject)
        with self._database.reading() as session:
            user = named_user(session, name)
        passwords.judge(password, name=user.name)
        return self._keep(subject, user.id, passwords.hash_password(password), spare=None)

    def change_password(
        self, subject: Subject, *, old: str, new: str, address: str | None, spare: str | None = None
    ) -> UserInfo:
        """A user changes the own password, and shows that it knows the old one. All sessions end but `spare`.

        Raises `PermissionDeniedError` for whoever is no user or has no password, `WrongPasswordError`,
        `TooManyAttemptsError`, `PasswordRefusedError`.
        """
        with self._database.reading() as session:
            user = None if subject.kind != "user" else session.get(UserRow, subject.user_id)
        if user is None or user.password is None:
            raise PermissionDeniedError("there is no password to change: you did not sign in with one")
        attempts = Attempts(self._database, name=user.name, address=address)
        attempts.open()
        if not passwords.verify(user.password, old):
            raise WrongPasswordError("the old password is wrong")
        attempts.succeeded()
        passwords.judge(new, name=user.name)
        return self._keep(subject, user.id, passwords.hash_password(new), spare=spare)

    def sign_in(self, name: str, password: str, *, address: str | None) -> Subject:
        """Who name and password belong to. The answer to a wrong name is that to a wrong password, and takes as long.

        Raises `WrongPasswordError`, or `TooManyAttemptsError` after too many failures.
        """
        name = name.strip().lower()[:200]
        attempts = Attempts(self._database, name=name, address=address)
        attempts.open()
        with self._database.reading() as session:
            user = repository.find_user(session, name)
        right = passwords.verify(None if user is None else user.password, password)
        if user is None or not right or user.disabled_at is not None:
            self._note_failure(user, name, address)
            raise WrongPasswordError("name and password do not belong together")
        attempts.succeeded()
        assert user.password is not None
        renewed = passwords.hash_password(password) if passwords.is_outdated(user.password) else None
        with self._database.unit_of_work() as uow:
            row = uow.session.get_one(UserRow, user.id)
            row.last_seen_at = utc_now()
            if renewed is not None and row.password == user.password:
                row.password = renewed
        return subject_of_user(user)

    def passwords_exist(self) -> bool:
        """Whether anybody can sign in with a password."""
        with self._database.reading() as session:
            return repository.anybody_has_password(session)

    def _keep(self, subject: Subject, user_id: str, kept: str, *, spare: str | None) -> UserInfo:
        with self._database.unit_of_work() as uow:
            row = uow.session.get_one(UserRow, user_id)
            row.password = kept
            repository.end_sessions(uow.session, user_id=row.id, spare=spare)
            note(uow.session, subject, "user.password", "user", row.id, details={"name": row.name})
            return user_info(row)

    def _note_failure(self, user: UserRow | None, name: str, address: str | None) -> None:
        """Only of names that exist: those that do not could fill the log without end."""
        if user is None:
            return
        nobody = Subject("nobody", "", name[:_NOTED_NAME], frozenset())
        with self._database.unit_of_work() as uow:
            note(uow.session, nobody, "sign-in.failure", "user", user.id, details={"address": address})


def myself(session: Session, subject: Subject) -> UserRow:
    """The user that `subject` is. Raises `PermissionDeniedError` for whoever is none."""
    row = None if subject.kind != "user" else session.get(UserRow, subject.user_id)
    if row is None:
        raise PermissionDeniedError("you are signed in with a token, which is nobody's account")
    return row


def subject_of_user(row: UserRow) -> Subject:
    """A user who is signed in: as much as its roles allow, or everything for an operator."""
    return Subject(
        kind="user",
        id=row.id,
        name=row.name,
        permissions=EVERYTHING,
        everywhere=row.is_operator,
        user_id=row.id,
    )


def require_installation(subject: Subject) -> None:
    """Raises `PermissionDeniedError` for whoever does not administer the whole installation."""
    if not subject.everywhere or Permission.ADMINISTER not in subject.permissions:
        raise PermissionDeniedError("this is for operators of the installation", permission=Permission.ADMINISTER.value)


def checked_name(name: str) -> str:
    """A name as it is kept. Raises `UserNameError`."""
    name = name.strip().lower()
    if not re.fullmatch(NAME_PATTERN, name):
        raise UserNameError(
            "a name has 1 to 64 lower-case letters, digits, '.', '_' or '-', and begins and ends with a letter or digit"
        )
    return name


def _checked_email(email: str) -> str:
    if not _EMAIL.fullmatch(email):
        raise UserNameError("this is no e-mail address", field="email")
    return email


def named_user(session: Session, name: str) -> UserRow:
    """The user of this name. Raises `UserNotFoundError`."""
    row = repository.find_user(session, name)
    if row is None:
        raise UserNotFoundError(f"there is no user {name[:64]!r}", user=name[:64])
    return row


def user_info(row: UserRow) -> UserInfo:
    """A user as it is shown."""
    return UserInfo(
        id=row.id,
        name=row.name,
        display_name=row.display_name,
        email=row.email,
        is_operator=row.is_operator,
        has_password=row.password is not None,
        created_at=row.created_at,
        disabled_at=row.disabled_at,
        last_seen_at=row.last_seen_at,
    )


def _require_another(session: Session, row: UserRow) -> None:
    """Raise `LastAdminError` if this user is the one operator that is not disabled."""
    if row.is_operator and row.disabled_at is None and repository.count_operators(session) < 2:
        raise LastAdminError(f"{row.name!r} is the only operator: make somebody else one first", user=row.name)


def _taken(name: str) -> UserExistsError:
    return UserExistsError(f"there is a user {name!r} already", user=name)
