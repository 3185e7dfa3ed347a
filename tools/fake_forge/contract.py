"""GitHub's published contract: is this request, this response, this webhook one that GitHub describes?

Knows nothing of the fake's state: rules that only prose states (a line must be in the diff) live with the operations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema_rs

OPENAPI: Final = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "forge" / "github-openapi.json"
EXAMPLES: Final = OPENAPI.with_name("github-webhooks.json")
# GitHub answers these anywhere, whether or not the operation lists them.
_ANYWHERE = frozenset({301, 304, 307, 400, 401, 403, 404, 406, 410, 413, 415, 422, 429, 500, 502, 503, 504})
_MOST = 5  # violations told of one message: the first ones say what is wrong


class Contract:
    """Validates against the distilled description. Use `contract()`: compiling takes a while."""

    def __init__(self) -> None:
        self._document = json.loads(OPENAPI.read_text(encoding="utf-8"))
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    @property
    def operations(self) -> frozenset[str]:
        """The operations described, as `GET /app`."""
        return frozenset(self._document["operations"])

    def request(self, operation: str, query: Mapping[str, str], body: object) -> list[str]:
        """What is wrong with a request: one sentence each. `body` is None where there was none."""
        described = self._document["operations"][operation]
        wrong = []
        for name, text in query.items():
            if name not in described["query"]:
                wrong.append(f"{operation} has no query parameter {name!r}")
            else:
                schema = described["query"][name]
                value = _typed(text, schema)
                wrong += self._errors(f"{operation} ?{name}", schema, value, f"query parameter {name}")
        if body is None:
            if described.get("body_required"):
                wrong.append(f"{operation} needs a body")
        elif "body" not in described:
            wrong.append(f"{operation} takes no body")
        else:
            wrong += self._errors(f"{operation} body", described["body"], body, "body")
        return wrong

    def response(self, operation: str, status: int, body: object) -> list[str]:
        """What is wrong with an answer of the fake itself."""
        responses = self._document["operations"][operation]["responses"]
        if str(status) not in responses:
            return [] if status in _ANYWHERE else [f"{operation} does not answer {status}"]
        schema = responses[str(status)]
        if schema is None:
            said = status < 300 and body not in (None, {})
            return [f"{operation} answers {status} without a body"] if said else []
        return self._errors(f"{operation} {status}", schema, body, f"answer {status} to {operation}")

    def webhook(self, name: str, payload: object) -> list[str]:
        """What is wrong with a webhook; `name` is the event with its action, as `pull_request.opened`."""
        return self._errors(f"webhook {name}", self._document["webhooks"][name], payload, f"webhook {name}")

    def _errors(self, key: str, schema: Any, value: object, what: str) -> list[str]:
        validator = self._validators.get(key)
        if validator is None:
            whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": self._document["$defs"]}
            validator = jsonschema_rs.Draft202012Validator(whole | schema, validate_formats=True)
            self._validators[key] = validator
        errors = [
            f"{what}, {'/'.join(map(str, error.instance_path)) or 'as a whole'}: {_short(error.message)}"
            for error in validator.iter_errors(value)
        ]
        return errors[:_MOST]


def _typed(text: str, schema: dict[str, Any]) -> object:
    """What a query parameter's text means where the schema wants a number or a truth value."""
    kind = schema.get("type")
    if kind == "integer" and text.lstrip("-").isdigit():
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def _short(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:150]} … {message[-150:]}"


@cache
def contract() -> Contract:
    """The contract, read and compiled once for the process."""
    return Contract()
