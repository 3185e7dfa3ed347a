"""API tokens: their form, what is kept of them, what they allow."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from services.accounts import TokenService, create_token, ensure_first_token, is_anybody_let_in, signing_key
from services.accounts.administration import create_user
from services.accounts.errors import (
    SecretKeyError,
    TokenNotFoundError,
    UnknownScopeError,
)
from services.accounts.models import ApiTokenRow
from services.accounts.secret import secret_key
from services.accounts.tokens import is_well_formed, new_token
from services.database import Database
from services.database.base import utc_now
from services.settings import Settings


@pytest.fixture
def tokens(database: Database, service_settings: Settings) -> TokenService:
    return TokenService(database, service_settings)


def test_a_token_is_recognised_by_prefix_and_checksum() -> None:
    token = new_token("api")
    assert token.startswith("gp_api_")
    assert len(token) == len("gp_api_") + 33
    assert is_well_formed(token)
    assert len({new_token("api") for _ in range(100)}) == 100


def test_a_mistyped_token_is_refused_by_its_checksum() -> None:
    token = new_token("api")
    for place in range(len(token)):
        other = "a" if token[place] != "a" else "b"
        assert not is_well_formed(token[:place] + other + token[place + 1 :])


@pytest.mark.parametrize(
    "text", ["", "gp_api_", "Bearer x", "gp_api_é" + "0" * 32, "0" * 1_000_000, "gp_root_" + "0" * 33]
)
def test_what_is_no_token_is_refused_without_an_accident(text: str, tokens: TokenService) -> None:
    assert tokens.authenticate(text) is None


def test_a_token_lets_in_and_only_its_keyed_hash_is_kept(
    tokens: TokenService, database: Database, service_settings: Settings
) -> None:
    created = tokens.create("ci", ["submit"])
    subject = tokens.authenticate(created.text)
    assert subject is not None
    assert (subject.id, subject.name) == (created.info.id, "ci")
    with database.reading() as session:
        row = session.scalars(select(ApiTokenRow)).one()
        kept = " ".join(str(getattr(row, column.name)) for column in ApiTokenRow.__table__.columns)
    assert created.text not in kept
    assert row.last_four == created.text[-4:]
    other_key = service_settings.model_copy(update={"secret_key": SecretStr("another key of thirty-two characters")})
    assert TokenService(database, other_key).authenticate(created.text) is None


def test_a_well_formed_token_of_nobody_is_refused(tokens: TokenService) -> None:
    tokens.create("ci", ["read"])
    assert tokens.authenticate(new_token("api")) is None


def test_a_revoked_token_is_refused_at_once(tokens: TokenService) -> None:
    created = tokens.create("ci", ["read"])
    assert tokens.any_usable()
    revoked = tokens.revoke(created.info.id)
    assert tokens.authenticate(created.text) is None
    assert tokens.find(created.info.id) is None
    assert tokens.revoke(created.info.id).revoked_at == revoked.revoked_at
    assert not tokens.any_usable()
    with pytest.raises(TokenNotFoundError):
        tokens.revoke("nobody")


def test_an_expired_token_is_refused(tokens: TokenService, database: Database) -> None:
    created = tokens.create("ci", ["read"], expires_in=timedelta(hours=1))
    assert tokens.authenticate(created.text) is not None
    with database.unit_of_work() as uow:
        uow.session.execute(update(ApiTokenRow).values(expires_at=utc_now() - timedelta(seconds=1)))
    assert tokens.authenticate(created.text) is None
    assert tokens.find(created.info.id) is None
    assert not tokens.any_usable()


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ("read", {"read"}),
        ("submit", {"read", "submit"}),
        ("triage", {"read", "submit", "triage"}),
        ("admin", {"read", "submit", "triage", "configure", "administer"}),
    ],
)
def test_scopes_include_what_is_below_them(tokens: TokenService, given: str, allowed: set[str]) -> None:
    created = tokens.create("ci", [given])
    subject = tokens.authenticate(created.text)
    assert subject is not None
    assert subject == tokens.find(created.info.id)
    assert {permission.value for permission in subject.permissions} == allowed
    assert subject.everywhere


@pytest.mark.parametrize("scopes", [[], ["write"]])
def test_a_token_needs_scopes_that_exist(tokens: TokenService, scopes: list[str]) -> None:
    with pytest.raises(UnknownScopeError):
        tokens.create("ci", scopes)


def test_the_last_use_is_noted(tokens: TokenService) -> None:
    created = tokens.create("ci", ["read"])
    assert created.info.last_used_at is None
    tokens.authenticate(created.text)
    first = tokens.newest()[0].last_used_at
    assert first is not None
    tokens.authenticate(created.text)
    assert tokens.newest()[0].last_used_at == first


def test_a_key_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "fresh")
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(secret_key(settings))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1
    file = settings.data_dir / "secret.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in settings.data_dir.iterdir()] == ["secret.key"]
    file.chmod(0o644)
    with pytest.raises(SecretKeyError, match="chmod 600"):
        secret_key(settings)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretKeyError, match="GRADPROOF_SECRET_KEY"):
        secret_key(Settings(data_dir=tmp_path, secret_key=SecretStr("too short")))


def test_a_fresh_installation_gets_one_first_token(service_settings: Settings) -> None:
    assert not is_anybody_let_in(service_settings)
    first = ensure_first_token(service_settings)
    assert first is not None
    assert first.startswith("gp_first_")
    assert is_anybody_let_in(service_settings)
    assert ensure_first_token(service_settings) is None


def test_a_password_or_a_provider_is_a_way_in_too(service_settings: Settings) -> None:
    assert is_anybody_let_in(service_settings.model_copy(update={"oidc_issuer": "https://id.example"}))
    wanted: dict[str, Any] = {"email": None, "organisation": None, "role": "viewer", "operator": True}
    create_user(service_settings, "ada", password=None, **wanted)
    assert not is_anybody_let_in(service_settings)
    create_user(service_settings, "grace", password="staple horse battery", **wanted)
    assert is_anybody_let_in(service_settings)


def test_a_command_can_make_a_token(service_settings: Settings, tokens: TokenService) -> None:
    text = create_token(service_settings, name="laptop", scope="read", lifetime=timedelta(days=1))
    subject = tokens.authenticate(text)
    assert subject is not None
    assert subject.name == "laptop"


def test_cookies_are_not_signed_with_the_key_of_the_token_hashes(service_settings: Settings) -> None:
    assert signing_key(service_settings) == signing_key(service_settings)
    assert signing_key(service_settings) != secret_key(service_settings)
