"""What a token has to look like, and when it is over. Who gets where with which one is in `test_access`."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from services.accounts import TokenService
from services.database import Database
from tests.serving import RunningServer, token, upload


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic dTpw", "Bearer nonsense", "Bearer gp_api_" + "0" * 33, "Bearer \u00e9", "token x"],
)
def test_a_wrong_token_is_told_from_none_by_nothing_but_its_words(anonymous: httpx.Client, header: str) -> None:
    response = anonymous.get("/api/v1/analyses", headers=[(b"Authorization", header.encode("latin-1"))])
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["content-type"] == "application/problem+json"


def test_a_token_that_may_only_read_changes_nothing(anonymous: httpx.Client, server: RunningServer) -> None:
    submitter = {"Authorization": f"Bearer {token(server.settings)}"}
    reader = {"Authorization": f"Bearer {token(server.settings, 'read')}"}
    identity = anonymous.post("/api/v1/analyses", files=upload(), headers=submitter).json()["id"]
    for response in (
        anonymous.post("/api/v1/analyses", files=upload(), headers=reader),
        anonymous.post(f"/api/v1/analyses/{identity}/cancel", headers=reader),
        anonymous.post(f"/api/v1/analyses/{identity}/rerun", headers=reader),
    ):
        assert response.status_code == 403
        assert response.json()["code"] == "missing-scope"
        assert response.json()["details"] == {"scope": "submit"}
    assert anonymous.get(f"/api/v1/analyses/{identity}", headers=reader).json()["status"] == "queued"


def test_revoked_and_expired_tokens_let_nobody_in(anonymous: httpx.Client, server: RunningServer) -> None:
    database = Database.open(server.settings, lambda _queue: None)
    tokens = TokenService(database, server.settings)
    revoked = tokens.create("revoked", ["read"])
    tokens.revoke(revoked.info.id)
    expired = tokens.create("expired", ["read"], expires_in=timedelta(seconds=-1))
    database.close()
    for created in (revoked, expired):
        headers = {"Authorization": f"Bearer {created.text}"}
        assert anonymous.get("/api/v1/analyses", headers=headers).status_code == 401


def test_a_token_in_the_address_is_no_token(anonymous: httpx.Client, server: RunningServer) -> None:
    params = {"token": token(server.settings), "access_token": token(server.settings)}
    assert anonymous.get("/api/v1/analyses", params=params).status_code == 401
