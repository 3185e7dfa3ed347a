"""Comments that silence findings: `# gradproof: ignore[GP101] the reason`.

A reason is required; a comment without one silences nothing and is reported, and so is one that meets no finding.
This module must not know rules beyond their ids.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field

_MARKER = "gradproof:"
_COMMENT = re.compile(r"#\s*gradproof:\s*ignore\b\s*(?:\[(?P<rules>[^\]]*)\])?\s*(?P<reason>.*)$")


@dataclass(slots=True)
class SuppressionComment:
    """One comment; `used` collects the ids of the rules that it silenced."""

    line: int
    column: int
    end_column: int
    rules: tuple[str, ...]
    reason: str
    used: set[str] = field(default_factory=set)


def find_comments(text: str) -> list[SuppressionComment]:
    """All suppression comments of a file, in order. Text inside string literals does not count."""
    if _MARKER not in text:
        return []
    found: list[SuppressionComment] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and _MARKER in token.string:
                comment = _read(token)
                if comment is not None:
                    found.append(comment)
    except (tokenize.TokenError, SyntaxError, RecursionError):
        # `tokenize` is stricter than the parser about a last line without an end; what it has read counts.
        return found
    return found


def _read(token: tokenize.TokenInfo) -> SuppressionComment | None:
    # Other tools' comments may stand before ours on the same line: `# gradproof: ignore[GP101] why`.
    match = _COMMENT.search(token.string)
    if match is None:
        return None
    rules = tuple(part.strip().upper() for part in (match["rules"] or "").split(",") if part.strip())
    reason = match["reason"].strip(" \t-:")
    row, start = token.start
    return SuppressionComment(row, start + match.start() + 1, token.end[1] + 1, rules, reason)


class SuppressionTable:
    """Which comments speak for which lines."""

    def __init__(self, comments: list[SuppressionComment]) -> None:
        self.comments = comments
        self._by_line: dict[int, list[SuppressionComment]] = {}
        for comment in comments:
            self._by_line.setdefault(comment.line, []).append(comment)

    def match(self, rule: str, lines: range, statement_line: int) -> SuppressionComment | None:
        """The comment that silences a finding of `rule` on `lines` of a statement that begins at `statement_line`."""
        if not self._by_line:
            return None
        for line in (statement_line, *lines):
            for comment in self._by_line.get(line, ()):
                if rule in comment.rules and comment.reason:
                    comment.used.add(rule)
                    return comment
        return None
