"""Source trees of the submitted code, parsed once a process: which function a code object is, which class a class is.

Reads files only; imports and runs nothing. What can't be read or parsed has no tree, and nothing is said about it.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from functools import lru_cache
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

LARGEST_FILE: Final = 2_000_000  # characters; generated tables of more have no constructor worth reading
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@lru_cache(maxsize=512)
def tree_of(path: str) -> ast.Module | None:
    text = "".join(linecache.getlines(path))
    if not text or len(text) > LARGEST_FILE:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=1024)
def function_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition that a code object was made of: same name, same first line (a decorator's, if it has one)."""
    tree = tree_of(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def function_node(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition of a Python function or method, through its decorators' `__wrapped__`."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except Exception:  # a stand-in for a missing module raises when it is touched
        return None
    return function_of(code) if isinstance(code, CodeType) else None


@lru_cache(maxsize=1024)
def _calls_at(code: CodeType, instruction: int) -> ast.Call | None:
    position = next((p for i, p in enumerate(code.co_positions()) if i == instruction // 2), None)
    tree = tree_of(code.co_filename)
    if position is None or tree is None or None in position:
        return None
    line, end_line, column, end_column = position
    for node in ast.walk(tree):
        # Positions of code and of trees both count UTF-8 bytes.
        if isinstance(node, ast.Call) and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == (
            line,
            end_line,
            column,
            end_column,
        ):
            return node
    return None


def raised_at(error: BaseException) -> TracebackType | None:
    """The innermost frame of an error, where it was raised; None for one that was never raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def call_at(frame: FrameType, instruction: int) -> ast.Call | None:
    """The call that a frame is in at this instruction (`tb_lasti`)."""
    return _calls_at(frame.f_code, instruction)
