"""One argument as a small value that can be changed and written as an expression; lists and dicts hold others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

ArgumentKind = Literal["float", "int", "bool", "complex", "literal", "list", "tuple", "dict", "object"]
Values = Literal[
    "normal",
    "unit",
    "positive",
    "simplex",
    "direction",
    "symmetric",
    "definite",
    "orthogonal",
    "invertible",
    "sorted",
    "boxes",
    "symmetric_unit",
    "ones",
]

_STRUCTURES: Final = ("list", "tuple", "dict", "object")
# `{s}`: the sizes. What needs a square matrix or enough columns is normal where the shape has none.
_FLOATS: Final[dict[str, str]] = {
    "normal": "torch.randn({s})",
    "unit": "torch.rand({s})",
    "positive": "torch.rand({s}) + 0.5",
    "simplex": "torch.randn({s}).softmax(-1)",
    "direction": "torch.nn.functional.normalize(torch.randn({s}), dim=-1)",
    "symmetric": "(lambda a: a + a.mT)(torch.randn({s}))",
    "definite": "(lambda a: a @ a.mT + torch.eye(a.shape[-1]))(torch.randn({s}))",
    "orthogonal": "(lambda a: torch.linalg.matrix_exp(a - a.mT))(torch.randn({s}))",
    "invertible": "(lambda a: a + 3 * torch.eye(a.shape[-1]))(torch.randn({s}))",
    "sorted": "torch.rand({s}).sort(-1).values",
    "boxes": "(lambda a: torch.cat([a[..., :2], a[..., :2] + a[..., 2:] + 0.1], -1))(torch.rand({s}))",
    "symmetric_unit": "torch.rand({s}) * 2 - 1",
    "ones": "torch.ones({s})",
}
_SQUARE: Final = ("symmetric", "definite", "orthogonal", "invertible")


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor of `shape` (float: by `values`, int: 0..high-1, bool, complex), a literal expression, or a structure.

    A structure's `items` are arguments again; of a dict and an object the items' names are the keys and attributes.
    `text` of an object is the class that is called with the items by keyword (nothing: a plain namespace).
    `guessed`: nothing but its name says that the literal is one, so an error about its type is ours and no fault.
    """

    name: str
    kind: ArgumentKind = "float"
    shape: tuple[int, ...] = ()
    high: int = 4
    text: str = ""
    values: Values = "normal"
    keyword: bool = False
    guessed: bool = False
    items: tuple[Argument, ...] = ()

    def render(self) -> str:
        prefix = f"{self.name}=" if self.keyword else ""
        return prefix + self.value()

    def value(self) -> str:
        """The expression alone."""
        sizes = ", ".join(map(str, self.shape))
        pair = f"({sizes}{',' if len(self.shape) == 1 else ''})"
        if self.kind == "float":
            return _FLOATS[self._fitting_values()].format(s=sizes or "()")
        if self.kind == "complex":
            return f"torch.complex(torch.randn({sizes or '()'}), torch.randn({sizes or '()'}))"
        if self.kind == "int":
            return f"torch.randint(0, {self.high}, {pair})"
        if self.kind == "bool":
            # The first place of every row stays set: a row without any would ask about another thing (empty rows).
            return f"torch.ones({pair}, dtype=torch.bool)" if self.shape else "torch.tensor(True)"
        return self._structure() if self.kind in _STRUCTURES else self.text

    def _fitting_values(self) -> str:
        square = len(self.shape) >= 2 and self.shape[-1] == self.shape[-2]
        if self.values in _SQUARE and not square:
            return "normal"
        if self.values == "boxes" and self.shape[-1:] != (4,):
            return "unit"
        if self.values in ("simplex", "direction", "sorted") and not self.shape:
            return "unit"
        return self.values

    def _structure(self) -> str:
        inner = [item.value() for item in self.items]
        if self.kind == "list":
            return f"[{', '.join(inner)}]"
        if self.kind == "tuple":
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        if self.kind == "dict":
            return "{" + ", ".join(f"{item.name!r}: {item.value()}" for item in self.items) + "}"
        named = ", ".join(f"{item.name}={item.value()}" for item in self.items)
        return f"{self.text or NAMESPACE}({named})"

    def with_shape(self, shape: tuple[int, ...]) -> Argument:
        return replace(self, shape=shape)

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("float", "int", "bool", "complex")

    @property
    def is_structure(self) -> bool:
        return self.kind in _STRUCTURES


Arguments = tuple[Argument, ...]
# An object with attributes that needs no class of the repository; the module's own names can't hide it.
NAMESPACE: Final = "__import__('types').SimpleNamespace"


def leaves(arguments: Sequence[Argument]) -> Arguments:
    """Tensors and literals, those inside structures as well, in the order of writing."""
    return tuple(_leaves(arguments))


def _leaves(arguments: Sequence[Argument]) -> Iterator[Argument]:
    for argument in arguments:
        if argument.is_structure:
            yield from _leaves(argument.items)
        else:
            yield argument


def with_leaves(arguments: Sequence[Argument], changed: Sequence[Argument]) -> Arguments:
    """The same structures with other leaves, given in the order of `leaves`."""
    rest = iter(changed)

    def take(argument: Argument) -> Argument:
        if argument.is_structure:
            return replace(argument, items=tuple(take(item) for item in argument.items))
        return next(rest)

    return tuple(take(argument) for argument in arguments)


def each_leaf(arguments: Sequence[Argument], change: Callable[[Argument], Argument]) -> Arguments:
    return with_leaves(arguments, [change(leaf) for leaf in leaves(arguments)])
