"""Takes credentials out of text before it becomes a message, a log line or a row.

Forges and libraries repeat what they were given: a header in an exception, an address with a password in an answer.
GitHub's tokens have no fixed length any more (`ghs_` and then an application id and a signed part), so nothing is
assumed about it. This module must not decide what is said, only what of it may be seen.
"""

from __future__ import annotations

import re
from typing import Final

REMOVED: Final = "[removed]"

_CREDENTIALS: Final = (
    re.compile(r"gh[a-z]_[A-Za-z0-9_.\-]+"),
    re.compile(r"github_pat_[A-Za-z0-9_]+"),
    re.compile(r"gl[a-z]{2,6}-[A-Za-z0-9_.\-]{8,}"),  # GitLab: personal, project, deploy and job tokens
    re.compile(r"eyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?"),  # a signed token of any kind
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9_.~+/=\-]+"),
    re.compile(r"(?i)(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),  # what stands before the host of an address
    re.compile(r"-----BEGIN[^-]*PRIVATE KEY-----.*?(?:-----END[^-]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


def redacted(text: str) -> str:
    """The text with everything that looks like a credential replaced by `[removed]`."""
    for pattern in _CREDENTIALS:
        text = pattern.sub(REMOVED, text)
    return text
