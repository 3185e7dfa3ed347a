"""What is said to whoever asked for too much."""

from __future__ import annotations

import math

from services.problems import GradproofError


class LimitReachedError(GradproofError):
    """A limit is used up: 429 over HTTP, with `Retry-After`.

    `details` name the `limit` (as the setting is called), how much it allows, how much is used, and after how many
    seconds it is worth trying again.
    """

    code = "limit-reached"
    title = "Too much was asked for"
    http_status = 429

    def __init__(self, message: str, *, limit: str, allowed: int, used: int, retry_after_s: float) -> None:
        # Whole seconds, and never none at all: HTTP knows no fractions, and 0 would invite to ask in a loop.
        seconds = max(1, math.ceil(retry_after_s))
        super().__init__(message, limit=limit, allowed=allowed, used=used, retry_after_s=seconds)
        self.retry_after_s = seconds
