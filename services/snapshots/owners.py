"""Who looks after which files, as a repository's own `CODEOWNERS` says: GitHub's format, and GitLab's with sections.

The file is submitted text. What is kept of it is bounded, and so is what matching a path against it can cost: a line
that would be slow to match (`*a*a*a*…`) is passed over. This module must not know who is a member of what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.snapshots.patterns import Pattern, PatternError, parse_pattern

# Where forges look, the first that is there counts: GitHub's order, and GitLab's own place behind it.
PLACES: Final = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS", ".gitlab/CODEOWNERS")
MOST_BYTES: Final = 512_000
MOST_LINES: Final = 2_000  # kubernetes has 20, pytorch 200, home-assistant 1,500
_MOST_OWNERS: Final = 10
_LONGEST_PATTERN: Final = 120
# More than one star in a name, `?` and brackets are matched character by character, the others by comparing text.
# Twenty such lines against the deepest path that is looked up take 14 million steps at worst: two seconds.
_MOST_SLOW_LINES: Final = 20
_LONGEST_SLOW_NAME: Final = 32
_DEEPEST: Final = 20
_LONGEST_PATH: Final = 300

_SECTION: Final = re.compile(r"\^?\[([^\]]*)\](?:\[\d+\])?\s*(.*)")
_OWNER: Final = re.compile(r"@{1,2}[\w./-]{1,100}|[\w.+%-]{1,64}@[\w.-]{1,190}")
_SLOW: Final = re.compile(r"\*.*\*|[?\[\\]")


@dataclass(frozen=True, slots=True)
class OwnerLine:
    """One line: the files of `pattern` have these owners, or none. Lines of one `section` decide among themselves."""

    section: int
    pattern: str
    owners: tuple[str, ...]


class CodeOwners:
    """The lines of a file, and whom they name for a path."""

    def __init__(self, lines: Sequence[OwnerLine]) -> None:
        self._lines = [(line, pattern) for line in reversed(lines) if (pattern := _parsed(line.pattern)) is not None]

    def of(self, path: str) -> tuple[str, ...]:
        """The owners of a file, as they are written (`@name`, `@team/name`, an e-mail address): in each section, those
        of its last line that names the file or a directory around it. None for a path that is unusually deep or long.
        """
        if len(path) > _LONGEST_PATH or path.count("/") > _DEEPEST:
            return ()
        decided: dict[int, tuple[str, ...]] = {}
        for line, pattern in self._lines:
            if line.section not in decided and _covers(pattern, path, line.pattern):
                decided[line.section] = () if pattern.negated else line.owners
        return tuple(dict.fromkeys(owner for section in sorted(decided) for owner in decided[section]))


def owner_lines(tree: Mapping[str, bytes]) -> tuple[OwnerLine, ...]:
    """The lines of a tree's own file; none if it has no such file, or one that is too large to be meant."""
    for place in PLACES:
        if place in tree:
            data = tree[place]
            return tuple(_read(data.decode("utf-8", "replace"))) if len(data) <= MOST_BYTES else ()
    return ()


def _read(text: str) -> Iterator[OwnerLine]:
    section = kept = slow = 0
    default: tuple[str, ...] = ()
    for line in text.removeprefix("\ufeff").split("\n"):
        content = line.strip()
        heading = _SECTION.fullmatch(content)
        if heading is not None:
            section, default = section + 1, _owners(_words(heading[2])) or ()
            continue
        pattern, *words = _words(content) or [""]
        owners = _owners(words)
        if owners is None or not pattern or len(pattern) > _LONGEST_PATTERN or _parsed(pattern) is None:
            continue
        names = [name for name in pattern.split("/") if name != "**" and _SLOW.search(name)]
        slow += bool(names)
        kept += 1
        if kept > MOST_LINES:
            return
        if names and (slow > _MOST_SLOW_LINES or max(map(len, names)) > _LONGEST_SLOW_NAME):
            continue
        yield OwnerLine(section, pattern, owners or default)


def _words(text: str) -> list[str]:
    """The words of a line before its comment. A blank behind a backslash belongs to the word."""
    words: list[str] = []
    for word in re.findall(r"(?:\\.|[^\s\\])+", text):
        if word.startswith("#"):
            break
        words.append(word)
    return words


def _owners(words: Sequence[str]) -> tuple[str, ...] | None:
    """The owners that are named; None if a word is none: forges pass over such a line."""
    if not all(_OWNER.fullmatch(word) for word in words):
        return None
    return tuple(words[:_MOST_OWNERS])


def _parsed(text: str) -> Pattern | None:
    try:
        return parse_pattern(text)
    except PatternError:
        return None


def _covers(pattern: Pattern, path: str, text: str) -> bool:
    """Whether a pattern names the file or, unless it ends in a star of its own, a directory around it.

    There the format departs from `.gitignore`: `docs/*` are the files of `docs`, not those further below.
    """
    if pattern.matches(path, is_directory=False):
        return True
    if text.endswith("/*"):
        return False
    names = path.split("/")[:-1]
    return any(pattern.matches("/".join(names[:depth]), is_directory=True) for depth in range(len(names), 0, -1))
