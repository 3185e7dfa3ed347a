"""What a module keeps between its calls, and how: registered, in a plain attribute, set once, changed while running.

`Module.to` and `state_dict` know parameters, buffers and submodules only; this tells what they miss. This module must
not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.forward_code import ForwardCode, forward_code, own_attribute
from analyzer.layers import Content
from analyzer.syntax import FunctionNode, terminal_name

# A module that defines one of these takes care of what it moves or stores.
_OWN_CARE = frozenset(
    {
        "_apply",
        "to",
        "cuda",
        "get_extra_state",
        "set_extra_state",
        "state_dict",
        "_load_from_state_dict",
        "_save_to_state_dict",
    }
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`self.<name> = value`, or `self.<name>.append(value)` and the like: then `in_list` is set."""

    name: str
    node: ast.stmt
    value: ast.expr
    in_list: bool = False


def takes_care(owner: ast.ClassDef) -> bool:
    """Whether a module moves or stores its state in its own way."""
    return any(isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name in _OWN_CARE for s in owner.body)


def is_registered(file: FileContext, owner: ast.ClassDef, name: str) -> bool:
    """Whether an attribute is a parameter, a buffer or a submodule."""
    known = forward_code(file).attributes(owner).get(name)
    return known is not None and known.content in (Content.PARAMETER, Content.BUFFER)


def assignment_of(file: FileContext, node: ast.AST) -> Assignment | None:
    """The assignment to an attribute of `self` that an expression is the value of, directly or in a list."""
    statement = file.statement(node)
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and len(targets) == 1 and statement.value is not None:
        name = own_attribute(targets[0])
        if name is not None:
            in_list = isinstance(statement.value, (ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.DictComp))
            return Assignment(name, statement, statement.value, in_list)
        if isinstance(targets[0], ast.Subscript):
            name = own_attribute(targets[0].value)
            return Assignment(name, statement, statement.value, in_list=True) if name is not None else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if terminal_name(call.func) in ("append", "insert") and isinstance(call.func, ast.Attribute) and call.args:
            name = own_attribute(call.func.value)
            return Assignment(name, statement, call.args[-1], in_list=True) if name is not None else None
    return None


def changes_in_place(file: FileContext, use: ast.Attribute) -> bool:
    """Whether this mention of `self.x` changes the values of the tensor: `self.x.fill_(1)`, `self.x[0] = 1`."""
    node: ast.AST = use
    parent = file.parent(node)
    while isinstance(parent, (ast.Subscript, ast.Attribute)) and parent.value is node:
        if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
            return True
        call = file.parent(parent)
        if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent:
            return parent.attr == "copy_" or operations().writes(f"torch.Tensor.{parent.attr}")
        node, parent = parent, call
    return isinstance(parent, ast.AugAssign) and parent.target is node


def elements_of(file: FileContext, use: ast.Attribute) -> Iterator[ast.expr]:
    """The expressions that stand for one element of the list `self.x`: `self.x[i]`, the variable of a loop over it."""
    parent = file.parent(use)
    if isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Load):
        if not isinstance(parent.slice, ast.Slice):
            yield parent
        return
    loop, target = _loop_over(file, use)
    if not isinstance(target, ast.Name) or loop is None:
        return
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load):
            yield node


def _loop_over(file: FileContext, use: ast.Attribute) -> tuple[ast.AST | None, ast.expr | None]:
    """The loop over a list and the variable that takes its elements, also through `zip` and `enumerate`."""
    parent = file.parent(use)
    position: int | None = None
    if isinstance(parent, ast.Call) and terminal_name(parent.func) in ("zip", "enumerate") and use in parent.args:
        position = parent.args.index(use) if terminal_name(parent.func) == "zip" else 1
        use_or_call: ast.AST = parent
        parent = file.parent(parent)
    else:
        use_or_call = use
    if isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is use_or_call:
        target: ast.expr | None = parent.target
        if position is not None:
            elements = target.elts if isinstance(target, ast.Tuple) else []
            target = elements[position] if position < len(elements) else None
        loop = parent if isinstance(parent, ast.For) else file.parent(parent)
        return loop, target
    return None, None


def outside_forward(code: ForwardCode, owner: ast.ClassDef, node: ast.AST) -> FunctionNode | None:
    """The method around a node if it is one that sets the module up: not run by its call."""
    method = code.method_of(node)
    if method is None or method in code.reached(owner).values():
        return None
    return method
