"""When a rate limit ends, from the headers that forges tell it by. Pure; every header may be nonsense."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

# A second more than the forge says: its clock and ours are not the same.
_MARGIN: Final = timedelta(seconds=1)
_LONGEST_WAIT: Final = timedelta(hours=2)


def retry_after(headers: httpx.Headers, now: datetime) -> datetime | None:
    """When `Retry-After` lets us come again: a number of seconds or a date, two hours at most; None without one."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.isascii() and value.isdigit():
        return now + min(timedelta(seconds=int(value[:9])), _LONGEST_WAIT) + _MARGIN
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return until_reset(until, now, timedelta(0))


def until_reset(reset: datetime | None, now: datetime, patience: timedelta) -> datetime:
    """When to come again if a limit is reset then; after `patience` if nobody knows. Two hours at most."""
    return min(max(reset or now + patience, now), now + _LONGEST_WAIT) + _MARGIN


def moment(value: str) -> datetime | None:
    """Seconds since 1970 as a moment; None for what is none."""
    try:
        return datetime.fromtimestamp(int(value[:12]), UTC)
    except (ValueError, OverflowError, OSError):
        return None
