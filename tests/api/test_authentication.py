"""Nobody gets in without a token, and a token does what it may and no more."""

from __future__ import annotations

import re
from datetime import timedelta

import httpx
import pytest

from api.app import create_app
from services.accounts import TokenService
from services.database import Database
from services.settings import Settings
from tests.routes import every_route
from tests.serving import RunningServer, token, upload

PUBLIC = {
    "/healthz",
    "/readyz",
    "/api/v1/rules",
    "/api/v1/rules/{rule_id}",
    "/api/v1/checks",
    # pages of documentation, and the way in
    *("/rules", "/rules/{rule_id}", "/checks/{name}", "/sign-in", "/sign-in/{code}", "/sign-out"),
    *("/static/{name}", "/favicon.ico"),
    # good for one project's badge, or for one analysis
    *("/badges/{project_id}/{code}.svg", "/shared/{code}"),
    # signed by the forge that sends them
    *("/webhooks/{forge}", "/api/v1/webhooks/{forge}"),
}


def call(client: httpx.Client, method: str, path: str, **headers: str) -> httpx.Response:
    path = re.sub(r"\{[a-z_]+\}", "0" * 27, path)
    return client.request(method, path, headers=headers)


def test_every_route_but_the_public_ones_asks_for_a_token(anonymous: httpx.Client, service_settings: Settings) -> None:
    asked = every_route(create_app(service_settings))
    assert len(asked) > 20
    for method, path in asked:
        response = call(anonymous, method, path)
        if path in PUBLIC:
            assert "www-authenticate" not in response.headers, (method, path)
            continue
        assert response.status_code == 401, (method, path)
        assert response.json()["code"] == "authentication-required"
        assert response.headers["www-authenticate"] == 'Bearer realm="gradproof"'


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic dTpw", "Bearer nonsense", "Bearer gp_api_" + "0" * 33, "Bearer \u00e9", "token x"],
)
def test_a_wrong_token_is_told_from_none_by_nothing_but_its_words(anonymous: httpx.Client, header: str) -> None:
    response = anonymous.get("/api/v1/analyses", headers={"Authorization": header.encode("latin-1")})
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
