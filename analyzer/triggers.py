"""Decides quickly which rules could have something to say about a file, by the words that stand in it.

A hundred rules name some four hundred triggers, and looking for each of them in the text of each file costs as much as
parsing it. Files share most of their identifiers: which triggers an identifier holds is worked out once and remembered,
and only a trigger whose own words are among the identifiers is looked for in the text. This module must not know
single rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache, cached_property
from operator import attrgetter

from analyzer.syntax import SyntaxIndex

_PIECE = re.compile(r"\w+")
_SHORTEST_PIECE = 3
# Longer strings, and those with blanks, are prose: a name that a rule looks for stands in a short one.
_LONGEST_STRING = 60
# 6,292 files of ten packages have 90,000 different identifiers; more than this many are not remembered at a time.
_REMEMBERED = 200_000


class Words:
    """The words of one file."""

    def __init__(self, text: str, index: SyntaxIndex) -> None:
        self.text = text
        self._index = index

    @cached_property
    def identifiers(self) -> set[str]:
        """The names, and the short strings, of the code."""
        return _identifiers(self._index)

    def any_of(self, triggers: tuple[str, ...]) -> bool:
        """Whether one of the triggers stands in the code (not only in comments or long strings)."""
        return any(self._holds(trigger) for trigger in triggers)

    def _holds(self, trigger: str) -> bool:
        piece = _longest_piece(trigger)
        if piece and not any(piece in identifier for identifier in self.identifiers):
            return False
        return piece == trigger or trigger in self.text


class Triggers:
    """Groups of triggers, told which of them a file meets. An empty group is met by every file."""

    def __init__(self, groups: Sequence[tuple[str, ...]]) -> None:
        self._always = [number for number, group in enumerate(groups) if not group]
        self._groups: dict[str, list[int]] = {}
        for number, group in enumerate(groups):
            for trigger in group:
                self._groups.setdefault(trigger, []).append(number)
        self._of_piece: dict[str, list[str]] = {}
        for trigger in self._groups:
            self._of_piece.setdefault(_longest_piece(trigger), []).append(trigger)
        self._by_start: dict[str, list[str]] = {}
        for piece in self._of_piece:
            if piece:
                self._by_start.setdefault(piece[:_SHORTEST_PIECE], []).append(piece)
        self._known: dict[str, tuple[str, ...]] = {}

    def met(self, words: Words) -> list[int]:
        """The numbers of the groups of which at least one trigger stands in the code, in order."""
        found = set(self._always)
        text = words.text
        for piece in self._pieces(words.identifiers):
            for trigger in self._of_piece.get(piece, ()):
                groups = self._groups[trigger]
                if not found.issuperset(groups) and (piece == trigger or trigger in text):
                    found.update(groups)
        return sorted(found)

    def _pieces(self, identifiers: set[str]) -> set[str]:
        """The pieces of triggers that stand in identifiers; "" is in every file."""
        known = self._known
        if len(known) > _REMEMBERED:
            known.clear()
        found = {""}
        for identifier in identifiers:
            pieces = known.get(identifier)
            if pieces is None:
                pieces = known[identifier] = self._pieces_in(identifier)
            if pieces:
                found.update(pieces)
        return found

    def _pieces_in(self, identifier: str) -> tuple[str, ...]:
        return tuple(
            piece
            for start in range(len(identifier) - _SHORTEST_PIECE + 1)
            for piece in self._by_start.get(identifier[start : start + _SHORTEST_PIECE], ())
            if identifier.startswith(piece, start)
        )


@cache
def _longest_piece(trigger: str) -> str:
    """The longest identifier-like part of a trigger; "" when it has none that tells anything (`**`, `e-`)."""
    pieces = [p for p in _PIECE.findall(trigger) if len(p) >= _SHORTEST_PIECE and not p[0].isdigit()]
    keywords = {"is", "in", "not", "None", "True", "False", "and", "or", "if", "for"}
    return max((piece for piece in pieces if piece not in keywords), key=len, default="")


def _identifiers(index: SyntaxIndex) -> set[str]:
    found: set[str] = set(map(attrgetter("id"), index.nodes(ast.Name)))
    found.update(map(attrgetter("attr"), index.nodes(ast.Attribute)))
    found.update(map(attrgetter("arg"), index.nodes(ast.arg)))
    found.update(map(attrgetter("name"), index.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)))
    found.update(keyword.arg for keyword in index.nodes(ast.keyword) if keyword.arg)
    found.update(source.module for source in index.nodes(ast.ImportFrom) if source.module)
    for alias in index.nodes(ast.alias):
        found.add(alias.name)
        if alias.asname:
            found.add(alias.asname)
    for constant in index.nodes(ast.Constant):
        value = constant.value
        if type(value) is str and len(value) < _LONGEST_STRING and " " not in value:
            found.add(value)
    return found
