"""People, organisations and tokens for commands, which have settings and no open database.

Each call opens one and closes it again, and acts as Gradproof itself: who can run these commands owns the installation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from services.accounts.access import SYSTEM
from services.accounts.organisations import OrganisationService
from services.accounts.service import Scope, TokenService
from services.accounts.users import UserService
from services.database import Database
from services.settings import Settings

MADE_AT_FIRST_START = "made at the first start"


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    database = Database.open(settings, _no_doorbell)
    try:
        yield database
    finally:
        database.close()


def _no_doorbell(queue: str) -> None:
    raise AssertionError(f"nothing about accounts rings {queue}")


def create_token(
    settings: Settings,
    *,
    name: str,
    scope: str,
    lifetime: timedelta,
    user: str | None = None,
    project: str | None = None,
) -> str:
    """The text of a fresh token. Raises `UnknownScopeError`, `UserNotFoundError`, `ProjectNotFoundError`."""
    with _database(settings) as database:
        tokens = TokenService(database, settings)
        return tokens.create(name, [scope], expires_in=lifetime, user=user, project=project).text


def ensure_first_token(settings: Settings) -> str | None:
    """The text of a token that may do everything, made if there is no usable token yet; else None."""
    with _database(settings) as database:
        tokens = TokenService(database, settings)
        return None if tokens.any_usable() else tokens.create(MADE_AT_FIRST_START, [Scope.ADMIN], kind="first").text


def is_anybody_let_in(settings: Settings) -> bool:
    """Whether there is a way in at all: a usable token, a password, an identity provider."""
    with _database(settings) as database:
        return (
            TokenService(database, settings).any_usable()
            or UserService(database).passwords_exist()
            or bool(settings.oidc_issuer)
        )


def create_user(
    settings: Settings,
    name: str,
    *,
    password: str | None,
    email: str | None,
    operator: bool,
    organisation: str | None,
    role: str,
) -> str:
    """Make a user known, and a member of an organisation if one is named; the name as it is kept.

    Raises `UserNameError`, `PasswordRefusedError`, `UserExistsError`, `OrganisationNotFoundError`.
    """
    with _database(settings) as database:
        organisations = OrganisationService(database)
        if organisation is not None:
            organisations.get(SYSTEM, organisation)  # before the user is there
        user = UserService(database).create(SYSTEM, name, password=password, email=email, is_operator=operator)
        if organisation is not None:
            organisations.set_member(SYSTEM, organisation, user.name, role)
        return user.name


def disable_user(settings: Settings, name: str) -> None:
    """Let somebody in no more. Raises `UserNotFoundError`."""
    with _database(settings) as database:
        UserService(database).disable(SYSTEM, name)


def enable_user(settings: Settings, name: str) -> None:
    """Let somebody in again. Raises `UserNotFoundError`."""
    with _database(settings) as database:
        UserService(database).enable(SYSTEM, name)


def set_operator(settings: Settings, name: str, *, operator: bool) -> None:
    """Let somebody do everything everywhere, or no longer. Raises `UserNotFoundError`, `LastAdminError`."""
    with _database(settings) as database:
        UserService(database).set_operator(SYSTEM, name, operator=operator)


def set_password(settings: Settings, name: str, password: str) -> None:
    """Give somebody a new password. Raises `UserNotFoundError`, `PasswordRefusedError`."""
    with _database(settings) as database:
        UserService(database).set_password(SYSTEM, name, password)


def set_email(settings: Settings, name: str, email: str | None) -> None:
    """Give somebody an e-mail address, or none. Raises `UserNotFoundError`, `UserNameError`."""
    with _database(settings) as database:
        UserService(database).set_email(SYSTEM, name, email)


def create_organisation(settings: Settings, slug: str, name: str | None) -> None:
    """Make an organisation. Raises `OrganisationNameError`, `OrganisationExistsError`."""
    with _database(settings) as database:
        OrganisationService(database).create(SYSTEM, slug, name)
