"""Which names a function can see: its own, those of the functions around it, those of the module.

Where names may come from elsewhere (`from … import *`, `exec`, `globals()`), the answer is open. This module must not
know rules.
"""

from __future__ import annotations

import ast
from functools import cached_property

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, dotted_name, parameters

_IMPLICIT = frozenset(
    {"__file__", "__name__", "__doc__", "__class__", "__path__", "__spec__", "__package__", "__loader__"}
)
_NAMESPACES = frozenset({"exec", "globals", "vars", "locals"})


class VisibleNames:
    """The names bound in the scopes of one file, each scope read once."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._by_scope: dict[ast.AST, frozenset[str]] = {}

    @cached_property
    def open_ended(self) -> bool:
        """Whether a name may exist without being bound in plain sight."""
        starred = any(alias.name == "*" for item in self._file.nodes(ast.ImportFrom) for alias in item.names)
        return starred or any(dotted_name(call.func) in _NAMESPACES for call in self._file.calls(*_NAMESPACES))

    def bound_in(self, function: FunctionNode) -> frozenset[str]:
        """Every name that a function binds anywhere inside, functions inside it included."""
        known = self._by_scope.get(function)
        if known is None:
            found = _bound_below(function)
            arguments = [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)]
            known = self._by_scope[function] = frozenset(found | set(arguments))
        return known

    def bound_around(self, function: FunctionNode) -> frozenset[str]:
        """The names of the module and of the functions around one; those of a class are not visible inside it."""
        found = self._module | _IMPLICIT
        for outer in self._file.ancestors(function):
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found |= {argument.arg for argument in parameters(outer)} | _bound_at_level(outer.body)
        return found

    @cached_property
    def _module(self) -> frozenset[str]:
        found = set(self._file.imports)
        for statement in self._file.nodes(ast.Global):
            found.update(statement.names)
        return frozenset(found | _bound_at_level(self._file.tree.body))


def _bound_at_level(body: list[ast.stmt]) -> set[str]:
    """What the statements of one scope bind, without those of functions and classes inside it."""
    found: set[str] = set()
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
            continue
        found.update(_bound_by(node))
        if not isinstance(node, ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))
    return found


def _bound_below(function: FunctionNode) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        found.update(_bound_by(node))
    return found


def _bound_by(node: ast.AST) -> set[str]:
    """The names that one node binds, definitions apart."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return {name}
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return {name}
        case ast.MatchMapping(rest=str(name)):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
    return set()
