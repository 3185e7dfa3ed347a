"""Patterns in `.gitignore`'s syntax, matched by git's rules against one path at a time.

Own code rather than regular expressions, for two reasons. Patterns also come in the configuration of submitted code,
and `*a*a*a*…` as a regular expression keeps a process busy for ever, where matching star by star takes at most the
product of the lengths. And libraries let `dir/` match what lies below `dir`, which is wrong for `!dir/` in a file
further down: whoever walks a tree must ask about each path alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_Token = str | Callable[[str], bool]  # "*", or a test of one character
_ANY_DEPTH: Final = "**"
_SPECIAL: Final = frozenset("*?[\\")

_POSIX_CLASSES: Final[dict[str, Callable[[str], bool]]] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "blank": lambda character: character in " \t",
    "cntrl": lambda character: ord(character) < 32 or ord(character) == 127,
    "digit": lambda character: "0" <= character <= "9",
    "graph": lambda character: character.isprintable() and character != " ",
    "lower": str.islower,
    "print": str.isprintable,
    "punct": lambda character: character.isprintable() and not character.isalnum() and character != " ",
    "space": str.isspace,
    "upper": str.isupper,
    "xdigit": lambda character: character in "0123456789abcdefABCDEF",
}


class PatternError(ValueError):
    """A pattern that can match nothing: empty, or with a bracket or an escape that does not end."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of an ignore file. `negated`: it takes paths back in."""

    negated: bool
    directories_only: bool
    parts: tuple[_Part, ...]

    def matches(self, path: str, *, is_directory: bool) -> bool:
        """Whether the pattern names this very path, relative to where it was written; not one above it."""
        if self.directories_only and not is_directory:
            return False
        names = path.split("/")
        if len(self.parts) == 2 and self.parts[0].any_depth and not self.parts[1].any_depth:
            return self.parts[1].matches(names[-1])  # the most frequent form, `*.log`
        return _match_parts(self.parts, names)


@dataclass(frozen=True, slots=True)
class _Part:
    """A pattern for one name. A text without wildcards, or around one star, is compared directly."""

    any_depth: bool
    prefix: str
    suffix: str | None
    tokens: tuple[_Token, ...] | None

    def matches(self, name: str) -> bool:
        if self.tokens is not None:
            return _match_name(self.tokens, name)
        if self.suffix is None:
            return name == self.prefix
        shortest = len(self.prefix) + len(self.suffix)
        return len(name) >= shortest and name.startswith(self.prefix) and name.endswith(self.suffix)


def parse_pattern(line: str) -> Pattern | None:
    """The pattern on one line, None for a blank line or a comment. Raises `PatternError`."""
    text = line.rstrip("\r\n")
    while text.endswith(" ") and not _escapes_next(text[:-1]):
        text = text[:-1]
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text.removeprefix("!")
    directories_only = text.endswith("/")
    text = text.removesuffix("/")
    anchored = "/" in text
    names = text.removeprefix("/").split("/")
    if not any(names):
        raise PatternError("the pattern is empty")
    # Without a slash, a name counts at any depth.
    parts = tuple(_part(name) for name in (names if anchored else [_ANY_DEPTH, *names]))
    return Pattern(negated, directories_only, parts)


def parse_patterns(lines: Iterable[str]) -> tuple[Pattern, ...]:
    """The patterns of an ignore file; lines that can match nothing are passed over, as git does."""
    patterns = []
    for line in lines:
        try:
            pattern = parse_pattern(line)
        except PatternError:
            continue
        if pattern is not None:
            patterns.append(pattern)
    return tuple(patterns)


class Coverage:
    """Which files patterns cover: those they name, and those below a directory that they name."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._directories: dict[str, bool] = {"": False}

    def covers(self, path: str) -> bool:
        """Whether the file at this relative path is covered."""
        return self._covers_directory(path.rpartition("/")[0]) or self._named(path, is_directory=False)

    def _covers_directory(self, path: str) -> bool:
        above = path
        missing = []
        while above not in self._directories:
            missing.append(above)
            above = above.rpartition("/")[0]
        covered = self._directories[above]
        for directory in reversed(missing):
            covered = covered or self._named(directory, is_directory=True)
            self._directories[directory] = covered
        return covered

    def _named(self, path: str, *, is_directory: bool) -> bool:
        return any(pattern.matches(path, is_directory=is_directory) for pattern in self._patterns)


def _match_parts(parts: Sequence[_Part], names: Sequence[str]) -> bool:
    """Match names one by one; `**` takes any number of them, at least one when it comes last."""
    part = name = 0
    retry: tuple[int, int] | None = None  # where to go on with one name more for the last `**`
    while name < len(names):
        if part < len(parts) and parts[part].any_depth:
            if part == len(parts) - 1:
                return True
            retry = (part + 1, name + 1)
            part += 1
        elif part < len(parts) and parts[part].matches(names[name]):
            part += 1
            name += 1
        elif retry is not None:
            part, name = retry
            retry = (part, name + 1)
        else:
            return False
    return part == len(parts)


def _match_name(tokens: Sequence[_Token], name: str) -> bool:
    """Match characters one by one; only the last star needs to be tried again."""
    token = place = 0
    retry: tuple[int, int] | None = None
    while place < len(name):
        current = tokens[token] if token < len(tokens) else None
        if current == "*":
            token += 1
            retry = (token, place + 1)
        elif current is not None and not isinstance(current, str) and current(name[place]):
            token += 1
            place += 1
        elif retry is not None:
            token, place = retry
            retry = (token, place + 1)
        else:
            return False
    return all(rest == "*" for rest in tokens[token:])


def _part(text: str) -> _Part:
    if text == _ANY_DEPTH:
        return _Part(any_depth=True, prefix="", suffix="", tokens=None)
    if not _SPECIAL & set(text):
        return _Part(any_depth=False, prefix=text, suffix=None, tokens=None)
    prefix, star, suffix = text.partition("*")
    if star and not _SPECIAL & set(prefix + suffix):
        return _Part(any_depth=False, prefix=prefix, suffix=suffix, tokens=None)
    return _Part(any_depth=False, prefix="", suffix=None, tokens=tuple(_tokens(text)))


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character == "*":
            if tokens[-1:] != ["*"]:
                tokens.append("*")
        elif character == "?":
            tokens.append(lambda _: True)
        elif character == "[":
            test, place = _bracket(text, place)
            tokens.append(test)
        else:
            if character == "\\":
                if place == len(text):
                    raise PatternError("the pattern ends in a backslash")
                character = text[place]
                place += 1
            tokens.append(character.__eq__)
    return tokens


def _bracket(text: str, place: int) -> tuple[Callable[[str], bool], int]:
    """A test for the characters of `[…]`, whose inside begins at `place`, and the place behind it."""
    negated = text[place : place + 1] in {"!", "^"}
    place += negated
    first = place
    ranges: list[tuple[str, str]] = []
    classes: list[Callable[[str], bool]] = []
    while place == first or text[place : place + 1] != "]":
        named = text.startswith("[:", place)
        end = text.find(":]", place) if named else -1
        if end >= 0:
            known = _POSIX_CLASSES.get(text[place + 2 : end])
            if known is None:
                raise PatternError("the pattern names an unknown class of characters")
            classes.append(known)
            place = end + 2
            continue
        low, place = _bracket_character(text, place)
        high = low
        if text[place : place + 1] == "-" and text[place + 1 : place + 2] not in {"", "]"}:
            high, place = _bracket_character(text, place + 1)
        ranges.append((low, high))

    def test(character: str) -> bool:
        inside = any(low <= character <= high for low, high in ranges) or any(known(character) for known in classes)
        return inside != negated

    return test, place + 1


def _bracket_character(text: str, place: int) -> tuple[str, int]:
    if text[place : place + 1] == "\\":
        place += 1
    if place >= len(text):
        raise PatternError("the pattern has a bracket that does not end")
    return text[place], place + 1


def _escapes_next(text: str) -> bool:
    """Whether the text ends in a backslash that is not itself escaped."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
