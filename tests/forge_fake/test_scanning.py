"""SARIF uploads: packed as GitHub wants them, within its caps."""

from __future__ import annotations

import base64
import gzip
import json
import os
from typing import Any

from tests.forge_fake.application import LINES, App
from tools.fake_forge import FakeForge

SARIFS = "/repos/octo/demo/code-scanning/sarifs"
RESULT = {"message": {"text": "m"}, "locations": [{}]}


def document(results: int = 1, runs: int = 1) -> dict[str, Any]:
    run = {"tool": {"driver": {"name": "Gradproof", "rules": []}}, "results": [RESULT] * results}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run] * runs}


def packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content)).decode()


def uploading(forge: FakeForge, app: App) -> Any:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    forge.set_permissions("octo", security_events="write")
    sha = repository.branches["main"]

    def upload(sarif: str, ref: str = "refs/heads/main", commit: str = sha) -> Any:
        return app.post(SARIFS, {"commit_sha": commit, "ref": ref, "sarif": sarif})

    return upload


def test_a_document_is_taken_and_processed(forge: FakeForge, app: App) -> None:
    upload = uploading(forge, app)
    answer = upload(packed(json.dumps(document()).encode()))
    assert answer.status_code == 202
    assert app.get(f"{SARIFS}/{answer.json()['id']}").json()["processing_status"] == "complete"
    (known,) = forge.sarifs()
    assert (known.document, known.ref) == (document(), "refs/heads/main")
    assert forge.writes() == {"sarif.upload": 1}
    assert forge.violations == []


def test_what_is_wrong_with_a_document_is_told_later(forge: FakeForge, app: App) -> None:
    upload = uploading(forge, app)
    for wrong in (document(runs=21), document(results=25_001), {"version": "2.0.0"}):
        number = upload(packed(json.dumps(wrong).encode())).json()["id"]
        told = app.get(f"{SARIFS}/{number}").json()
        assert (told["processing_status"], len(told["errors"])) == ("failed", 1)
    number = upload(base64.b64encode(b"not packed").decode()).json()["id"]
    assert app.get(f"{SARIFS}/{number}").json()["processing_status"] == "failed"


def test_what_is_not_taken(forge: FakeForge, app: App) -> None:
    upload = uploading(forge, app)
    good = packed(json.dumps(document()).encode())
    assert upload(good, ref="main").status_code == 422
    assert upload(good, commit="0" * 40).status_code == 422
    assert upload("é").status_code == 400
    assert upload(base64.b64encode(os.urandom(10 * 1024 * 1024 + 1)).decode()).status_code == 413
    assert forge.sarifs() == []


def test_it_takes_a_permission_that_is_not_given_by_default(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    body = {"commit_sha": repository.branches["main"], "ref": "refs/heads/main", "sarif": packed(b"{}")}
    assert app.post(SARIFS, body).status_code == 403
