"""Projects, people, tokens, hooks and share links over REST: what goes in comes out, and what can't be is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from services.accounts import SYSTEM
from services.accounts.users import UserService
from services.database import Database
from tests.serving import RunningServer, token, upload

API = "/api/v1"


@pytest.fixture
def admin(server: RunningServer, database: Database) -> Iterator[httpx.Client]:
    """Whoever runs the installation; two users are known already."""
    for name in ("ada", "grace"):
        UserService(database).create(SYSTEM, name, password=None)
    headers = {"Authorization": f"Bearer {token(server.settings, 'admin')}"}
    with httpx.Client(base_url=f"{server.url}{API}", headers=headers, timeout=30) as client:
        yield client


def made(response: httpx.Response, status: int = 201) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return dict(response.json())


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    return dict(response.json())


def pages(client: httpx.Client, path: str, **params: Any) -> list[dict[str, Any]]:
    """All items of a list, asked for two by two."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = made(client.get(path, params={"limit": 2, **params, **more}), 200)
        assert len(page["items"]) <= 2
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


def test_a_project_from_its_making_to_its_archive(admin: httpx.Client) -> None:
    made(admin.post("/organisations", json={"name": "acme", "title": "Acme Research"}))
    response = admin.post("/projects", json={"name": "acme/vision", "repository_url": "https://github.com/x/y"})
    project = made(response)
    assert response.headers["location"] == project["links"]["self"] == f"{API}/projects/{project['id']}"
    assert (project["name"], project["organisation"], project["default_branch"]) == ("acme/vision", "acme", None)
    assert project["permissions"] == ["administer", "configure", "read", "submit", "triage"]
    for called in (project["id"], "acme~vision"):
        assert made(admin.get(f"/projects/{called}"), 200) == project
    refused(admin.post("/projects", json={"name": "acme/vision"}), 409, "project-exists")
    changed = made(
        admin.patch(
            "/projects/acme~vision",
            json={"default_branch": "main", "settings": {"bot": {"blocks": True}, "modes": {"GP305": "monitor"}}},
        ),
        200,
    )
    assert changed["repository_url"] == "https://github.com/x/y"
    assert changed["settings"]["bot"]["blocks"] is True
    assert changed["settings"]["bot"]["inline"] is True
    assert made(admin.patch("/projects/acme~vision", json={"settings": changed["settings"]}), 200) == changed
    assert made(admin.patch("/projects/acme~vision", json={"repository_url": None}), 200)["repository_url"] is None
    details = refused(
        admin.patch("/projects/acme~vision", json={"settings": {"bot": {"inline_most": 31}}}),
        422,
        "invalid-project-settings",
    )["details"]
    assert details == {"key": "bot.inline_most"}
    assert made(admin.patch("/projects/acme~vision", json={"archived": True}), 200)["archived_at"] is not None
    refused(admin.post("/analyses", files=upload(), data={"project": "acme/vision"}), 409, "project-archived")
    assert pages(admin, "/projects") == []
    assert [item["name"] for item in pages(admin, "/projects", archived=True)] == ["acme/vision"]


BAD: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/projects/nothing", None, 404, "project-not-found"),
    ("GET", "/projects/a b", None, 404, "project-not-found"),
    ("GET", "/projects/%00", None, 404, "project-not-found"),
    ("GET", "/projects/../../etc", None, 404, "route-not-found"),
    ("POST", "/projects", {"name": "a//b"}, 422, "project-name"),
    ("POST", "/projects", {"name": "x", "nmae": 1}, 422, "invalid-request"),
    ("POST", "/projects", {"name": "x", "repository_url": "http://x/y"}, 422, "git-url-scheme"),
    ("POST", "/projects", {"name": "x", "default_branch": "a..b c"}, 422, "project-name"),
    ("GET", "/organisations/nothing", None, 404, "organisation-not-found"),
    ("GET", "/organisations/%00/members", None, 404, "organisation-not-found"),
    ("POST", "/organisations", {"name": "default"}, 409, "organisation-exists"),
    ("POST", "/organisations", {"name": "A_b"}, 422, "organisation-name"),
    ("PUT", "/organisations/default/members/nobody", {"role": "viewer"}, 404, "user-not-found"),
    ("PUT", "/organisations/default/members/%00", {"role": "viewer"}, 404, "user-not-found"),
    ("PUT", "/organisations/default/members/ada", {"role": "king"}, 422, "invalid-request"),
    ("DELETE", "/organisations/default/members/ada", None, 404, "member-not-found"),
    ("DELETE", "/tokens/nothing", None, 404, "token-not-found"),
    ("DELETE", "/tokens/%00", None, 404, "token-not-found"),
    ("DELETE", "/shares/%00", None, 404, "share-link-not-found"),
    ("POST", "/tokens", {"name": "\u0007"}, 422, "token-name"),
    ("GET", "/audit?project=nothing", None, 404, "project-not-found"),
    ("GET", "/audit?cursor=x", None, 422, "invalid-request"),
    ("GET", "/projects?cursor=%00", None, 200, ""),
]


def test_what_can_not_be_is_said(admin: httpx.Client) -> None:
    for method, path, body, status, code in BAD:
        response = admin.request(method, path, json=body)
        assert response.status_code == status, (path, response.text)
        assert response.json().get("code", "") == code, path


def test_members_come_and_go(admin: httpx.Client) -> None:
    made(admin.post("/organisations", json={"name": "acme"}))
    made(admin.post("/projects", json={"name": "acme/vision"}))
    for where in ("/organisations/acme", "/projects/acme~vision"):
        member = made(admin.put(f"{where}/members/ada", json={"role": "admin"}), 200)
        assert (member["user"], member["role"], member["disabled"]) == ("ada", "admin", False)
        made(admin.put(f"{where}/members/grace", json={"role": "viewer"}), 200)
        assert [item["user"] for item in pages(admin, f"{where}/members")] == ["ada", "grace"]
        assert admin.delete(f"{where}/members/grace").status_code == 204
        refused(admin.delete(f"{where}/members/grace"), 404, "member-not-found")
    refused(admin.delete("/organisations/acme/members/ada"), 409, "last-admin")


def test_a_token_is_shown_once(admin: httpx.Client, server: RunningServer) -> None:
    made(admin.post("/projects", json={"name": "vision"}))
    fresh = made(admin.post("/tokens", json={"name": "CI", "scope": "submit", "project": "vision", "days": 7}))
    assert fresh["of"] == "project"
    listed = {item["id"]: item for item in pages(admin, "/tokens")}
    assert fresh["token"] not in str(listed)
    assert listed[fresh["id"]] == {key: value for key, value in fresh.items() if key != "token"}
    headers = {"Authorization": f"Bearer {fresh['token']}"}
    with httpx.Client(base_url=f"{server.url}{API}", headers=headers) as ci:
        assert made(ci.post("/analyses", files=upload()), 202)["status"] == "queued"
        assert [item["project"] for item in pages(ci, "/analyses")] == ["vision"]
        assert made(admin.delete(f"/tokens/{fresh['id']}"), 200)["revoked_at"] is not None
        assert ci.get("/analyses").status_code == 401
    assert made(admin.post("/tokens", json={"name": "ever", "days": None}))["expires_at"] is None


def test_hooks_and_what_they_were_told(admin: httpx.Client) -> None:
    made(admin.post("/projects", json={"name": "vision"}))
    hook = made(admin.post("/projects/vision/hooks", json={"url": "https://hooks.example/x"}))
    assert hook["secret"].startswith("whsec_")
    assert made_list(admin.get("/projects/vision/hooks")) == [hook]
    analysis = made(admin.post("/analyses", files=upload(), data={"project": "vision"}), 202)["id"]
    admin.post(f"/analyses/{analysis}/cancel")
    here = f"/projects/vision/hooks/{hook['id']}"
    (delivery,) = pages(admin, f"{here}/deliveries")
    assert (delivery["analysis"], delivery["attempts"], delivery["delivered_at"]) == (analysis, 0, None)
    assert made(admin.post(f"{here}/deliveries/{delivery['id']}/repeat"), 200)["next_at"] is not None
    assert made(admin.patch(here, json={"disabled": True}), 200)["disabled_at"] is not None
    refused(admin.post("/projects/vision/hooks", json={"url": "https://10.0.0.1/x"}), 422, "hook-url")
    assert admin.delete(here).status_code == 204
    refused(admin.delete(here), 404, "hook-not-found")


def made_list(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200
    return list(response.json())


def test_share_links(admin: httpx.Client) -> None:
    analysis = made(admin.post("/analyses", files=upload()), 202)["id"]
    link = made(admin.post(f"/analyses/{analysis}/shares", json={"days": 3}))
    assert "/shared/" in link["address"]
    assert made_list(admin.get(f"/analyses/{analysis}/shares")) == [link]
    assert made(admin.delete(f"/shares/{link['id']}"), 200)["revoked_at"] is not None
    refused(admin.post(f"/analyses/{analysis}/shares", json={"days": 91}), 422, "invalid-request")


def test_the_log_tells_it_all(admin: httpx.Client) -> None:
    made(admin.post("/organisations", json={"name": "acme"}))
    made(admin.put("/organisations/acme/members/ada", json={"role": "admin"}), 200)
    project = made(admin.post("/projects", json={"name": "acme/vision"}))
    lines = pages(admin, "/audit", organisation="acme")
    assert [line["action"] for line in lines] == ["project.create", "member.add", "organisation.create"]
    assert lines[0]["project_name"] == "acme/vision"
    assert lines[0]["actor"]["kind"] == "token"
    assert lines[1]["details"] == {"name": "ada", "from": None, "to": "admin"}
    assert [line["object"]["id"] for line in pages(admin, "/audit", project="acme/vision")] == [project["id"]]
    assert [line["action"] for line in pages(admin, "/audit", action="member")] == ["member.add"]
