"""The pieces of the OpenAPI document that the framework can't read off the routes: problems, bodies, examples."""

from __future__ import annotations

from typing import Any

from api.examples import REPORTS, SUBMITTED
from api.problems import MEDIA_TYPE, Problem
from api.schemas import EXAMPLE_ID, GitSubmission
from services.reports.formats import FORMATS

_EXAMPLES: dict[int, tuple[str, str, str, str]] = {
    400: ("malformed-body", "The body can't be read", "body is not JSON: Expecting value", "The body can't be read"),
    401: (
        "authentication-required",
        "A valid token is required",
        "send a token: Authorization: Bearer …",
        "No token, or one that is unknown, expired or revoked",
    ),
    403: (
        "missing-scope",
        "The token does not allow this",
        "this needs a token with the scope 'submit'",
        "The token lacks a scope",
    ),
    404: ("analysis-not-found", "No such analysis", f"there is no analysis '{EXAMPLE_ID}'", "There is no such thing"),
    409: (
        "report-unavailable",
        "There is no report yet",
        "its source is not fetched yet",
        "The present state does not allow this",
    ),
    413: (
        "body-too-large",
        "The request body is too large",
        "a request body may have 67,108,864 bytes",
        "The body is too large; it was not read to its end",
    ),
    415: (
        "archive-unsupported",
        "This kind of file can't be read",
        "model.rar does not end in .zip, .tar, .tar.gz or .py",
        "Neither an archive nor JSON",
    ),
    422: (
        "invalid-request",
        "The request can't be used",
        "query.limit: Input should be less than or equal to 200",
        "A field, an option or the submitted source can't be used; `details` names it",
    ),
    429: (
        "limit-reached",
        "Too much was asked for",
        "this caller has submitted 120 analyses within a minute, and 120 are allowed: the next is taken in 12 s",
        "A rate or a quota is used up; `details` names it, `Retry-After` says when to come back",
    ),
    503: (
        "database-unavailable",
        "The database can't be used",
        "The database can't be reached",
        "The surroundings do not allow this now",
    ),
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a call may answer with, each with an example."""
    return {status: _problem(status) for status in statuses}


def _problem(status: int) -> dict[str, Any]:
    code, title, detail, description = _EXAMPLES[status]
    example = {
        "type": f"urn:gradproof:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "details": {},
    }
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema, "example": example}}}


def _too_many() -> dict[str, Any]:
    seconds = {"description": "seconds after which to try again", "schema": {"type": "integer", "minimum": 1}}
    return {**_problem(429), "headers": {"Retry-After": seconds}}


def answers(example: object, *, status: int = 200, media_type: str = "application/json") -> dict[int | str, Any]:
    """An example of what a call answers when all is well; the schema is the framework's."""
    return {status: {"content": {media_type: {"example": example}}}}


ANALYSIS_PROBLEMS = problems(401, 403, 404)
SUBMISSION_RESPONSES = {
    **answers(SUBMITTED, status=202),
    **problems(400, 401, 403, 404, 409, 413, 415, 422, 503),
}

REPORT_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The report in the format that was asked for.",
        "content": {
            each.media_type: {
                "schema": {"type": ["object", "array"]} if each.media_type.endswith("json") else {"type": "string"},
                "example": REPORTS[each.name],
            }
            # JSON comes last, since Code Quality shares its media type.
            for each in sorted(FORMATS.values(), key=lambda each: each.name == "json")
        },
    },
    **problems(401, 403, 404, 409, 422),
}

_GIT_EXAMPLE = {
    "git_url": "https://github.com/example/vision",
    "ref": "main",
    "base_ref": "v1.2.0",
    "project": "vision",
    "options": {"checks": ["gradcheck"]},
}

SUBMISSION_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["archive"],
                    "additionalProperties": False,
                    "properties": {
                        "archive": {
                            "type": "string",
                            "format": "binary",
                            "description": ".zip, .tar, .tar.gz or a single .py, told by its file name",
                        },
                        "options": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "JSON with `static_only`, `checks` and `rules`",
                        },
                        "project": {"type": "string", "description": "name of the project; made when it is new"},
                        "base": {"type": "string", "description": "id of an analysis to compare with"},
                    },
                },
                "example": {"archive": "(the bytes of vision.tar.gz)", "options": '{"static_only": true}'},
            },
            "application/json": {
                "schema": {"$ref": "#/components/schemas/GitSubmission"},
                "example": _GIT_EXAMPLE,
            },
        },
    },
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "maxLength": 200},
            "description": "makes a repeated request harmless",
            "example": "ci-4711-1",
        }
    ],
}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add what the routes don't say: schemas of hand-written parts, refused parameters as they are refused, limits."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (GitSubmission, Problem):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for methods in document["paths"].values():
        for operation in methods.values():
            refused = operation["responses"].get("422")
            if refused is not None and MEDIA_TYPE not in refused.get("content", {}):
                operation["responses"]["422"] = _problem(422)
            if "requestBody" in operation:  # read before anything of it is looked at
                for status in (400, 413):
                    operation["responses"].setdefault(str(status), _problem(status))
            if "401" in operation["responses"]:  # who can be told from others can ask too often
                operation["responses"]["429"] = _too_many()
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    return document
