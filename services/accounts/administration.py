"""Tokens for commands, which have settings and no open database. Each call opens one and closes it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from services.accounts.service import Scope, TokenService
from services.database import Database
from services.settings import Settings

MADE_AT_FIRST_START = "made at the first start"


@contextmanager
def _tokens(settings: Settings) -> Iterator[TokenService]:
    database = Database.open(settings, _no_doorbell)
    try:
        yield TokenService(database, settings)
    finally:
        database.close()


def _no_doorbell(queue: str) -> None:
    raise AssertionError(f"nothing about tokens rings {queue}")


def create_token(settings: Settings, *, name: str, scope: str, lifetime: timedelta) -> str:
    """The text of a fresh token. Raises `UnknownScopeError`."""
    with _tokens(settings) as tokens:
        return tokens.create(name, [scope], expires_in=lifetime).text


def ensure_first_token(settings: Settings) -> str | None:
    """The text of a token that may do everything, made if there is no usable token yet; else None."""
    with _tokens(settings) as tokens:
        return None if tokens.any_usable() else tokens.create(MADE_AT_FIRST_START, [Scope.ADMIN], kind="first").text


def has_tokens(settings: Settings) -> bool:
    """Whether anybody can get in at all."""
    with _tokens(settings) as tokens:
        return tokens.any_usable()
