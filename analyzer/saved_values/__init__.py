"""Follows tensors through one function: what autograd keeps of them for backward, and what is then written in place.

An abstract run in the order of the statements: names stand for values, values lie in storages (views share them), and
each storage carries what operations have kept of it, from the generated facts. A write to a storage that something is
kept of is an `Overwrite`. Branches are run apart; what only one of them kept is forgotten where they meet, so that
every finding lies on a path that certainly exists. Loops run twice, for what one turn keeps and the next writes.

Whether a tensor requires gradients at all is told in degrees, because one file seldom settles it. This package must
not know rules.
"""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary

from analyzer.context import FileContext
from analyzer.layers import Attribute, module_attributes
from analyzer.saved_values.model import Differentiable, Keep, Kept, Overwrite
from analyzer.saved_values.run import overwrites_in
from analyzer.syntax import FunctionNode

__all__ = ["Differentiable", "Keep", "Kept", "Overwrite", "overwrites"]

_CACHE: WeakKeyDictionary[FileContext, tuple[Overwrite, ...]] = WeakKeyDictionary()


def overwrites(file: FileContext) -> tuple[Overwrite, ...]:
    """Every overwritten tensor in the functions of a file, in source order; worked out once for all rules."""
    known = _CACHE.get(file)
    if known is None:
        found: list[Overwrite] = []
        attributes: dict[ast.ClassDef, dict[str, Attribute]] = {}
        for function in file.functions:
            owner = file.parent(function)
            table: dict[str, Attribute] = {}
            if isinstance(owner, ast.ClassDef):
                if owner not in attributes:
                    attributes[owner] = module_attributes(file, owner)
                table = attributes[owner]
            if _may_write(file, function, table):
                found.extend(overwrites_in(file, function, table))
        known = _CACHE[file] = tuple(found)
    return known


def _may_write(file: FileContext, function: FunctionNode, table: dict[str, Attribute]) -> bool:
    """A cheap look before the run: most functions write nothing in place."""
    if file.nodes_in(function, ast.AugAssign):
        return True
    for assignment in file.nodes_in(function, ast.Assign):
        if any(isinstance(target, ast.Subscript) for target in assignment.targets):
            return True
    return any(_call_may_write(call, table) for call in file.nodes_in(function, ast.Call))


def _call_may_write(call: ast.Call, table: dict[str, Attribute]) -> bool:
    if any(keyword.arg in {"inplace", "out"} for keyword in call.keywords):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name.endswith("_") and not name.endswith("__"):
        return True
    attribute = table.get(name)
    return attribute is not None and any(layer.writes_input for layer in (attribute, *attribute.layers))
