"""Decides quickly which rules could have something to say about a file, by the words that stand in it.

A hundred rules name some three hundred triggers, and looking each of them up in the whole text costs as much as
parsing it. The identifiers of a file, each written once, are a third of its text; only a trigger whose own words are
among them is looked for in the text itself. This module must not know single rules.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from analyzer.syntax import SyntaxIndex

_PIECE = re.compile(r"\w+")
# Longer strings, and those with blanks, are prose: a name that a rule looks for stands in a short one.
_LONGEST_STRING = 60


class Words:
    """The words of one file."""

    def __init__(self, text: str, index: SyntaxIndex) -> None:
        self._text = text
        self._index = index
        self._words: str | None = None
        self._present: dict[str, bool] = {}

    def any_of(self, triggers: tuple[str, ...]) -> bool:
        """Whether one of the triggers stands in the code (not only in comments or long strings)."""
        present = self._present
        for trigger in triggers:
            known = present.get(trigger)
            if known is None:
                known = present[trigger] = self._look_up(trigger)
            if known:
                return True
        return False

    def _look_up(self, trigger: str) -> bool:
        piece = _longest_piece(trigger)
        if piece:
            if self._words is None:
                self._words = "\n".join(_identifiers(self._index))
            if piece not in self._words:
                return False
        return piece == trigger or trigger in self._text


@cache
def _longest_piece(trigger: str) -> str:
    """The longest identifier-like part of a trigger; "" when it has none that tells anything (`**`, `e-`)."""
    pieces = [piece for piece in _PIECE.findall(trigger) if len(piece) > 2 and not piece[0].isdigit()]
    keywords = {"is", "in", "not", "None", "True", "False", "and", "or", "if", "for"}
    return max((piece for piece in pieces if piece not in keywords), key=len, default="")


def _identifiers(index: SyntaxIndex) -> set[str]:
    found: set[str] = {name.id for name in index.nodes(ast.Name)}
    found.update(attribute.attr for attribute in index.nodes(ast.Attribute))
    found.update(argument.arg for argument in index.nodes(ast.arg))
    found.update(keyword.arg for keyword in index.nodes(ast.keyword) if keyword.arg)
    found.update(alias.name for alias in index.nodes(ast.alias))
    found.update(alias.asname for alias in index.nodes(ast.alias) if alias.asname)
    found.update(source.module for source in index.nodes(ast.ImportFrom) if source.module)
    found.update(function.name for function in index.nodes(ast.FunctionDef))
    found.update(function.name for function in index.nodes(ast.AsyncFunctionDef))
    found.update(definition.name for definition in index.nodes(ast.ClassDef))
    for constant in index.nodes(ast.Constant):
        value = constant.value
        if isinstance(value, str) and len(value) < _LONGEST_STRING and " " not in value:
            found.add(value)
    return found
