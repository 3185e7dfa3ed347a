"""Which expression's tensor a statement or a call changes in place.

Whether the value is a tensor at all is for the caller to know: `x += 1` is listed for any `x`. This module must not
know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.facts import operations


@dataclass(frozen=True, slots=True)
class Write:
    """`target` is the expression whose memory changes, `how` the way a person would call it (`mul_`, `+=`, `[…] =`)."""

    node: ast.AST
    target: ast.expr
    how: str


_SYMBOLS = {
    ast.Add: "+=",
    ast.Sub: "-=",
    ast.Mult: "*=",
    ast.Div: "/=",
    ast.FloorDiv: "//=",
    ast.Mod: "%=",
    ast.Pow: "**=",
    ast.BitAnd: "&=",
    ast.BitOr: "|=",
    ast.BitXor: "^=",
    ast.LShift: "<<=",
    ast.RShift: ">>=",
}


# Methods that write without being listed as an operation with a derivative.
PLAIN_COPIES = frozenset({"copy_", "apply_", "map_", "map2_"})


def writes_of(file: FileContext, node: ast.AST) -> Iterator[Write]:
    """The writes that this one node (an assignment, an augmented assignment or a call) makes itself."""
    if isinstance(node, ast.AugAssign):
        how = _SYMBOLS.get(type(node.op))
        # `x @= y` makes a new tensor.
        if how is not None:
            whole = node.target.value if isinstance(node.target, ast.Subscript) else node.target
            yield Write(node, whole, how)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield Write(node, target.value, "[…] =")
    elif isinstance(node, ast.Call):
        yield from _written_by_call(file, node)


def writing_method(name: str) -> bool:
    """Whether a method of tensors changes the tensor it is called on."""
    return name in PLAIN_COPIES or operations().writes(f"torch.Tensor.{name}")


def _written_by_call(file: FileContext, call: ast.Call) -> Iterator[Write]:
    for keyword in call.keywords:
        if keyword.arg == "out":
            yield Write(call, keyword.value, "out=")
    qualified = file.qualified_name(call.func)
    if qualified is None:
        if isinstance(call.func, ast.Attribute) and writing_method(call.func.attr):
            yield Write(call, call.func.value, f"{call.func.attr}()")
    elif call.args and not isinstance(call.args[0], ast.Starred) and writes_first_argument(file, call):
        told = "" if operations().writes(qualified) else "inplace=True"
        yield Write(call, call.args[0], f"{qualified.rpartition('.')[2]}({told})")


def writes_first_argument(file: FileContext, call: ast.Call) -> bool:
    """Whether a call of a torch function (or the building of a torch module) is told to write its argument in place."""
    qualified = file.qualified_name(call.func)
    if qualified is None:
        return False
    if operations().writes(qualified):
        return True
    position = operations().in_place_flag(qualified)
    if position is None:
        return False
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "inplace"]
    if not flags and len(call.args) > position:
        flags = [call.args[position]]
    return any(isinstance(flag, ast.Constant) and flag.value is True for flag in flags)
