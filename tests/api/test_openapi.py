"""The OpenAPI document is valid, complete, and shows an example for every call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from api.app import create_app
from services.settings import Settings

CALLS = {
    "post /api/v1/analyses",
    "get /api/v1/analyses",
    "get /api/v1/analyses/{analysis_id}",
    "get /api/v1/analyses/{analysis_id}/events",
    "get /api/v1/analyses/{analysis_id}/report",
    "get /api/v1/analyses/{analysis_id}/findings",
    "get /api/v1/analyses/{analysis_id}/targets",
    "get /api/v1/analyses/{analysis_id}/checks",
    "get /api/v1/analyses/{analysis_id}/compare",
    "get /api/v1/analyses/{analysis_id}/compliance",
    "post /api/v1/analyses/{analysis_id}/cancel",
    "post /api/v1/analyses/{analysis_id}/rerun",
    "get /api/v1/projects",
    "post /api/v1/projects",
    "get /api/v1/projects/{project}",
    "patch /api/v1/projects/{project}",
    "get /api/v1/projects/{project}/findings",
    "post /api/v1/projects/{project}/findings/bulk",
    "get /api/v1/projects/{project}/findings/{fingerprint}",
    "patch /api/v1/projects/{project}/findings/{fingerprint}",
    "post /api/v1/projects/{project}/findings/{fingerprint}/comments",
    "get /api/v1/projects/{project}/members",
    "put /api/v1/projects/{project}/members/{user}",
    "delete /api/v1/projects/{project}/members/{user}",
    "get /api/v1/organisations",
    "post /api/v1/organisations",
    "get /api/v1/organisations/{organisation}",
    "get /api/v1/organisations/{organisation}/members",
    "put /api/v1/organisations/{organisation}/members/{user}",
    "delete /api/v1/organisations/{organisation}/members/{user}",
    "get /api/v1/tokens",
    "post /api/v1/tokens",
    "delete /api/v1/tokens/{token_id}",
    "get /api/v1/audit",
    "get /api/v1/projects/{project}/hooks",
    "post /api/v1/projects/{project}/hooks",
    "patch /api/v1/projects/{project}/hooks/{hook_id}",
    "delete /api/v1/projects/{project}/hooks/{hook_id}",
    "get /api/v1/projects/{project}/hooks/{hook_id}/deliveries",
    "post /api/v1/projects/{project}/hooks/{hook_id}/deliveries/{delivery_id}/repeat",
    "get /api/v1/analyses/{analysis_id}/shares",
    "post /api/v1/analyses/{analysis_id}/shares",
    "delete /api/v1/shares/{link_id}",
    "post /api/v1/webhooks/{forge}",
    "get /api/v1/rules",
    "get /api/v1/rules/{rule_id}",
    "get /api/v1/checks",
    "get /healthz",
    "get /readyz",
    "get /metrics",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory: Path = tmp_path_factory.mktemp("openapi")
    app = create_app(Settings(data_dir=directory, database_url=f"sqlite:///{directory / 'unused.sqlite3'}"))
    return dict(json.loads(json.dumps(app.openapi())))


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_it_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def test_it_has_every_call_and_no_page(document: dict[str, Any]) -> None:
    assert set(operations(document)) == CALLS


def test_every_call_says_what_it_does_and_shows_what_it_answers(document: dict[str, Any]) -> None:
    for call, operation in operations(document).items():
        assert operation["summary"], call
        assert operation["description"], call
        good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
        for media_type, content in good.get("content", {}).items():
            assert "example" in content or "examples" in content, (call, media_type)


def test_every_problem_has_an_example_that_is_one(document: dict[str, Any]) -> None:
    for call, operation in operations(document).items():
        for status, answer in operation["responses"].items():
            content = answer.get("content", {}).get("application/problem+json")
            if status.startswith("4"):
                assert content, (call, status)
                assert content["example"]["status"] == int(status)
                assert content["example"]["code"]
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}, call


def test_calls_that_need_a_token_say_so(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for call, operation in operations(document).items():
        public = call.endswith(("/healthz", "/readyz")) or "/rules" in call or call == "get /api/v1/checks"
        needs = not public and "/webhooks/" not in call
        assert bool(operation.get("security")) is needs, call


def test_no_schema_is_missing(document: dict[str, Any]) -> None:
    known = set(document["components"]["schemas"])
    mentioned = {part.partition('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]}
    assert mentioned <= known
