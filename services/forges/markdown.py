"""Markdown for a forge, out of texts that nobody can trust: file names, messages, exception texts, names of people.

One escaping for everything that the bot writes. In plain text no mention, reference, commit, link, image, comment or
command survives; in code spans and fences forges read none of these. Markers, by which the bot knows its own comments,
count on the first line alone, where no text of a repository ever stands. This module must not know what is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from services.reports.formats.markdown import block, code, text
from services.reports.untrusted import one_line, shorten

ZERO_WIDTH_SPACE: Final = "\u200b"

# Seven to forty digits of a commit become a link to it; a number alone is left whole, so that it can be copied.
_COMMIT: Final = re.compile(
    r"(?<![0-9A-Za-z])(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{7,40}(?![0-9A-Za-z])"
)
# What GitLab reads beside `@`, `#` and `!`: labels, milestones, snippets, epics, alerts.
_GITLAB_REFERENCE: Final = re.compile(r"(\\[~$^]|&amp;|%)(?=\\?[\w\"])")
# A line of a note that begins with a word after a slash is a command to GitLab: /close, /assign.
_QUICK_ACTION: Final = re.compile(r"^(\s*)/(?=[A-Za-z])", re.MULTILINE)
_MARKER: Final = re.compile(r"<!-- gradproof:(?P<kind>[a-z]{1,20}) (?P<key>[A-Za-z0-9:._\-]{1,120}) -->(?:\r?\n|\Z)")
_KEY: Final = re.compile(r"[A-Za-z0-9:._\-]{1,120}")


def plain(value: str, limit: int = 600) -> str:
    """Untrusted text as one line of plain text, at most `limit` characters before it is escaped."""
    escaped = text(shorten(one_line(value), limit))
    escaped = _COMMIT.sub(lambda found: ZERO_WIDTH_SPACE.join(re.findall(".{1,6}", found[0])), escaped)
    escaped = _GITLAB_REFERENCE.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, escaped)
    return f"{ZERO_WIDTH_SPACE}{escaped}" if escaped.startswith("/") else escaped


def prose(value: str, limit: int = 600) -> str:
    """Untrusted text whose author set off code with back-ticks, as messages of rules do: code spans and plain text."""
    parts = shorten(one_line(value), limit).split("`")
    if len(parts) % 2 == 0 or not all(parts[1::2]):  # one of them is alone, or there is nothing between two
        return plain(value, limit)
    return "".join((span(part, limit) if number % 2 else _edges(part)) for number, part in enumerate(parts) if part)


def _edges(part: str) -> str:
    """Plain text that stands beside code: its blanks at both ends are kept."""
    begin, end = " " * part.startswith(" "), " " * (part.endswith(" ") and bool(part.strip()))
    return f"{begin}{plain(part, len(part))}{end}"


def span(value: str, limit: int = 200) -> str:
    """Untrusted text as a code span, also inside a table."""
    return code(shorten(one_line(value), limit))


def fenced(value: str, language: str = "", limit: int = 4_000) -> str:
    """Untrusted text as a fenced block, cut between lines; a line that GitLab would obey is broken."""
    kept: list[str] = []
    left = limit
    for line in value.split("\n"):
        left -= len(line) + 1
        if left < 0:
            kept.append("…")
            break
        kept.append(line)
    return block(_QUICK_ACTION.sub(rf"\1{ZERO_WIDTH_SPACE}/", "\n".join(kept)), language)


def link(label: str, url: str) -> str:
    """A link of our own making; `label` is Markdown, `url` is percent-encoded where it would end."""
    return f"[{label}]({quote(url, safe=':/?#@!$&+,;=%~-._')})"


def is_command_of_gitlab(value: str) -> bool:
    """Whether a line would be obeyed where it can't be broken: in a suggestion."""
    return _QUICK_ACTION.search(value) is not None


def marker(kind: str, key: str) -> str:
    """The hidden first line of a comment of ours, by which it is found again. Raises ValueError for a key not fit."""
    if not _KEY.fullmatch(key):
        raise ValueError("a marker is made of letters, digits and :._-")
    return f"<!-- gradproof:{kind} {key} -->"


def read_marker(kind: str, body: str) -> str | None:
    """The key in the marker of a body, if it begins with one of that kind. Says nothing of who wrote it."""
    found = _MARKER.match(body.lstrip("\ufeff"))
    return found["key"] if found is not None and found["kind"] == kind else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    return "\n".join([row(head), f"|{'---|' * len(head)}", *map(row, rows)])


def row(cells: Sequence[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"


def size(value: str) -> int:
    """What a forge counts: GitHub says characters and means bytes in some places, so bytes."""
    return len(value.encode("utf-8", "surrogatepass"))


def fitted(parts: Sequence[str], *, tail: Callable[[int], str], limit: int, separator: str = "\n\n") -> str:
    """As many whole parts as fit, then what `tail` says of the number left out (nothing at 0: an empty text).

    A part is never cut, so that no fence is left open and no table row is half.
    """
    kept = list(parts)
    while True:
        last = tail(len(parts) - len(kept))
        whole = separator.join([*kept, last] if last else kept)
        if size(whole) <= limit or not kept:
            return whole
        # All that is too much at once, so that thousands of parts take a few rounds.
        over = size(whole) - limit
        while kept and over > 0:
            over -= size(kept.pop()) + len(separator)
