"""Code scanning: SARIF uploads, packed and sized as GitHub wants them."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import uuid
import zlib
from typing import Any, Final

from tools.fake_forge.exchange import Call, Operations, Refusal, Reply, not_found
from tools.fake_forge.world import Sarif

operations: Final = Operations()
LARGEST: Final = 10 * 1024 * 1024  # bytes, packed
_MOST_RUNS: Final = 20
_MOST_RESULTS: Final = 25_000


@operations.add("POST /repos/{owner}/{repo}/code-scanning/sarifs", ("security_events", "write"), wrote="sarif.upload")
def upload(call: Call) -> Reply:
    """Taken at once, looked at later: what is wrong with the document is told by its status."""
    try:
        packed = base64.b64decode(call.body["sarif"], validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise Refusal(400, "The SARIF field isn't Base64") from error
    if len(packed) > LARGEST:
        raise Refusal(413, "The SARIF payload is larger than 10 MB after gzip")
    if call.repository.git.sha(call.body["commit_sha"]) is None:
        raise Refusal(422, "commit not found")
    if not call.body["ref"].startswith("refs/"):
        raise Refusal(422, "ref must be a full ref, as refs/heads/main or refs/pull/7/head")
    document, errors = _read(packed)
    number = str(uuid.uuid4())
    ref, commit = call.body["ref"], call.body["commit_sha"]
    call.hub.world.sarifs[number] = Sarif(number, call.repository, commit, ref, document, errors)
    return Reply(202, {"id": number, "url": f"{call.hub.api}{_path(call)}/{number}"})


@operations.add("GET /repos/{owner}/{repo}/code-scanning/sarifs/{sarif_id}", ("security_events", "read"))
def status(call: Call) -> Reply:
    found = call.hub.world.sarifs.get(call.path["sarif_id"])
    if found is None or found.repository is not call.repository:
        raise not_found()
    if found.errors:
        return Reply(200, {"processing_status": "failed", "errors": found.errors})
    address = f"{call.hub.api}/repos/{call.repository.full_name}/code-scanning/analyses?sarif_id={found.id}"
    return Reply(200, {"processing_status": "complete", "analyses_url": address})


def _path(call: Call) -> str:
    return f"/repos/{call.repository.full_name}/code-scanning/sarifs"


def _read(packed: bytes) -> tuple[dict[str, Any], list[str]]:
    """The document, and what keeps GitHub from processing it."""
    try:
        document = json.loads(gzip.decompress(packed))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        return {}, [f"could not read the file: {error}"]
    runs = document.get("runs", [])
    errors = []
    if document.get("version") != "2.1.0" or "$schema" not in document:
        errors.append("version must be 2.1.0, and $schema is required")
    if len(runs) > _MOST_RUNS:
        errors.append(f"there are more runs than allowed ({len(runs)} > {_MOST_RUNS})")
    for run in runs:
        results, rules = run.get("results", []), run.get("tool", {}).get("driver", {}).get("rules", [])
        if len(results) > _MOST_RESULTS or len(rules) > _MOST_RESULTS:
            errors.append(f"there are more results or rules than allowed ({_MOST_RESULTS})")
        if not all(each.get("locations") and each.get("message", {}).get("text") for each in results):
            errors.append("each result needs a location and a message")
    return document, errors
