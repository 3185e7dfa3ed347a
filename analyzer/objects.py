"""Which call made the object that a name or `self.attribute` stands for: an optimizer, a layer, a scaler.

Looks in the function, then in the functions and the module around it, and for attributes at all assignments in the
class. Only what is made in one way is told. This module must not know torch or rules.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, parameters

_SelfTable = dict[str, list[ast.expr | None]]


def self_assignments(file: FileContext, owner: ast.ClassDef) -> _SelfTable:
    """Attribute → every value assigned to `self.attribute` in a class; None for one that is not plainly assigned."""
    tables = file.once(_self_tables)
    known = tables.get(owner)
    if known is not None:
        return known
    table: _SelfTable = {}
    for assignment in file.nodes_in(owner, ast.Assign):
        for target in assignment.targets:
            _note(table, target, assignment.value)
    for annotated in file.nodes_in(owner, ast.AnnAssign):
        if annotated.value is not None:
            _note(table, annotated.target, annotated.value)
    for augmented in file.nodes_in(owner, ast.AugAssign):
        _note(table, augmented.target, None)
    tables[owner] = table
    return table


def _note(table: _SelfTable, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            _note(table, element, None)
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        table.setdefault(target.attr, []).append(value)


def maker(file: FileContext, expression: ast.expr) -> ast.Call | None:
    """The call that made what the expression stands for; None when the file does not tell, or tells two."""
    if isinstance(expression, ast.Call):
        return expression
    values = _values(file, expression)
    calls = [value for value in values if isinstance(value, ast.Call)]
    if not calls or len(calls) != len(values):
        return None
    names = {file.qualified_name(call.func) for call in calls}
    return calls[0] if len(calls) == 1 or (len(names) == 1 and None not in names) else None


def made_by(file: FileContext, expression: ast.expr) -> str | None:
    """The full name of the class or function that made it: `torch.optim.Adam`."""
    call = maker(file, expression)
    return file.qualified_name(call.func) if call is not None else None


def _values(file: FileContext, expression: ast.expr) -> list[ast.expr | None]:
    if isinstance(expression, ast.Attribute):
        owner = file.enclosing_class(expression)
        if owner is None or not (isinstance(expression.value, ast.Name) and expression.value.id == "self"):
            return []
        return self_assignments(file, owner).get(expression.attr, [])
    if not isinstance(expression, ast.Name):
        return []
    inner = file.values.definitions(expression)
    if inner:
        plain = [b.value if b.element is None and b.operator is None and b.index is None else None for b in inner]
        return list(plain)
    return _outer_values(file, expression)


def _outer_values(file: FileContext, name: ast.Name) -> list[ast.expr | None]:
    """The values of a name that its own function does not assign: from the functions around it, then the module."""
    scopes = [outer for outer in file.definitions_around(name) if not isinstance(outer, ast.ClassDef)]
    for scope in scopes:
        if any(parameter.arg == name.id for parameter in parameters(scope)):
            return []
    for around in (*scopes[1:], file.tree):
        bindings = file.values.bindings(around).all(name.id)
        if bindings:
            return [b.value if b.element is None and b.operator is None and b.index is None else None for b in bindings]
    return []


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """The value of a keyword argument under any of its names."""
    return next((item.value for item in call.keywords if item.arg in names), None)


def argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    """An argument by position or by keyword; None where it is not written out."""
    given = call.args[: position + 1]
    if any(isinstance(item, ast.Starred) for item in given):
        return None
    return call.args[position] if position < len(call.args) else keyword(call, *names)


def is_true(expression: ast.expr | None) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is True


def is_false(expression: ast.expr | None) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is False


def is_defined_in(file: FileContext, node: ast.AST, scope: FunctionNode | ast.Module) -> bool:
    """Whether a node stands inside a scope."""
    return isinstance(scope, ast.Module) or scope in file.ancestors(node)


def _self_tables(_file: FileContext) -> dict[ast.ClassDef, _SelfTable]:
    return {}
