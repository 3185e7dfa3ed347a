"""Who may ask: the App's JWT, installation tokens, permissions, suspension."""

from __future__ import annotations

import pytest
from joserfc.jwk import RSAKey

from tests.forge_fake.application import App
from tools.fake_forge import FakeForge


def test_the_app_is_known_by_its_jwt(forge: FakeForge, app: App) -> None:
    assert app.as_app("GET", "/app").json()["slug"] == forge.slug
    assert app.as_app("GET", "/app", token=app.jwt(issuer=forge.client_id)).status_code == 200
    assert forge.violations == []


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"expires": 660}, "too far in the future"),
        ({"expires": -1}, "must be a numeric value representing the future time"),
        ({"issued": 30}, "'Issued at' claim"),
        ({"key": RSAKey.generate_key(2048)}, "could not be decoded"),
    ],
    ids=["eleven minutes", "expired", "of the future", "of another key"],
)
def test_a_jwt_that_is_not_good_is_a_401(app: App, times: dict[str, int], message: str) -> None:
    answer = app.as_app("GET", "/app", token=app.jwt(**times))  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert message in answer.json()["message"]


def test_a_jwt_of_another_app_is_not_found(app: App) -> None:
    assert app.as_app("GET", "/app", token=app.jwt(issuer="1")).status_code == 404


def test_a_token_is_long_and_lives_one_hour(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo")
    token = app.new_token().json()["token"]
    assert token.startswith(f"ghs_{forge.app_id}_")
    assert token.count(".") == 2
    assert len(token) > 100
    app.use(token)
    assert app.get("/repos/octo/demo").status_code == 200
    forge.clock.advance(minutes=59)
    assert app.get("/repos/octo/demo").status_code == 200
    forge.clock.advance(minutes=1)
    answer = app.get("/repos/octo/demo")
    assert (answer.status_code, answer.json()["message"]) == (401, "Bad credentials")


def test_a_token_can_be_narrowed_to_repositories_and_permissions(forge: FakeForge, app: App) -> None:
    one = forge.create_repository("octo/one")
    forge.create_repository("octo/two")
    told = app.new_token(repository_ids=[one.id], permissions={"checks": "read"}).json()
    assert told["permissions"] == {"checks": "read", "metadata": "read"}
    assert [each["full_name"] for each in told["repositories"]] == ["octo/one"]
    app.use(told["token"])
    assert app.get("/repos/octo/one").status_code == 200
    assert app.get("/repos/octo/two").status_code == 404
    sha = one.branches["main"]
    assert app.get(f"/repos/octo/one/commits/{sha}/check-runs").status_code == 200
    refused = app.post("/repos/octo/one/check-runs", {"name": "x", "head_sha": sha})
    assert (refused.status_code, refused.json()["message"]) == (403, "Resource not accessible by integration")
    assert refused.headers["x-accepted-github-permissions"] == "checks=write"
    assert forge.violations == []


def test_no_token_is_given_for_more_than_was_granted(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo")
    assert app.new_token(permissions={"contents": "write"}).status_code == 422
    assert app.new_token(repositories=["elsewhere"]).status_code == 422


def test_a_suspended_installation_is_a_403_everywhere(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo")
    assert app.get("/repos/octo/demo").status_code == 200
    forge.suspend("octo")
    for answer in (app.get("/repos/octo/demo"), app.new_token()):
        assert (answer.status_code, answer.json()["message"]) == (403, "This installation has been suspended")
    number = forge.installation("octo").id
    assert app.as_app("GET", f"/app/installations/{number}").json()["suspended_by"]["login"] == "ada"
    forge.unsuspend("octo")
    assert app.get("/repos/octo/demo").status_code == 200


def test_a_permission_that_is_taken_away_is_missed_at_once(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo")
    body = {"name": "gradproof", "head_sha": repository.branches["main"]}
    assert app.post("/repos/octo/demo/check-runs", body).status_code == 201
    forge.set_permissions("octo", checks=None)
    assert app.post("/repos/octo/demo/check-runs", body).status_code == 403
    assert forge.writes() == {"check_run.create": 1}


def test_private_repositories_of_others_are_not_found(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo")
    forge.create_repository("acme/secret", installed=False)
    forge.create_repository("acme/open", installed=False, private=False)
    assert app.get("/repos/acme/secret").status_code == 404
    assert app.get("/repos/acme/open").status_code == 200
    assert app.http.get("/repos/octo/demo").status_code == 404


def test_what_is_uninstalled_is_refused(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo")
    assert app.get("/repos/octo/demo").status_code == 200
    forge.uninstall("octo")
    assert app.get("/repos/octo/demo").status_code == 401
