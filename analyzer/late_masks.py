"""What a value is computed from, and which tensors a condition keeps away from a bound.

For rules about results that are masked after an operation which should not have seen the masked places. This module
must not decide whether anything is a finding.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from analyzer.context import FileContext
from analyzer.singularities import Form, Singular
from analyzer.syntax import terminal_name
from analyzer.values.guards import value_names

_CONDITION_CALLS = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "isclose", "isfinite", "isnan", "isinf"})
# No gradient comes back through these, so that a singular operation behind them is nobody's loss.
_CUTS = frozenset(
    {"detach", "item", "tolist", "numpy", "argmax", "argmin", "isnan", "isinf", "isfinite", "size", "len"}
)
_MAX_NODES = 200


def singular_nodes(file: FileContext) -> dict[ast.AST, Singular]:
    """The singular operations of a file by their nodes."""
    return {singular.node: singular for singular in file.singularities.of(*Form)}


def computed_from(file: FileContext, expression: ast.expr, *, depth: int = 2) -> Iterator[ast.AST]:
    """The expressions that a value is computed from, differentiably, through `depth` levels of variables."""
    pending: list[tuple[ast.AST, int]] = [(expression, depth)]
    seen: set[ast.AST] = set()
    while pending and len(seen) < _MAX_NODES:
        node, left = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if isinstance(node, ast.Call):
            pending.extend((part, left) for part in _parts_of_call(file, node))
        elif isinstance(node, ast.Subscript):
            pending.append((node.value, left))
        elif isinstance(node, ast.Name):
            if left:
                pending.extend((source, left - 1) for source in _assigned(file, node))
        else:
            pending.extend((child, left) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _parts_of_call(file: FileContext, call: ast.Call) -> list[ast.expr]:
    name = terminal_name(call.func)
    if name in _CUTS:
        return []
    operation = file.values.operation(call)
    if operation is not None and name == "where" and operation.qualified:
        return list(operation.arguments)
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Attribute) and file.qualified_name(call.func) is None:
        parts.append(call.func.value)
    return parts


def _assigned(file: FileContext, name: ast.Name) -> list[ast.expr]:
    """What a name may stand for; what an augmented assignment adds counts as well."""
    return [binding.value for binding in file.values.definitions(name) if binding.value is not None]


def compared_names(file: FileContext, condition: ast.expr, *, from_below: bool = False) -> frozenset[str]:
    """The names whose values a condition compares with a bound, looking through one variable that holds it.

    `from_below`: only those that it keeps above the bound, or different from it.
    """
    definition = file.values.single_definition(condition)
    expression = definition if definition is not None else condition
    names: set[str] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            left, right, operator = node.left, node.comparators[0], node.ops[0]
            if _is_bound(file, right) and not (from_below and isinstance(operator, (ast.Lt, ast.LtE, ast.Eq))):
                names |= {name for name, _ in value_names(left)}
            if _is_bound(file, left) and not (from_below and isinstance(operator, (ast.Gt, ast.GtE, ast.Eq))):
                names |= {name for name, _ in value_names(right)}
        elif isinstance(node, ast.Call):
            operation = file.values.operation(node)
            if operation is not None and operation.name in _CONDITION_CALLS and operation.operand is not None:
                names |= {name for name, _ in value_names(operation.operand)}
    return frozenset(names)


def _is_bound(file: FileContext, expression: ast.expr) -> bool:
    """Whether one side of a comparison is a limit, and no other computed tensor."""
    if isinstance(expression, (ast.Constant, ast.UnaryOp, ast.Attribute)):
        return True
    value = file.values.value(expression)
    is_given = isinstance(expression, ast.Name) and not file.values.definitions(expression)
    return is_given or value.is_number or value.constant is not None


def is_about(file: FileContext, operand: ast.expr, tested: frozenset[str]) -> bool:
    """Whether all tensors of an operand are compared in the condition: then it is there to keep them away.

    An operand counts as well when it was computed in one step from what is compared: `r = d.sqrt()`, `d > 0`.
    """
    return _all_tested(file, operand, tested, depth=1)


def _all_tested(file: FileContext, operand: ast.expr, tested: frozenset[str], *, depth: int) -> bool:
    found = [(name, node) for name, node in value_names(operand) if not file.values.value(node).is_number]
    for name, node in found:
        if name in tested:
            continue
        definition = file.values.single_definition(node) if depth else None
        if definition is None or not _all_tested(file, definition, tested, depth=depth - 1):
            return False
    return bool(found)
