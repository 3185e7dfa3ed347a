"""Every call of the OpenAPI document, with values that it allows and values that it doesn't, against the real service.

No answer is an error of ours, and each has a status, a media type, headers and a body that the document tells of. New
calls are taken in by themselves. Values are drawn anew only when the document changes: nothing here is left to chance.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from api.app import create_app
from services.settings import Settings
from tests.reports.samples import check, failing
from tests.serving import Workshop, token, upload

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BOUNDED = hypothesis_settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite_file: Path) -> Settings:
    place = tmp_path_factory.mktemp("service")
    shutil.copy(migrated_sqlite_file, place / "gradproof.sqlite3")
    return Settings(
        data_dir=place,
        database_url=f"sqlite:///{place / 'gradproof.sqlite3'}",
        secret_key=SecretStr("a secret for tests, 32 characters and more"),
        reconcile_every=timedelta(hours=1),
        stream_life=timedelta(milliseconds=1),
        request_rate=0,
        submission_rate=0,
    )


@pytest.fixture(scope="module")
def app(settings: Settings) -> Iterator[Any]:
    made = create_app(settings)
    yield made
    made.state.context.close()


@pytest.fixture(scope="module")
def administrator(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(settings, 'admin')}"}


@pytest.fixture(scope="module")
def analysis_id(app: Any, settings: Settings, administrator: dict[str, str]) -> str:
    """An analysis of a project that has a finding, targets and results."""
    client = TestClient(app, headers=dict(administrator))
    made = client.post("/api/v1/analyses", files=upload(), data={"project": "vision"}).json()["id"]
    workshop = Workshop(settings)
    workshop.read()
    workshop.probe(failing(path="pkg/a.py", line=6), check(check="compile_equivalence"))
    workshop.reconciler.tick()  # else nothing is ready for work
    workshop.close()
    return str(made)


@pytest.fixture(scope="module")
def known(analysis_id: str) -> dict[str, str]:
    """What is there to be found: parameters of paths that name it, so that answers have bodies."""
    return {"analysis_id": analysis_id, "rule_id": "GP101", "project": "vision", "organisation": "default"}


@pytest.fixture(scope="module")
def calls(app: Any) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def complaints(schema: Any, headers: dict[str, str], known: dict[str, str]) -> str:
    """What is wrong with the answers, by call and kind of value; empty is good."""
    found = []
    for each in schema.get_all_operations():
        operation = each.ok()
        for mode in GenerationMode:

            @BOUNDED
            @given(case=operation.as_strategy(generation_mode=mode))
            def answers_as_described(case: Any) -> None:
                case.validate_response(case.call(headers=headers), checks=CHECKS)
                if known.keys() & (case.path_parameters or {}).keys():
                    case.path_parameters = {**case.path_parameters, **known}
                    case.validate_response(case.call(headers=headers), checks=CHECKS)

            try:
                answers_as_described()
            except Unsatisfiable:
                continue  # a call without parameters has no wrong ones
            except (FailureGroup, ExceptionGroup) as failed:
                found += [f"{operation.label}, {mode.value} values: {error}" for error in failed.exceptions]
    return "\n\n".join(found)


def test_an_administrator_gets_only_what_the_document_tells_of(
    calls: Any, administrator: dict[str, str], known: dict[str, str]
) -> None:
    wrong = complaints(calls, administrator, known)
    assert not wrong, wrong


def test_nobody_gets_only_what_the_document_tells_of(calls: Any, known: dict[str, str]) -> None:
    wrong = complaints(calls, {}, known)
    assert not wrong, wrong
