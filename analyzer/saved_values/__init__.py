"""Follows tensors through one function: what autograd keeps of them for backward, and what is then written in place.

An abstract run in the order of the statements: names stand for values, values lie in storages (views share them), and
each storage carries what operations have kept of it, from the generated facts. A write to a storage that something is
kept of is an `Overwrite`. The same run notes writes that torch refuses (`Refusal`), writes to memory that others know
(`Mutation`) and attributes that carry a history from one call to the next (`Carried`). Branches are run apart; what
only one of them kept is forgotten where they meet, so that every finding lies on a path that certainly exists. Loops
run twice, for what one turn keeps and the next writes.

Whether a tensor requires gradients at all is told in degrees, because one file seldom settles it. This package must
not know rules.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.layers import Attribute, module_attributes
from analyzer.saved_values.model import (
    Carried,
    Differentiable,
    Keep,
    Kept,
    Mutation,
    Obstacle,
    Overwrite,
    Refusal,
    Route,
    Trace,
)
from analyzer.saved_values.run import trace_of
from analyzer.syntax import FunctionNode, parameters, terminal_name

__all__ = [
    "Carried",
    "Differentiable",
    "Keep",
    "Kept",
    "Mutation",
    "Obstacle",
    "Overwrite",
    "Refusal",
    "Route",
    "Trace",
    "overwrites",
    "traces",
]


def overwrites(file: FileContext) -> tuple[Overwrite, ...]:
    """Every overwritten tensor in the functions of a file, in source order."""
    return traces(file).overwrites


def traces(file: FileContext) -> Trace:
    """What the functions of a file do to their tensors, in source order; worked out once for all rules."""
    return file.once(_traces)


def _traces(file: FileContext) -> Trace:
    found: list[Trace] = []
    attributes: dict[ast.ClassDef, dict[str, Attribute]] = {}
    for function in file.functions:
        owner = file.parent(function)
        table: dict[str, Attribute] = {}
        if isinstance(owner, ast.ClassDef):
            if owner not in attributes:
                attributes[owner] = module_attributes(file, owner)
            table = attributes[owner]
        if _may_write(file, function, table):
            found.append(trace_of(file, function, table))
    return Trace(
        overwrites=tuple(item for trace in found for item in trace.overwrites),
        refusals=tuple(item for trace in found for item in trace.refusals),
        mutations=tuple(item for trace in found for item in trace.mutations),
        carried=tuple(item for trace in found for item in trace.carried),
    )


_NUMPY_WRITERS = frozenset(
    {"copyto", "put", "place", "putmask", "fill_diagonal", "shuffle", "fill", "sort", "partition", "itemset"}
)


def _may_write(file: FileContext, function: FunctionNode, table: dict[str, Attribute]) -> bool:
    """A cheap look before the run: most functions write nothing in place, and assign no attribute that they read."""
    if any(
        not isinstance(item.target, ast.Subscript) or not _is_key(item.target.slice)
        for item in file.nodes_in(function, ast.AugAssign)
    ):
        return True
    for assignment in file.nodes_in(function, ast.Assign):
        for target in assignment.targets:
            if not isinstance(target, ast.Name) and _target_may_write(file, function, target, in_module=bool(table)):
                return True
    return any(_call_may_write(file, call, table) for call in file.nodes_in(function, ast.Call))


def _target_may_write(file: FileContext, function: FunctionNode, target: ast.expr, *, in_module: bool) -> bool:
    if isinstance(target, ast.Tuple):
        return any(_target_may_write(file, function, item, in_module=in_module) for item in target.elts)
    if isinstance(target, ast.Subscript):
        return not _is_key(target.slice) and not _is_container(file, function, target.value)
    if not isinstance(target, ast.Attribute):
        return False
    if target.attr == "data":
        return True
    of_self = in_module and isinstance(target.value, ast.Name) and target.value.id == "self"
    return of_self and not function.name.startswith("__") and file.source(function).count(f"self.{target.attr}") > 1


def _is_key(index: ast.expr) -> bool:
    """Whether an index can only be a key of a dictionary."""
    return isinstance(index, ast.JoinedStr) or (isinstance(index, ast.Constant) and isinstance(index.value, str))


def _is_container(file: FileContext, function: FunctionNode, written: ast.expr) -> bool:
    """Whether an expression can only be a list or dictionary that the function itself has made."""
    if not isinstance(written, ast.Name):
        return False
    if function.args.kwarg is not None and function.args.kwarg.arg == written.id:
        made = True
    elif any(parameter.arg == written.id for parameter in parameters(function)):
        return False
    else:
        made = False
    for name in file.names_in(function, written.id):
        if isinstance(name.ctx, ast.Store):
            assignment = file.parent(name)
            if not isinstance(assignment, (ast.Assign, ast.AnnAssign)) or not _makes_container(assignment.value):
                return False
            made = True
    return made


def _makes_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in {"dict", "defaultdict", "OrderedDict", "list"}
    return isinstance(value, (ast.Dict, ast.DictComp))


def _call_may_write(file: FileContext, call: ast.Call, table: dict[str, Attribute]) -> bool:
    for keyword in call.keywords:
        if keyword.arg == "out" or (keyword.arg == "inplace" and not _builds_layer(file, call)):
            return True
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name in _NUMPY_WRITERS:
        return True
    if name[-1] == "_" and not name.endswith("__") and name != "requires_grad_":
        return True
    attribute = table.get(name)
    return attribute is not None and any(layer.writes_input for layer in (attribute, *attribute.layers))


def _builds_layer(file: FileContext, call: ast.Call) -> bool:
    """Whether a call in an `__init__` makes a layer, `nn.ReLU(inplace=True)`, and does not call it at once."""
    function = file.enclosing_function(call)
    outer = file.parent(call)
    if function is None or function.name != "__init__" or (isinstance(outer, ast.Call) and outer.func is call):
        return False
    return (terminal_name(call.func) or "")[:1].isupper()
