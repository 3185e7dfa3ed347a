"""Where each key of a TOML document stands.

`tomllib` gives values without places. This scanner gives places without values: it follows the grammar just far enough
to know which line each key, table and array element begins on, and relies on `tomllib` having accepted the document.
Keys below `MAX_DEPTH` levels are passed over: the document is untrusted, and nothing that can be configured lies there.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

MAX_DEPTH: Final = 20

Key = str | int
Positions = dict[tuple[Key, ...], int]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\r\n]+")


def key_positions(text: str) -> Positions:
    """The 1-based line on which each key begins, by its path; elements of arrays have their index in the path.

    `text` is a document that `tomllib.loads` accepts. A table's place is that of its first header or key.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._positions: Positions = {}
        self._array_lengths: dict[tuple[Key, ...], int] = {}

    def scan(self) -> Positions:
        table: tuple[Key, ...] = ()
        self._take(_BLANK)
        while self._at < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._key_and_value(table)
            self._take(_BLANK)
        return self._positions

    def _header(self) -> tuple[Key, ...]:
        """A `[table]` or `[[array of tables]]` header; gives the path that the keys below it belong to."""
        line = self._line
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        *outer, last = self._dotted_key()
        self._at += 2 if is_array else 1
        path: tuple[Key, ...] = ()
        for key in outer:
            path = self._latest(self._child(path, key, line))
        path = self._child(path, last, line)
        if not is_array:
            return self._latest(path)
        index = self._array_lengths.get(path, 0)
        self._array_lengths[path] = index + 1
        return self._child(path, index, line)

    def _latest(self, path: tuple[Key, ...]) -> tuple[Key, ...]:
        """The path of a table; of the last element where the path is an array of tables."""
        length = self._array_lengths.get(path)
        return path if length is None else (*path, length - 1)

    def _child(self, path: tuple[Key, ...], key: Key, line: int) -> tuple[Key, ...]:
        """The path of a key in what is at `path`; its place is where it is seen first."""
        if len(path) == MAX_DEPTH:
            return path
        path = (*path, key)
        self._positions.setdefault(path, line)
        return path

    def _key_and_value(self, table: tuple[Key, ...]) -> None:
        line = self._line
        path = table
        for key in self._dotted_key():
            path = self._child(path, key, line)
        self._at += 1  # the equals sign
        self._take(_SPACE)
        self._value(path)

    def _dotted_key(self) -> list[str]:
        """The parts of a key, with the space around them taken."""
        parts = []
        while True:
            self._take(_SPACE)
            parts.append(self._take(_BARE_KEY) or _unquoted(self._string()))
            self._take(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: tuple[Key, ...]) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        elif opening in "\"'":
            self._string()
        else:
            self._take(_SCALAR)

    def _string(self) -> str:
        """A string of any of the four kinds, as written."""
        quote = self._text[self._at]
        is_long = self._text.startswith(quote * 3, self._at)
        closing = quote * 3 if is_long else quote
        end = self._at + len(closing)
        while not self._text.startswith(closing, end):
            end += 2 if quote == '"' and self._text[end] == "\\" else 1
        end += len(closing)
        # Up to two quotes may stand right before the closing ones.
        while is_long and self._text.startswith(quote, end):
            end += 1
        string = self._text[self._at : end]
        self._at = end
        self._line += string.count("\n")
        return string

    def _array(self, path: tuple[Key, ...]) -> None:
        self._at += 1
        index = 0
        while not self._closes("]"):
            self._value(self._child(path, index, self._line))
            index += 1
            self._comma()

    def _inline_table(self, path: tuple[Key, ...]) -> None:
        self._at += 1
        while not self._closes("}"):
            self._key_and_value(path)
            self._comma()

    def _closes(self, bracket: str) -> bool:
        self._take(_BLANK)
        if not self._text.startswith(bracket, self._at):
            return False
        self._at += 1
        return True

    def _comma(self) -> None:
        self._take(_BLANK)
        if self._text.startswith(",", self._at):
            self._at += 1

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        taken = match[0] if match else ""
        self._at += len(taken)
        self._line += taken.count("\n")
        return taken


def _unquoted(string: str) -> str:
    """The value of a string as written, on one line."""
    if "\\" not in string or string.startswith("'"):
        return string[1:-1]
    value: str = tomllib.loads(f"key = {string}")["key"]
    return value
