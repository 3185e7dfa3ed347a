"""Puts a watcher into one place of the submitted code: a copy of its functions in memory, line numbers kept.

The file is parsed, the expression or statement at the place is wrapped in calls of the watcher, the whole is compiled,
and the code of every live function of that file is exchanged for its counterpart while the watcher is in. Nothing is
written to disk, and every function has its own code again afterwards. This module must not know what is watched for.
"""

from __future__ import annotations

import ast
import gc
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gradproof_probe.suspicions.suspect import Suspect

# `watch(role, value)` is called with, and its return value taken for:
#   "result"  the value of the expression at the place,
#   "part"    the value of each expression inside it,
#   "callee"  each function that is called inside it,
#   "before", "after"  the local names around the statement (what is returned is dropped),
#   "operand" the variable that a statement is about to write to, where `rebind` names one.
Watch = Callable[[str, Any], Any]
_HOOK: Final = "__gradproof_watch__"


class NotInstrumentableError(Exception):
    """The place can't be found in the source as it was imported, or no function of it is alive."""


@contextmanager
def watching(source_root: Path, suspect: Suspect, watch: Watch, *, rebind: str = "") -> Iterator[None]:
    """Raises `NotInstrumentableError` before anything has been exchanged."""
    file = source_root / suspect.path
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError) as error:
        raise NotInstrumentableError(f"{suspect.path} can't be read again: {error}") from error
    statement, expression = _find(tree, text, suspect)
    if statement is None:
        raise NotInstrumentableError(f"no statement stands at line {suspect.line}")
    _Exchange(statement, expression, rebind).visit(tree)
    ast.fix_missing_locations(tree)
    functions = _functions_of(file)
    try:
        made = _codes(compile(tree, next(iter(functions)).__code__.co_filename if functions else str(file), "exec"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NotInstrumentableError(f"line {suspect.line} can't be watched: {error}") from error
    swapped: list[tuple[types.FunctionType, types.CodeType]] = []
    try:
        for function in functions:
            code = made.get(_key(function.__code__))
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                function.__globals__[_HOOK] = watch
                swapped.append((function, function.__code__))
                function.__code__ = code
        if not swapped:
            raise NotInstrumentableError(f"no function of {suspect.path} is alive")
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code
            function.__globals__.pop(_HOOK, None)


def _find(tree: ast.Module, text: str, suspect: Suspect) -> tuple[ast.stmt | None, ast.expr | None]:
    """The innermost statement around the place, and the expression that is exactly the place, if there is one."""
    lines = text.splitlines()
    statement: ast.stmt | None = None
    expression: ast.expr | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= suspect.line <= (node.end_lineno or node.lineno):
            if statement is None or _span(node) <= _span(statement):
                statement = node
        elif isinstance(node, ast.expr) and node.lineno == suspect.line and node.end_lineno == suspect.end_line:
            begin, end = _column(lines, node.lineno, node.col_offset), _column(
                lines, node.end_lineno, node.end_col_offset or 0
            )  # fmt: skip
            if (begin, end) == suspect.columns:
                expression = node
    if expression is None and statement is not None:
        value = getattr(statement, "value", None)
        expression = value if isinstance(value, ast.expr) else None
    return statement, expression


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno


def _column(lines: list[str], line: int, offset: int) -> int:
    """Python counts bytes of UTF-8 from 0, findings count characters from 1."""
    encoded = lines[line - 1].encode()[:offset] if line <= len(lines) else b""
    return len(encoded.decode(errors="replace")) + 1


class _Exchange(ast.NodeTransformer):
    def __init__(self, statement: ast.stmt, expression: ast.expr | None, rebind: str) -> None:
        self._statement = statement
        self._expression = expression
        self._rebind = rebind

    def visit(self, node: ast.AST) -> Any:
        if node is self._expression:
            wrapped = _Parts().visit(node)
            # What `visit` gives back is the outermost part already: its role is another.
            inner = wrapped.args[1] if _is_hook(wrapped) else wrapped
            result: Any = _call("result", inner, node)
        else:
            result = super().visit(node)
        if node is self._statement:
            return self._around(result)
        return result

    def _around(self, statement: ast.stmt) -> list[ast.stmt]:
        def note(role: str) -> ast.stmt:
            names = ast.copy_location(ast.Call(ast.Name("locals", ast.Load()), [], []), statement)
            return ast.copy_location(ast.Expr(_call(role, names, statement)), statement)

        before = [note("before")]
        if self._rebind:
            value = _call("operand", ast.Name(self._rebind, ast.Load()), statement)
            target = ast.Name(self._rebind, ast.Store())
            before.append(ast.copy_location(ast.Assign([target], value), statement))
        ends = isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue)
        return [*before, statement, *([] if ends else [note("after")])]


class _Parts(ast.NodeTransformer):
    """Every value inside an expression goes by the watcher; what is stored to, and what runs later, doesn't."""

    def visit_Name(self, node: ast.Name) -> Any:
        return _call("part", node, node) if isinstance(node.ctx, ast.Load) and node.id != "super" else node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.value = self.visit(node.value)
        return _call("part", node, node) if isinstance(node.ctx, ast.Load) else node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        return _call("part", node, node) if isinstance(node.ctx, ast.Load) else node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return _call("part", node, node)

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute):
            function.value = self.visit(function.value)
            node.func = _call("callee", function, function)
        elif not (isinstance(function, ast.Name) and function.id == "super"):
            node.func = _call("callee", self._inner(function), function)
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return _call("part", node, node)

    def visit_Starred(self, node: ast.Starred) -> Any:
        node.value = self.visit(node.value)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        node.value = self.visit(node.value)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return node

    def _inner(self, node: ast.expr) -> ast.expr:
        return node if isinstance(node, ast.Name) else self.visit(node)


def _call(role: str, value: ast.expr, at: ast.AST) -> ast.Call:
    call = ast.Call(ast.Name(_HOOK, ast.Load()), [ast.Constant(role), value], [])
    for node in (call, call.func, call.args[0]):
        ast.copy_location(node, at)
    return call


def _is_hook(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == _HOOK


def _functions_of(file: Path) -> list[types.FunctionType]:
    """The live functions of a file. Two files of one name are told apart; one file under two names is one."""
    name, wanted = file.name, os.path.realpath(file)
    found = []
    gc.unfreeze()  # what was there before this process was forked is not listed otherwise
    for item in gc.get_objects():
        if type(item) is types.FunctionType:
            filename = item.__code__.co_filename
            if filename.endswith(name) and os.path.realpath(filename) == wanted:
                found.append(item)
    return found


def _key(code: types.CodeType) -> tuple[Any, ...]:
    return code.co_name, code.co_firstlineno, code.co_argcount, code.co_kwonlyargcount


def _codes(code: types.CodeType) -> dict[tuple[Any, ...], types.CodeType]:
    """Every function's code below this one. Two lambdas that can't be told apart are left out."""
    found: dict[tuple[Any, ...], types.CodeType] = {}
    twice: set[tuple[Any, ...]] = set()
    waiting = [code]
    while waiting:
        current = waiting.pop()
        for constant in current.co_consts:
            if isinstance(constant, types.CodeType):
                waiting.append(constant)
                key = _key(constant)
                twice |= {key} & found.keys()
                found[key] = constant
    return {key: value for key, value in found.items() if key not in twice}
