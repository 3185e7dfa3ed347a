"""Lengths of what is never of no length: quaternions, and the edges of a graph without self loops.

Found on roots and divisions of ten packages that were never zero. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from analyzer.formulas import core
from analyzer.syntax import terminal_name

if TYPE_CHECKING:
    from analyzer.context import FileContext

# A rotation by nothing is the quaternion (1, 0, 0, 0); its vector part and differences of two can be zero.
_QUATERNION = re.compile(r"(^|_)(quats?|quaternions?)(_|\d|$)")
_PART = re.compile(r"vec|imag|xyz|diff|delta|error")


def is_quaternion(squared: ast.expr) -> bool:
    """Whether a whole tensor is called a quaternion."""
    name = (terminal_name(squared) or "").lower() if isinstance(squared, (ast.Name, ast.Attribute)) else ""
    return _QUATERNION.search(name) is not None and _PART.search(name) is None


def is_edge(file: FileContext, difference: ast.expr) -> bool:
    """Whether a tensor is the difference of one tensor at two indices: `pos[i] - pos[j]`, the ends of edges."""
    while isinstance(difference, ast.Name):
        found = file.values.single_definition(difference)
        if found is None:
            return False
        difference = found
    if not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub):
        return False
    left, right = difference.left, difference.right
    if not isinstance(left, ast.Subscript) or not isinstance(right, ast.Subscript):
        return False
    if ast.dump(left.value) != ast.dump(right.value) or ast.dump(left.slice) == ast.dump(right.slice):
        return False
    return _selects_ends(file, left.slice) and _selects_ends(file, right.slice)


def _selects_ends(file: FileContext, index: ast.expr) -> bool:
    """Whether an index was handed over or made elsewhere: a loop over pairs, a grid and a draw meet the diagonal."""
    if isinstance(index, ast.Subscript):
        return "edge" in (terminal_name(index.value) or "")
    if not isinstance(index, ast.Name) or file.values.value(index).is_number:
        return False
    if any(_binds(outer, index.id) for outer in file.ancestors(index)):
        return False
    values = [binding.value for binding in file.values.definitions(index)]
    return not any(_is_of_torch(file, value) for value in values if value is not None)


def _binds(outer: ast.AST, name: str) -> bool:
    """Whether a loop or a comprehension runs over the values of a name."""
    targets: list[ast.expr] = []
    if isinstance(outer, ast.For):
        targets = [outer.target]
    elif isinstance(outer, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        targets = [generator.target for generator in outer.generators]
    return any(isinstance(node, ast.Name) and node.id == name for target in targets for node in ast.walk(target))


def _is_of_torch(file: FileContext, value: ast.expr) -> bool:
    found = core(file, value)
    operation = file.values.operation(found) if isinstance(found, ast.Call) else None
    return operation is not None and bool(operation.qualified)
