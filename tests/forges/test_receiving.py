"""Webhooks over real HTTP: who may send them, what is taken, and that nothing is taken twice."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import select

from services.database import Database
from services.forges.models import DeliveryRow, ForgeTaskRow
from services.settings import Settings
from tests.serving import RunningServer

SECRET = "It's a Secret to Everybody"
OLD_SECRET = "the one before"
EXAMPLES = Path(__file__).parent.parent / "fixtures" / "forge" / "github-webhooks.json"


@pytest.fixture
def settings(service_settings: Settings, tmp_path: Path) -> Settings:
    changes = {
        "github_app_id": "7",
        "github_private_key_file": tmp_path / "key.pem",
        "github_webhook_secrets": (SecretStr(OLD_SECRET), SecretStr(SECRET)),
        "gitlab_url": "https://gitlab.example",
        "gitlab_token": SecretStr("glpat-for-tests"),
        "gitlab_webhook_secrets": (SecretStr(SECRET),),
    }
    return service_settings.model_copy(update=changes)


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with RunningServer(settings) as server, httpx.Client(base_url=server.url, timeout=30) as opened:
        yield opened


def signed(body: bytes, *, event: str, delivery: str = "d-1", secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "X-Hub-Signature-256": f"sha256={digest}",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "Content-Type": "application/json",
    }


def example(name: str) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(EXAMPLES.read_text(encoding="utf-8"))["payloads"][name]
    return payload | {"installation": {"id": 42}}


def stored(database: Database) -> tuple[list[DeliveryRow], list[ForgeTaskRow]]:
    with database.reading() as session:
        return list(session.scalars(select(DeliveryRow))), list(session.scalars(select(ForgeTaskRow)))


@pytest.mark.parametrize("address", ["/webhooks/github", "/api/v1/webhooks/github"])
def test_a_signed_webhook_is_written_down_once(client: httpx.Client, database: Database, address: str) -> None:
    body = json.dumps(example("pull_request.opened")).encode()
    first = client.post(address, content=body, headers=signed(body, event="pull_request"))
    again = client.post(address, content=body, headers=signed(body, event="pull_request", secret=OLD_SECRET))
    assert (first.status_code, first.json()) == (202, {"outcome": "queued", "delivery": "d-1"})
    assert (again.status_code, again.json()) == (202, {"outcome": "duplicate", "delivery": "d-1"})
    (delivery,), (task,) = stored(database)
    assert (delivery.event, delivery.action, delivery.outcome) == ("pull_request", "opened", "received")
    assert (task.kind, task.state, task.delivery_id) == ("delivery", "queued", delivery.id)


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "sha256=" + "0" * 64,
        "sha256=ü" + "0" * 63,
        "sha1=" + hmac.new(SECRET.encode(), b"{}", hashlib.sha1).hexdigest(),
        hmac.new(SECRET.encode(), b"{}", hashlib.sha256).hexdigest(),
    ],
)
def test_what_is_not_rightly_signed_is_refused(client: httpx.Client, database: Database, signature: str | None) -> None:
    headers: dict[str, bytes] = {"X-GitHub-Event": b"ping", "X-GitHub-Delivery": b"d-1"}
    if signature is not None:
        headers["X-Hub-Signature-256"] = signature.encode()
    answer = client.post("/webhooks/github", content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "webhook-signature")
    assert stored(database) == ([], [])


def test_a_signature_covers_the_bytes(client: httpx.Client, database: Database) -> None:
    body = json.dumps(example("pull_request.opened")).encode()
    headers = signed(body, event="pull_request")
    assert client.post("/webhooks/github", content=body + b" ", headers=headers).status_code == 401
    assert stored(database) == ([], [])


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("ping", "ping"),
        ("check_run", "check_run.created"),
        ("issue_comment", "issue_comment.deleted"),
        ("issue_comment", "issue_comment.created"),  # on an issue that is no pull request
        ("push", "push"),  # a tag that was deleted
        ("a new event", "ping"),
    ],
)
def test_what_does_not_concern_us_is_ignored(client: httpx.Client, database: Database, event: str, name: str) -> None:
    body = json.dumps(example(name)).encode()
    answer = client.post("/webhooks/github", content=body, headers=signed(body, event=event))
    assert (answer.status_code, answer.json()["outcome"]) == (202, "ignored")
    assert stored(database) == ([], [])


def test_every_real_example_is_taken_or_ignored(client: httpx.Client) -> None:
    taken = set()
    for number, name in enumerate(json.loads(EXAMPLES.read_text(encoding="utf-8"))["payloads"]):
        body = json.dumps(example(name)).encode()
        headers = signed(body, event=name.partition(".")[0], delivery=f"d-{number}")
        answer = client.post("/webhooks/github", content=body, headers=headers)
        assert answer.status_code == 202, (name, answer.text)
        if answer.json()["outcome"] == "queued":
            taken.add(name)
    assert taken >= {
        "installation.created",
        "installation.deleted",
        "installation.suspend",
        "installation.unsuspend",
        "installation_repositories.added",
        "installation_repositories.removed",
        "repository.renamed",
        "repository.transferred",
        "pull_request.opened",
        "pull_request.synchronize",
        "pull_request.closed",
        "check_suite.rerequested",
        "check_run.rerequested",
        "check_run.requested_action",
        "pull_request_review_thread.resolved",
    }


@pytest.mark.parametrize("body", [b"", b"payload=%7B%7D", b"[1]", b'{"action": "opened", "pull_request": {}}'])
def test_a_signed_body_that_says_nothing_is_named(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/webhooks/github", content=body, headers=signed(body, event="pull_request"))
    assert (answer.status_code, answer.json()["code"]) == (422, "webhook-unreadable")


def test_a_body_beyond_the_bound_is_not_read_to_its_end(client: httpx.Client) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 40 * 2**20:
            sent += 2**20
            yield b" " * 2**20

    try:
        answer = client.post("/webhooks/github", content=endless(), headers={"X-GitHub-Event": "push"})
    except httpx.WriteError:  # it hung up while we were still sending
        return
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


def test_gitlab_sends_its_secret(client: httpx.Client, database: Database) -> None:
    body = json.dumps(
        {
            "object_kind": "merge_request",
            "project": {
                "id": 5,
                "path_with_namespace": "group/sub/models",
                "git_http_url": "https://gitlab.example/group/sub/models.git",
                "web_url": "https://gitlab.example/group/sub/models",
                "visibility_level": 0,
                "default_branch": "main",
            },
            "object_attributes": {"iid": 3, "action": "open"},
        }
    ).encode()
    headers = {"X-Gitlab-Event": "Merge Request Hook", "X-Gitlab-Token": SECRET, "Idempotency-Key": "k-1"}
    assert client.post("/webhooks/gitlab", content=body, headers=headers).json()["outcome"] == "queued"
    assert client.post("/webhooks/gitlab", content=body, headers=headers).json()["outcome"] == "duplicate"
    wrong = headers | {"X-Gitlab-Token": "guessed"}
    assert client.post("/webhooks/gitlab", content=body, headers=wrong).status_code == 401
    (delivery,), _ = stored(database)
    assert delivery.payload is not None
    assert delivery.payload["what"] == {"kind": "pull_request", "number": 3}


def test_without_settings_there_is_no_such_door(embedded_settings: Settings) -> None:
    with RunningServer(embedded_settings) as server:
        for forge in ("github", "gitlab"):
            answer = httpx.post(f"{server.url}/webhooks/{forge}", content=b"{}", timeout=30)
            assert (answer.status_code, answer.json()["code"]) == (404, "forge-not-set")
            assert f"GRADPROOF_{forge.upper()}" in answer.json()["detail"]
