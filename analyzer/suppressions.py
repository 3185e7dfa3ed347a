"""Comments that silence findings: `# gradproof: ignore[GP101] the reason`.

A reason is required; a comment without one silences nothing and is reported, and so is one that meets no finding.
This module must not know rules beyond their ids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from analyzer.newer_syntax import Comment, comments

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
    read = (_read(comment) for comment in comments(text) if _MARKER in comment.text)
    return [comment for comment in read if comment is not None]


def _read(comment: Comment) -> SuppressionComment | None:
    # Other tools' comments may stand before ours on the same line: `# gradproof: ignore[GP101] why`.
    match = _COMMENT.search(comment.text)
    if match is None:
        return None
    rules = tuple(part.strip().upper() for part in (match["rules"] or "").split(",") if part.strip())
    reason = match["reason"].strip(" \t-:")
    column = comment.column
    return SuppressionComment(comment.line, column + match.start() + 1, column + len(comment.text) + 1, rules, reason)


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
