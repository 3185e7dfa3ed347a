"""Names for findings that survive everything but a change of the flagged code itself.

Built from rule id, path, enclosing definition, the normalised source of the flagged node and its ordinal among equal
ones: never from lines, messages or versions. This module must not know rules.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter

# Long enough that two of a million findings collide with probability 1e-27; short enough to read in a report.
_HEX_DIGITS = 40
_DEFINITION_KINDS = {ast.ClassDef: "class", ast.FunctionDef: "def", ast.AsyncFunctionDef: "def"}


def normalised_source(node: ast.AST, text: str) -> str:
    """The node's source without formatting: comments, white space, quotes and redundant parentheses are gone.

    Of a class or function only the header's name is kept, so that a finding about it survives edits of its body.
    """
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return f"{_DEFINITION_KINDS[type(node)]} {node.name}"
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        segment = ast.get_source_segment(text, node) or type(node).__name__
        return "".join(segment.split())


class Fingerprinter:
    """Hands out the fingerprints of one file. Ask in the order of the places, so that ordinals are stable."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def fingerprint(self, rule: str, symbol: str, source: str) -> str:
        """A hexadecimal name; two equal sources in one symbol get different ones."""
        key = (rule, symbol, source)
        ordinal = self._seen[key]
        self._seen[key] += 1
        material = "\0".join((rule, self._path, symbol, source, str(ordinal)))
        return hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:_HEX_DIGITS]
