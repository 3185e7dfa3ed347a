"""From a code object to a syntax tree: the source where it can be had, what the bytecode says where it can't.

Parses the few lines of one function alone: `inspect.getsource` runs a tokenizer over them first, which costs more
than everything else that is done with the text.
"""

from __future__ import annotations

import ast
import linecache
import warnings
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from gradproof_probe.gradients.reading.bytecode import decompiled

LONGEST: Final = 3000  # lines of one function; generated tables have more and say nothing
_TAIL: Final = 4  # lines that closing brackets may add after the last instruction's own


@dataclass(frozen=True, slots=True)
class Body:
    """`added`: what to add to a node's line for the line in the file. `lines`: the text, by the nodes' own lines."""

    statements: tuple[ast.stmt, ...]
    lines: tuple[str, ...]
    added: int


_BODIES: weakref.WeakKeyDictionary[CodeType, Body] = weakref.WeakKeyDictionary()


def body_of(code: CodeType) -> Body:
    """The statements of a function. Never raises; empty if neither source nor bytecode can be read."""
    known = _BODIES.get(code)
    if known is None:
        known = _from_source(code) or Body(tuple(decompiled(code)), (), 0)
        _BODIES[code] = known
    return known


def text_of(body: Body, node: ast.AST) -> str:
    """The source of an expression on one line; long ones are cut."""
    line: int = getattr(node, "lineno", 0)
    text = ""
    if body.lines and 0 < line <= len(body.lines):
        encoded = body.lines[line - 1].encode()
        last: int = getattr(node, "end_lineno", None) or line
        end: int | None = getattr(node, "end_col_offset", None) if last == line else None
        text = encoded[getattr(node, "col_offset", 0) : end].decode(errors="replace")
    else:
        try:
            text = ast.unparse(node)
        except (ValueError, AttributeError, TypeError, RecursionError):
            text = ""
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "…"


def _from_source(code: CodeType) -> Body | None:
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno
    if not 0 < first <= len(lines):
        return None
    if code.co_name == "<lambda>":
        return _lambda(code, lines)
    last = min(_last_line(code, 0), first + LONGEST)
    for end in range(last, min(last + _TAIL, len(lines)) + 1):
        found = _definition(code, lines[first - 1 : end], first)
        if found is not None:
            return found
    return None


def _definition(code: CodeType, lines: list[str], first: int) -> Body | None:
    indented = lines[0][:1].isspace()
    tree = _parsed(("if 1:\n" if indented else "") + "".join(lines))
    if tree is None or not tree.body:
        return None
    top: Any = tree.body[0]
    node = top.body[0] if indented else top
    # The file may have changed since it was imported, and two modules made by `exec` may go by one name.
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != code.co_name:
        return None
    names = [item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    private = any(name.startswith("__") for name in names)
    if not private and tuple(names) != code.co_varnames[: len(names)]:
        return None
    statements = node.body[1:] if _is_text(node.body[0]) else node.body
    text = ("", *lines) if indented else tuple(lines)
    return Body(tuple(statements), text, first - 1 - indented)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _lambda(code: CodeType, lines: list[str]) -> Body | None:
    starts: list[tuple[int, int]] = []
    ends: list[tuple[int, int]] = []
    for line, end_line, column, end_column in code.co_positions():
        # The first instructions of a function have no width.
        if line and end_line and column is not None and end_column and (line, column) < (end_line, end_column):
            starts.append((line, column))
            ends.append((end_line, end_column))
    if not starts:
        return None
    (line, column), (end_line, end_column) = min(starts), max(ends)
    if end_line > len(lines):
        return None
    chosen = [item.encode() for item in lines[line - 1 : end_line]]
    chosen[-1] = chosen[-1][:end_column]
    chosen[0] = b" " * column + chosen[0][column:]
    text = [item.decode(errors="replace") for item in chosen]
    tree = _parsed("(\n" + "".join(text) + "\n)")
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return None
    value = tree.body[0].value
    return Body((ast.Return(value=value, lineno=2, col_offset=0),), ("(", *text), line - 2)


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string, `is` with a literal: said when it was imported
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _last_line(code: CodeType, depth: int) -> int:
    last = max((end for _, end, _, _ in code.co_positions() if end), default=code.co_firstlineno)
    if depth < 5:
        nested = [_last_line(item, depth + 1) for item in code.co_consts if isinstance(item, CodeType)]
        last = max([last, *nested])
    return last
