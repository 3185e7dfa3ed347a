"""Makes text that came from submitted code safe to look at.

File names, docstrings, messages and exception texts may hold terminal escapes, characters that reverse the reading
direction, or invisible ones that forge another text ("Trojan source"). They are not removed, which would hide an
attack, but shown by their code point. Escaping for a syntax (HTML, Markdown, XML) is the business of each format.
"""

from __future__ import annotations

import re

# Controls (C0 without tab and newline, C1), directional marks, embeddings, overrides and isolates, zero-width
# characters, line and paragraph separators, the byte order mark, tag characters, variation selectors' supplement,
# lone surrogates and non-characters (which XML and UTF-8 can't carry).
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with each invisible or steering character shown as `[U+202E]`; tabs and newlines stay."""
    return _INVISIBLE.sub(lambda match: f"[U+{ord(match.group()):04X}]", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The same on one line: runs of white space become one blank."""
    return " ".join(visible(text).split())


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, with an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
