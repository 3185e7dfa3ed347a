"""What GitHub means when it says no: a 403 alone can be a limit, a missing permission or a suspended installation.

Told from headers first and from the message last, since its wording is no interface.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import httpx

from services.forges.clocks import Clock
from services.forges.errors import (
    ForgeError,
    ForgeNotFoundError,
    ForgeRejectedError,
    ForgeUnavailableError,
    InstallationSuspendedError,
    PermissionMissingError,
    RateLimitedError,
)
from services.forges.github.models import GraphqlError
from services.forges.limits import moment, retry_after, until_reset
from services.forges.transport import Answer, clean, strings

_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_GONE: Final = frozenset({404, 410})
_SECONDARY_WORDS: Final = ("secondary rate limit", "abuse detection", "submitted too quickly")


class GithubDialect:
    """Classifies refusals. `permission_header` names what a call would have needed."""

    permission_header: Final = "x-accepted-github-permissions"

    def refusal(self, answer: Answer, *, clock: Clock, patience: timedelta) -> ForgeError:
        """The error that a 4xx of GitHub's means."""
        saying = answer.saying()
        if answer.status in {_FORBIDDEN, _TOO_MANY}:
            limit = rate_limit(answer, saying, now=clock.now(), patience=patience)
            if limit is not None:
                return limit
        if answer.status == _FORBIDDEN:
            return self._forbidden(answer, saying)
        if answer.status in _GONE:
            return ForgeNotFoundError(f"GitHub has no such thing, or we may not see it ({answer.status}: {saying})")
        return ForgeRejectedError(
            f"GitHub refused it ({answer.status}): {saying or 'without a reason'}",
            status=answer.status,
            problems=problems(answer),
        )

    def _forbidden(self, answer: Answer, saying: str) -> ForgeError:
        if "suspended" in saying.lower():
            return InstallationSuspendedError("the installation is suspended at GitHub by the owner of the account")
        if "archived" in saying.lower():
            return ForgeRejectedError(f"GitHub refused it: {saying}", status=answer.status)
        needed = clean(answer.headers.get(self.permission_header, "")).replace("=", ":")
        asked = f": it takes {needed}" if needed else ""
        return PermissionMissingError(
            f"GitHub does not let us{asked} ({saying or 'without a reason'})", permission=needed
        )


def rate_limit(answer: Answer, saying: str, *, now: datetime, patience: timedelta) -> RateLimitedError | None:
    """The limit that an answer tells of; None if it is no limit."""
    told = "retry-after" in answer.headers or _is_used_up(answer.headers)
    meant = answer.status == _TOO_MANY or any(words in saying.lower() for words in _SECONDARY_WORDS)
    if not told and not meant:
        return None
    until, secondary = _until(answer.headers, now, patience)
    return RateLimitedError(_waiting("burst" if secondary else "hourly", until), retry_at=until, secondary=secondary)


def _until(headers: httpx.Headers, now: datetime, patience: timedelta) -> tuple[datetime, bool]:
    """When to come again, and whether it is a limit on bursts: `Retry-After` first, then the reset, then patience."""
    after = retry_after(headers, now)
    if after is not None:
        return after, True
    if not _is_used_up(headers):
        return now + patience, True
    return until_reset(moment(headers.get("x-ratelimit-reset", "")), now, patience), False


def _is_used_up(headers: httpx.Headers) -> bool:
    remaining: str = headers.get("x-ratelimit-remaining", "")
    return remaining.strip() == "0"


def problems(answer: Answer) -> tuple[str, ...]:
    """The reasons of a 422: GitHub gives texts, or objects with a resource, a field, a code and a message."""
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError):
        return ()
    errors = value.get("errors") if isinstance(value, dict) else None
    found = []
    for error in errors if isinstance(errors, list) else ():
        found.append(clean(" ".join(strings(error)))) if isinstance(error, dict) else found.extend(strings(error))
    return tuple(found)


def graphql_refusal(
    errors: Sequence[GraphqlError], *, headers: httpx.Headers, now: datetime, patience: timedelta, is_write: bool
) -> ForgeError:
    """What errors of GraphQL mean, which come with status 200."""
    kinds = {error.type for error in errors}
    saying = clean("; ".join(error.message for error in errors))
    if "RATE_LIMITED" in kinds or any(words in saying.lower() for words in _SECONDARY_WORDS):
        until, secondary = _until(headers, now, patience)
        return RateLimitedError(
            _waiting("burst" if secondary else "hourly", until), retry_at=until, secondary=secondary
        )
    if "NOT_FOUND" in kinds:
        return ForgeNotFoundError(f"GitHub has no such thing: {saying}")
    if kinds & {"FORBIDDEN", "INSUFFICIENT_SCOPES"}:
        return PermissionMissingError(f"GitHub does not let us: {saying}", permission="pull_requests:write")
    if not kinds - {""} and "something went wrong" in saying.lower():
        return ForgeUnavailableError(f"GitHub failed: {saying}", outcome_unknown=is_write)
    return ForgeRejectedError(f"GitHub refused it: {saying}", status=200, problems=strings([e.message for e in errors]))


def _waiting(kind: str, until: datetime) -> str:
    return f"GitHub's {kind} rate limit is used up until {until:%Y-%m-%d %H:%M:%S} UTC"
