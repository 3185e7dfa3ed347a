"""Edits of whole statements that fixes for custom Functions have in common: a line before one, a decorator on one.

This module must not know rules, nor decide whether an edit is right.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.rules.base import Replacement
from analyzer.syntax import FunctionNode


def line_before(file: FileContext, statement: ast.stmt, line: str) -> Replacement | None:
    """`line`, then the statement; None where the statement can't be written again as it stands."""
    text = _text(file, statement)
    return Replacement(statement, f"{line}\n{text}") if text is not None else None


def line_after(file: FileContext, statement: ast.stmt, line: str) -> Replacement | None:
    """The statement, then `line`; None where the statement can't be written again as it stands."""
    text = _text(file, statement)
    return Replacement(statement, f"{text}\n{line}") if text is not None else None


def decorated(file: FileContext, function: FunctionNode, decorator: str) -> Replacement | None:
    """The function with one more decorator, the innermost; None where it can't be written again as it stands."""
    text = _text(file, function)
    return Replacement(function, f"@{decorator}\n{text}") if text is not None else None


def _text(file: FileContext, statement: ast.stmt) -> str | None:
    """The source of a statement as at the left margin.

    None when it shares its first line, or when a string runs over several lines: taking the indentation off would
    change the string. A docstring is the exception, because nothing depends on its indentation.
    """
    region = file.span(statement)
    indentation = file.line(region.start_line)[: region.start_column - 1]
    if indentation.strip():
        return None
    lines = file.source(statement).split("\n")
    if len(lines) == 1:
        return lines[0]
    docstring = statement.body[0] if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    for node in ast.walk(statement):
        is_text = isinstance(node, (ast.JoinedStr, ast.Constant)) and not isinstance(
            getattr(node, "value", ""), (int, float, complex, type(None), type(...))
        )
        spread = is_text and node.end_lineno != node.lineno  # type: ignore[attr-defined]
        if spread and not (isinstance(docstring, ast.Expr) and docstring.value is node):
            return None
    if any(line.strip() and not line.startswith(indentation) for line in lines[1:]):
        return None
    return "\n".join([lines[0], *(line.removeprefix(indentation) for line in lines[1:])])
