"""What the calls in a file hand to a function or a module of the same file, and what becomes of it afterwards.

Within one file only: a call from another file is not seen. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from analyzer.context import FileContext
from analyzer.provenance import out_of_network
from analyzer.syntax import FunctionNode, is_self, parameters, terminal_name
from analyzer.values.bindings import Binding
from analyzer.values.domain import Gradient
from analyzer.values.guards import value_names

# These may give back the very tensor that they were given.
_PASSES_ON = re.compile(r"drop|act|relu|ident|^(view|reshape|expand|to|contiguous|float|type_as)$", re.IGNORECASE)
_MOST_CALLS = 16


def receives_temporaries(file: FileContext, forward: FunctionNode, argument: str) -> bool:
    """Whether every object that the file makes of a module is called with a tensor that nobody reads afterwards."""
    owner = file.parent(forward)
    if not isinstance(owner, ast.ClassDef):
        return False
    attributes = {_holder(file, construction) for construction in file.calls(owner.name)}
    if not attributes or None in attributes:
        return False
    calls = [call for name in attributes if name for call in file.calls(name) if _own_call(call) == name]
    if not calls or len(calls) > _MOST_CALLS:
        return False
    return all(_is_temporary(file, _given(call, forward, argument)) for call in calls)


def receives_model_outputs(file: FileContext, function: FunctionNode) -> bool:
    """Whether a plain function is called in its file, and only with what came out of a network."""
    calls = file.calls(function.name)
    names = [argument.arg for argument in parameters(function)]
    if not isinstance(file.parent(function), ast.Module) or not calls or len(calls) > _MOST_CALLS or not names:
        return False
    if len(file.loads.get(function.name, ())) != len(calls):
        return False
    return all(_is_output(file, _given(call, function, names[0])) for call in calls)


def all_given(file: FileContext, function: FunctionNode, argument: str) -> list[ast.expr]:
    """What all calls give to a helper that nobody outside its file calls; empty where one of them is not known."""
    names = [parameter.arg for parameter in parameters(function)]
    is_inner = isinstance(file.parent(function), (ast.FunctionDef, ast.AsyncFunctionDef))
    is_private = function.name.startswith("_") and not function.name.endswith("__")
    calls = file.calls(function.name)
    if not (is_inner or is_private) or argument not in names or names[0] == "cls" or len(calls) > _MOST_CALLS:
        return []
    called = {call.func for call in calls}
    others = [*file.loads.get(function.name, ()), *file.nodes(ast.Attribute)]
    if any(terminal_name(other) == function.name and other not in called for other in others):
        return []
    given = [_given(call, function, argument) for call in calls]
    return [value for value in given if value is not None] if None not in given else []


def receives_constants(file: FileContext, expression: ast.expr) -> bool:
    """Whether an expression is made of arguments of a helper for which all calls give something without a gradient."""
    function = file.enclosing_function(expression)
    tensors = [node for _, node in value_names(expression) if not file.values.value(node).is_number]
    if function is None or not tensors:
        return False
    for tensor in tensors:
        is_argument = isinstance(tensor, ast.Name) and not file.values.definitions(tensor)
        given = all_given(file, function, tensor.id) if isinstance(tensor, ast.Name) and is_argument else []
        if not given or any(file.values.value(value).gradient is not Gradient.NO for value in given):
            return False
    return True


def _holder(file: FileContext, construction: ast.Call) -> str | None:
    """`mlp` of `self.mlp = MLP(…)`."""
    parent = file.parent(construction)
    if not isinstance(parent, ast.Assign) or parent.value is not construction or len(parent.targets) != 1:
        return None
    target = parent.targets[0]
    return target.attr if isinstance(target, ast.Attribute) and is_self(target.value) else None


def _own_call(call: ast.expr) -> str | None:
    """`mlp` of `self.mlp(…)`."""
    function = call.func if isinstance(call, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) and is_self(function.value) else None


def _given(call: ast.Call, function: FunctionNode, argument: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == argument:
            return keyword.value
    names = [parameter.arg for parameter in parameters(function)]
    if argument not in names or any(isinstance(given, ast.Starred) for given in call.args):
        return None
    position = names.index(argument) - (1 if names[0] == "self" else 0)
    return call.args[position] if 0 <= position < len(call.args) else None


def _is_temporary(file: FileContext, given: ast.expr | None) -> bool:
    """Whether a tensor was made by a layer, and is read nowhere but here."""
    if given is None:
        return False
    if not isinstance(given, ast.Name):
        return _is_fresh(given)
    definitions = file.values.definitions(given)
    if not definitions or not all(
        definition.value is not None and _is_fresh(definition.value) and definition.operator is None
        for definition in definitions
    ):
        return False
    return not any(_may_be(file, other, definitions) for other in _other_uses(file, given))


def _is_fresh(expression: ast.expr) -> bool:
    name = _own_call(expression)
    return name is not None and _PASSES_ON.search(name) is None


def _other_uses(file: FileContext, given: ast.Name) -> Iterator[ast.Name]:
    """Where the name is read after the call, or gets a second name before it."""
    function = file.enclosing_function(given)
    for other in file.loads.get(given.id, ()):
        if other is given or file.enclosing_function(other) is not function:
            continue
        if isinstance(file.parent(other), ast.Attribute):
            continue
        if (other.lineno, other.col_offset) > (given.lineno, given.col_offset) or isinstance(
            file.parent(other), (ast.Assign, ast.Tuple, ast.List)
        ):
            yield other


def _may_be(file: FileContext, other: ast.Name, definitions: list[Binding]) -> bool:
    return any(found is definition for found in file.values.definitions(other) for definition in definitions)


def comes_after_blocks(file: FileContext, tensor: ast.expr) -> bool:
    """Whether a tensor went through `for block in self.blocks: x = block(x, mask, …)`.

    A block of a model is given more than one tensor; a plain list of layers may end in a ReLU.
    """
    while isinstance(tensor, ast.Subscript):
        tensor = tensor.value
    return any(_is_call_of_block(file, definition.value) for definition in file.values.definitions(tensor))


def _is_call_of_block(file: FileContext, value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or len(value.args + value.keywords) < 2:
        return False
    block = value.func.id
    return any(
        isinstance(loop, ast.For)
        and any(isinstance(node, ast.Name) and node.id == block for node in ast.walk(loop.target))
        and any(is_self(node) for node in ast.walk(loop.iter) if isinstance(node, ast.expr))
        for loop in file.ancestors(value)
    )


def _is_output(file: FileContext, given: ast.expr | None) -> bool:
    return given is not None and out_of_network(file, given)
