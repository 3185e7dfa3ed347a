"""What GitLab means when it says no. Limits come with 429; a 403 is a matter of the token's scopes or role."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final

from services.forges.clocks import Clock
from services.forges.errors import (
    ForgeError,
    ForgeNotFoundError,
    ForgeRejectedError,
    PermissionMissingError,
    RateLimitedError,
)
from services.forges.limits import moment, retry_after, until_reset
from services.forges.transport import Answer, strings

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = frozenset({404, 410})
_TOO_MANY: Final = 429


class GitlabDialect:
    """Classifies refusals."""

    def refusal(self, answer: Answer, *, clock: Clock, patience: timedelta) -> ForgeError:
        """The error that a 4xx of GitLab's means."""
        said = problems(answer)
        saying = "; ".join(said) or "without a reason"
        if answer.status == _TOO_MANY:
            now = clock.now()
            until = retry_after(answer.headers, now)
            if until is None:
                until = until_reset(moment(answer.headers.get("ratelimit-reset", "")), now, patience)
            return RateLimitedError(
                f"GitLab's rate limit is used up until {until:%Y-%m-%d %H:%M:%S} UTC", retry_at=until, secondary=False
            )
        if answer.status == _FORBIDDEN:
            needed = "the scope api" if "scope" in saying else "the role Developer"
            return PermissionMissingError(f"GitLab does not let us: it takes {needed} ({saying})", permission=needed)
        if answer.status in _NOT_FOUND:
            return ForgeNotFoundError(f"GitLab has no such thing, or we may not see it ({answer.status}: {saying})")
        return ForgeRejectedError(f"GitLab refused it ({answer.status}): {saying}", status=answer.status, problems=said)


def problems(answer: Answer) -> tuple[str, ...]:
    """The reasons of a refusal: GitLab gives a text, a list, or texts by field."""
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(value, dict):
        return ()
    return strings([value.get(key) for key in ("message", "error", "error_description")])
