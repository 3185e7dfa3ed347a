"""The tensors written in input expressions: which shapes they have, and the same expressions with other shapes.

`torch.randn(2, 3)`, `mask=torch.ones((2, 5), dtype=torch.bool)`, `[torch.rand(4), torch.rand(4)]`: whatever makes a
tensor from constant sizes is found, wherever in the expression it stands. What is made otherwise is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Shape = tuple[int, ...]

# By how the sizes are given: as numbers or one tuple, or as one tuple behind other arguments.
_PLAIN: Final = frozenset({"randn", "rand", "zeros", "ones", "empty"})
_BEHIND: Final = frozenset({"randint", "full"})
_INTEGERS: Final = frozenset({"randint"})


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor of the inputs: `position` is the input's, `place` its number among the tensors of that input."""

    position: int
    place: int
    shape: Shape
    integer: bool
    boolean: bool

    @property
    def is_float(self) -> bool:
        return not (self.integer or self.boolean)


def written_tensors(inputs: Sequence[str]) -> list[WrittenTensor]:
    """All of them, in the order of the inputs."""
    return [
        WrittenTensor(position, place, _shape(call), _is_integer(call), _is_boolean(call))
        for position, expression in enumerate(inputs)
        for place, call in enumerate(_calls(_parsed(expression)))
    ]


def with_shapes(inputs: Sequence[str], shapes: dict[tuple[int, int], Shape]) -> tuple[str, ...]:
    """The inputs with other shapes, given by (position, place)."""
    changed = list(inputs)
    for position in {position for position, _ in shapes}:
        tree = _parsed(inputs[position])
        for place, call in enumerate(_calls(tree)):
            if (position, place) in shapes:
                _set_shape(call, shapes[position, place])
        assert isinstance(tree, ast.Call)
        changed[position] = ", ".join(
            [
                *(ast.unparse(item) for item in tree.args),
                *(
                    f"{item.arg}={ast.unparse(item.value)}" if item.arg else f"**{ast.unparse(item.value)}"
                    for item in tree.keywords
                ),
            ]
        )
    return tuple(changed)


def _parsed(expression: str) -> ast.expr | None:
    """As the argument of a call, so that `name=value` and `*values` are read as well; None where it is no Python."""
    try:
        return ast.parse(f"_({expression}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None


def _calls(tree: ast.AST | None) -> Iterator[ast.Call]:
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and _sizes(node) is not None:
            yield node


def _factory(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "torch":
        return function.attr
    return ""


def _sizes(call: ast.Call) -> list[ast.expr] | None:
    """The sizes of a call that makes a tensor from constant ones, else None."""
    factory = _factory(call)
    found: list[ast.expr] | None = None
    if factory in _PLAIN:
        found = list(call.args)
        if len(found) == 1 and isinstance(found[0], ast.Tuple | ast.List):
            found = list(found[0].elts)
    elif factory in _BEHIND:
        holder = _holder(call)
        found = None if holder is None else list(holder.elts)
    if found is None or not all(
        isinstance(size, ast.Constant) and type(size.value) is int and size.value >= 0 for size in found
    ):
        return None
    return found


def _holder(call: ast.Call) -> ast.Tuple | ast.List | None:
    return next((item for item in call.args if isinstance(item, ast.Tuple | ast.List)), None)


def _shape(call: ast.Call) -> Shape:
    return tuple(
        size.value for size in _sizes(call) or () if isinstance(size, ast.Constant) and type(size.value) is int
    )


def _set_shape(call: ast.Call, shape: Shape) -> None:
    sizes: list[ast.expr] = [ast.Constant(size) for size in shape]
    if _factory(call) in _PLAIN:
        call.args = list(sizes) if sizes else [ast.Tuple([], ast.Load())]
        return
    holder = _holder(call)
    assert holder is not None
    holder.elts = sizes


def _is_integer(call: ast.Call) -> bool:
    given = _dtype(call)
    return "int" in given or given == "long" or (not given and _factory(call) in _INTEGERS)


def _is_boolean(call: ast.Call) -> bool:
    return _dtype(call) == "bool"


def _dtype(call: ast.Call) -> str:
    value = next((item.value for item in call.keywords if item.arg == "dtype"), None)
    return value.attr if isinstance(value, ast.Attribute) else ""
