"""Cut GitHub's published OpenAPI and example webhooks down to what the fake forge serves and sends.

GitHub's description has 13 MB and 811 paths; the fake serves some fifty operations. Kept is what decides whether a
request, a response or a webhook is valid: parameters, bodies and the schemas they need. Left out is prose and examples.
On the way OpenAPI 3.0's `nullable` becomes JSON Schema, and the objects of requests are closed: GitHub ignores a
misspelt field without a word, the fake must not.

Usage, in any directory:
    npm install --ignore-scripts @octokit/openapi@23.0.2 @octokit/webhooks-examples@7.6.1
    python -m tools.fake_forge.distil node_modules/@octokit
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tools.fake_forge.contract import EXAMPLES, OPENAPI

OPERATIONS: Final = (
    "GET /app",
    "GET /app/hook/deliveries",
    "GET /app/hook/deliveries/{delivery_id}",
    "POST /app/hook/deliveries/{delivery_id}/attempts",
    "GET /app/installations",
    "GET /app/installations/{installation_id}",
    "POST /app/installations/{installation_id}/access_tokens",
    "GET /installation/repositories",
    "GET /meta",
    "GET /rate_limit",
    "GET /repos/{owner}/{repo}",
    "GET /repos/{owner}/{repo}/branches/{branch}",
    "POST /repos/{owner}/{repo}/check-runs",
    "GET /repos/{owner}/{repo}/check-runs/{check_run_id}",
    "PATCH /repos/{owner}/{repo}/check-runs/{check_run_id}",
    "GET /repos/{owner}/{repo}/check-runs/{check_run_id}/annotations",
    "GET /repos/{owner}/{repo}/check-suites/{check_suite_id}",
    "POST /repos/{owner}/{repo}/code-scanning/sarifs",
    "GET /repos/{owner}/{repo}/code-scanning/sarifs/{sarif_id}",
    "GET /repos/{owner}/{repo}/collaborators/{username}/permission",
    "GET /repos/{owner}/{repo}/commits/{commit_sha}/pulls",
    "GET /repos/{owner}/{repo}/commits/{ref}",
    "GET /repos/{owner}/{repo}/commits/{ref}/check-runs",
    "GET /repos/{owner}/{repo}/commits/{ref}/check-suites",
    "GET /repos/{owner}/{repo}/compare/{basehead}",
    "GET /repos/{owner}/{repo}/installation",
    "GET /repos/{owner}/{repo}/issues/comments/{comment_id}",
    "PATCH /repos/{owner}/{repo}/issues/comments/{comment_id}",
    "DELETE /repos/{owner}/{repo}/issues/comments/{comment_id}",
    "POST /repos/{owner}/{repo}/issues/comments/{comment_id}/reactions",
    "GET /repos/{owner}/{repo}/issues/{issue_number}/comments",
    "POST /repos/{owner}/{repo}/issues/{issue_number}/comments",
    "GET /repos/{owner}/{repo}/pulls",
    "GET /repos/{owner}/{repo}/pulls/comments/{comment_id}",
    "PATCH /repos/{owner}/{repo}/pulls/comments/{comment_id}",
    "DELETE /repos/{owner}/{repo}/pulls/comments/{comment_id}",
    "GET /repos/{owner}/{repo}/pulls/{pull_number}",
    "GET /repos/{owner}/{repo}/pulls/{pull_number}/comments",
    "POST /repos/{owner}/{repo}/pulls/{pull_number}/comments",
    "POST /repos/{owner}/{repo}/pulls/{pull_number}/comments/{comment_id}/replies",
    "GET /repos/{owner}/{repo}/pulls/{pull_number}/files",
    "GET /repos/{owner}/{repo}/pulls/{pull_number}/reviews",
    "POST /repos/{owner}/{repo}/pulls/{pull_number}/reviews",
)

# What the fake sends, by GitHub's names of the schemas and of the example payloads.
WEBHOOKS: Final = (
    "check_run.completed",
    "check_run.created",
    "check_run.requested_action",
    "check_run.rerequested",
    "check_suite.requested",
    "check_suite.rerequested",
    "installation.created",
    "installation.deleted",
    "installation.suspend",
    "installation.unsuspend",
    "installation_repositories.added",
    "installation_repositories.removed",
    "issue_comment.created",
    "issue_comment.deleted",
    "issue_comment.edited",
    "ping",
    "pull_request.closed",
    "pull_request.converted_to_draft",
    "pull_request.edited",
    "pull_request.opened",
    "pull_request.ready_for_review",
    "pull_request.reopened",
    "pull_request.synchronize",
    "pull_request_review_comment.created",
    "pull_request_review_comment.deleted",
    "pull_request_review_thread.resolved",
    "pull_request_review_thread.unresolved",
    "push",
    "repository.renamed",
    "repository.transferred",
)

_PROSE: Final = frozenset(
    {"description", "example", "examples", "externalDocs", "summary", "title", "discriminator", "deprecated", "default"}
)
_COMBINING: Final = ("allOf", "anyOf", "oneOf")


class Distillery:
    """Translates schemas, and remembers which shared ones they need."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]
        self.definitions: dict[str, Any] = {}

    def schema(self, node: Any, *, closed: bool = False) -> Any:
        """The JSON Schema of one OpenAPI schema; with `closed`, its objects allow the fields they name, no others."""
        if isinstance(node, bool):
            return node
        if "$ref" in node:
            return self._reference(node["$ref"])
        kept = {key: self._value(key, value, closed=closed) for key, value in node.items() if key not in _PROSE}
        kept = {key: value for key, value in kept.items() if not key.startswith("x-")}
        if kept.get("format") != "date-time":
            kept.pop("format", None)  # "uri" stands on URL templates too, which are none
        nullable = kept.pop("nullable", False)
        combined = any(key in kept for key in _COMBINING)
        if closed and "properties" in kept and not combined:
            kept.setdefault("additionalProperties", False)
        return _or_null(kept) if nullable else kept

    def _value(self, key: str, value: Any, *, closed: bool) -> Any:
        if key in ("properties", "patternProperties"):
            return {name: self.schema(inner, closed=closed) for name, inner in value.items()}
        if key in ("items", "not", "additionalProperties"):
            return self.schema(value, closed=closed)
        if key in _COMBINING:
            # Branches name a part of the fields each: closing them would refuse what the other branches allow.
            return [self.schema(inner) for inner in value]
        return value

    def _reference(self, reference: str) -> dict[str, str]:
        name = reference.rpartition("/")[2]
        if name not in self.definitions:
            self.definitions[name] = {}  # schemas may speak of themselves
            self.definitions[name] = self.schema(self._components["schemas"][name])
        return {"$ref": f"#/$defs/{name}"}

    def resolved(self, node: Any, kind: str) -> Any:
        """The parameter, response or header that `node` names, or is."""
        return self._components[kind][node["$ref"].rpartition("/")[2]] if "$ref" in node else node

    def operation(self, node: dict[str, Any]) -> dict[str, Any]:
        """Query parameters, body and responses of one operation."""
        query = {}
        for parameter in (self.resolved(each, "parameters") for each in node.get("parameters", ())):
            if parameter["in"] == "query":
                query[parameter["name"]] = self.schema(parameter["schema"])
        kept: dict[str, Any] = {"query": query, "responses": {}}
        if "requestBody" in node:
            body = node["requestBody"]
            kept["body"] = self.schema(body["content"]["application/json"]["schema"], closed=True)
            kept["body_required"] = body.get("required", False)
        for status, each in node["responses"].items():
            content = self.resolved(each, "responses").get("content", {}).get("application/json")
            kept["responses"][status] = self.schema(content["schema"]) if content else None
        return kept


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str):
        widened = {**schema, "type": [schema["type"], "null"]}
        if "enum" in widened and None not in widened["enum"]:
            widened["enum"] = [*widened["enum"], None]
        return widened
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def distilled(document: dict[str, Any], version: str) -> dict[str, Any]:
    """The operations and webhooks named above, with the schemas they need, and nothing else."""
    distillery = Distillery(document)
    operations = {}
    for name in OPERATIONS:
        method, path = name.split()
        operations[name] = distillery.operation(document["paths"][path][method.lower()])
    _correct(operations, distillery)
    webhooks = {}
    for name in WEBHOOKS:
        webhook = document["x-webhooks"][name.replace("_", "-").replace(".", "-")]["post"]
        webhooks[name] = distillery.schema(webhook["requestBody"]["content"]["application/json"]["schema"])
    return {
        "source": f"@octokit/openapi {version}, api.github.com",
        "operations": operations,
        "webhooks": webhooks,
        "$defs": dict(sorted(distillery.definitions.items())),
    }


def _correct(operations: dict[str, Any], distillery: Distillery) -> None:
    """Where the description contradicts itself and what GitHub answers."""
    # An account can't be a user and an enterprise at once: elsewhere it is one of them.
    reference = {"$ref": "#/components/schemas/installation"}
    operations["GET /app/installations"]["responses"]["200"] = {"type": "array", "items": distillery.schema(reference)}
    # The line of an outdated comment is null, as the same comment's schema in webhooks says.
    for name in ("pull-request-review-comment", "review-comment"):
        for line in ("line", "start_line", "position"):
            distillery.definitions.get(name, {"properties": {}})["properties"][line] = {"type": ["integer", "null"]}


def examples(collected: Iterable[dict[str, Any]], version: str) -> dict[str, Any]:
    """One real payload for each webhook named above, where there is one: the last in the collection."""
    found = {}
    for event in collected:
        for payload in event["examples"]:
            action = payload.get("action")
            name = f"{event['name']}.{action}" if action else event["name"]
            if name in WEBHOOKS:
                found[name] = _without_templates(payload)
    return {"source": f"@octokit/webhooks-examples {version}, api.github.com", "payloads": dict(sorted(found.items()))}


def _without_templates(node: Any) -> Any:
    """The same without the dozens of URL templates that each account and repository carries."""
    if isinstance(node, dict):
        return {key: _without_templates(value) for key, value in node.items() if not _is_template(key, value)}
    if isinstance(node, list):
        return [_without_templates(each) for each in node]
    return node


def _is_template(key: str, value: object) -> bool:
    return key.endswith("_url") and key not in _TELLING_URLS and isinstance(value, str)


_TELLING_URLS: Final = frozenset({"html_url", "clone_url", "details_url", "diff_url", "issue_url", "pull_request_url"})


def _read(package: Path, *parts: str) -> tuple[Any, str]:
    version = json.loads(package.joinpath("package.json").read_text(encoding="utf-8"))["version"]
    return json.loads(package.joinpath(*parts).read_text(encoding="utf-8")), version


def _lines(document: dict[str, Any]) -> Iterator[str]:
    """JSON with one line for each member of each top object, so that a newer version shows as a readable change."""
    yield "{"
    for index, (key, value) in enumerate(document.items()):
        comma = "," if index < len(document) - 1 else ""
        if not isinstance(value, dict):
            yield f"{json.dumps(key)}:{json.dumps(value)}{comma}"
            continue
        yield f"{json.dumps(key)}:{{"
        last = len(value) - 1
        for place, (name, inner) in enumerate(value.items()):
            yield f"{json.dumps(name)}:{json.dumps(inner, separators=(',', ':'))}{',' if place < last else ''}"
        yield f"}}{comma}"
    yield "}"


def main(packages: str) -> None:
    """Write both files from the npm packages below `packages`."""
    document, version = _read(Path(packages, "openapi"), "generated", "api.github.com.json")
    collected, examples_version = _read(Path(packages, "webhooks-examples"), "api.github.com", "index.json")
    for target, content in ((OPENAPI, distilled(document, version)), (EXAMPLES, examples(collected, examples_version))):
        target.write_text("\n".join(_lines(content)) + "\n", encoding="utf-8")
        print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
