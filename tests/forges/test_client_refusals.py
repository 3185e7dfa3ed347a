"""A 403 alone can be a limit, a missing permission, a suspended installation: each is told apart."""

from __future__ import annotations

import json
from datetime import timedelta

import httpx
import pytest

from services.forges.errors import (
    ForgeNotFoundError,
    ForgeRejectedError,
    ForgeUnavailableError,
    InstallationSuspendedError,
    PermissionMissingError,
    RateLimitedError,
)
from services.forges.github.models import GraphqlError
from services.forges.github.refusals import GithubDialect, graphql_refusal
from services.forges.transport import Answer
from tests.forges.scripted import START, StoodClock

PATIENCE = timedelta(seconds=60)
IN_AN_HOUR = START + timedelta(hours=1)


def refusal(status: int, body: object = None, **headers: str) -> Exception:
    answer = Answer(
        status,
        httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()}),
        json.dumps(body or {}).encode(),
    )
    return GithubDialect().refusal(answer, clock=StoodClock(), patience=PATIENCE)


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(
    ("headers", "wait", "secondary"),
    [
        ({"retry_after": "30"}, 31, True),
        ({"retry_after": "30", "x_ratelimit_remaining": "0", "x_ratelimit_reset": "1"}, 31, True),
        ({"retry_after": "Mon, 30 Nov 2026 12:05:00 GMT"}, 301, True),
        ({"retry_after": "9" * 30}, 7201, True),
        ({"retry_after": "Mon, 01 Jan 1990 00:00:00 GMT"}, 1, True),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": str(int(IN_AN_HOUR.timestamp()))}, 3601, False),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "soon"}, 61, False),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "9" * 30}, 61, False),
        ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": "1"}, 1, False),
    ],
)
def test_a_limit_says_when_to_come_again(status: int, headers: dict[str, str], wait: int, secondary: bool) -> None:
    error = refusal(status, {"message": "no"}, **headers)
    assert isinstance(error, RateLimitedError)
    assert (error.retry_at - START).total_seconds() == wait
    assert error.secondary is secondary


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."),
        (403, "You have triggered an abuse detection mechanism."),
        (429, "Too many requests"),
    ],
)
def test_a_burst_that_names_no_time_is_waited_out(status: int, message: str) -> None:
    error = refusal(status, {"message": message}, x_ratelimit_remaining="4000")
    assert isinstance(error, RateLimitedError)
    assert error.secondary
    assert error.retry_at == START + PATIENCE


def test_a_missing_permission_is_named() -> None:
    error = refusal(
        403,
        {"message": "Resource not accessible by integration"},
        x_accepted_github_permissions="checks=write",
        x_ratelimit_remaining="4999",
    )
    assert isinstance(error, PermissionMissingError)
    assert error.permission == "checks:write"
    assert not error.retry


def test_a_suspended_installation_is_told() -> None:
    assert isinstance(refusal(403, {"message": "This installation has been suspended"}), InstallationSuspendedError)


def test_an_archived_repository_is_no_matter_of_permissions() -> None:
    error = refusal(403, {"message": "Repository was archived so is read-only."})
    assert isinstance(error, ForgeRejectedError)


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_not_there(status: int) -> None:
    assert isinstance(refusal(status, {"message": "Not Found"}), ForgeNotFoundError)


def test_the_reasons_of_a_422_are_kept() -> None:
    error = refusal(
        422,
        {
            "message": "Validation Failed",
            "errors": [
                {
                    "resource": "PullRequestReviewComment",
                    "field": "line",
                    "code": "custom",
                    "message": "is not there",
                },
                "Line could not be resolved",
            ],
        },
    )
    assert isinstance(error, ForgeRejectedError)
    assert error.status == 422
    assert error.problems == (
        "PullRequestReviewComment line custom is not there",
        "Line could not be resolved",
    )


@pytest.mark.parametrize("body", [[], "x", 1, {"message": {"a": 1}}, {"errors": {"a": [[[]]]}}])
def test_a_refusal_of_any_shape_is_a_refusal(body: object) -> None:
    assert isinstance(refusal(422, body), ForgeRejectedError)


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("NOT_FOUND", "Could not resolve to a node", ForgeNotFoundError),
        ("FORBIDDEN", "Resource not accessible by integration", PermissionMissingError),
        ("RATE_LIMITED", "API rate limit exceeded", RateLimitedError),
        ("", "You have exceeded a secondary rate limit", RateLimitedError),
        ("", "Something went wrong while executing your query", ForgeUnavailableError),
        ("UNPROCESSABLE", "Thread is locked", ForgeRejectedError),
        ("", "Parse error on ...", ForgeRejectedError),
    ],
)
def test_graphql_refuses_with_status_200(kind: str, message: str, expected: type[Exception]) -> None:
    error = graphql_refusal(
        [GraphqlError(type=kind, message=message)],
        headers=httpx.Headers(),
        now=START,
        patience=PATIENCE,
        is_write=True,
    )
    assert type(error) is expected
    if isinstance(error, ForgeUnavailableError):
        assert error.outcome_unknown
