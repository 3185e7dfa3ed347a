"""What the reader of the source (`demand`) knows of a value: a constant, a tensor's form, a size, a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gradproof_probe.harness.axes import Axis, Form, square_side

TENSOR_ATTRIBUTES: Final = frozenset(dir(torch.Tensor))
# What a list, a dict or a string has as well: says nothing about a tensor.
_COMMON: Final = frozenset(
    name for kind in (list, tuple, dict, str, int, float, torch.nn.Module) for name in dir(kind)
) - {"to", "float", "double", "half", "type"}


@dataclass(slots=True, eq=False)
class Constant:
    value: Any


@dataclass(slots=True, eq=False)
class Size:
    """An integer that is the size of an axis."""

    axis: Axis


@dataclass(slots=True, eq=False)
class ShapeOf:
    form: Form
    start: int = 0
    """Axes before it are cut off (negative: counted from the back)."""
    spread: bool = False
    """Written with a star in a list: it stands for as many items as fit."""


@dataclass(slots=True, eq=False)
class RankOf:
    form: Form


@dataclass(slots=True, eq=False)
class Items:
    values: list[Any]


@dataclass(slots=True, eq=False)
class Unknown:
    """Nothing is known."""


@dataclass(slots=True, eq=False)
class Bound:
    """A method of a value, not called yet."""

    owner: Any
    name: str


@dataclass(slots=True, eq=False)
class Parameter:
    """A parameter, or a part of one, with all that the source does with it."""

    name: str
    form: Form = field(default_factory=Form)
    tensor: int = 0
    """How many uses only a tensor allows."""
    number: int = 0
    whole: int = 0
    """Uses as a number, and those that only an integer allows."""
    boolean: int = 0
    """Places where it is itself the condition."""
    called: int = 0
    arity: int = 0
    attributes: dict[str, Parameter] = field(default_factory=dict)
    keys: dict[str, Parameter] = field(default_factory=dict)
    items: dict[int, Parameter] = field(default_factory=dict)
    count: int | None = None
    """How many items it is unpacked into."""
    iterated: int = 0
    texts: list[str] = field(default_factory=list)
    """Strings that it is compared with."""
    numbers: list[int] = field(default_factory=list)
    """Integers that it is compared with."""
    kinds: list[type] = field(default_factory=list)
    """Classes that `isinstance` asks for."""
    default: Any = None

    @property
    def says_something(self) -> bool:
        """Whether more than its name is known of it."""
        known = self.form.rank is not None or bool(self.form.axes) or bool(self.form.dtype)
        return known or any((self.keys, self.attributes, self.items, self.called, self.iterated))

    def as_form(self) -> Form:
        self.tensor += 1
        return self.form

    def item(self, index: int) -> Parameter:
        return self.items.setdefault(index, Parameter(f"{self.name}[{index}]"))

    def key(self, key: str) -> Parameter:
        return self.keys.setdefault(key, Parameter(f"{self.name}[{key!r}]"))

    def attribute(self, name: str) -> Parameter:
        return self.attributes.setdefault(name, Parameter(f"{self.name}.{name}"))


UNKNOWN: Final = Unknown()


def only_of_tensors(attribute: str) -> bool:
    return attribute in TENSOR_ATTRIBUTES and attribute not in _COMMON


def form_of(value: Any) -> Form | None:
    """The form behind a value that is used as a tensor here."""
    if isinstance(value, Form):
        return value
    if isinstance(value, Parameter):
        return value.as_form()
    if isinstance(value, Constant) and isinstance(value.value, torch.Tensor):
        return Form.of([Axis(size) for size in value.value.shape])
    return None


def peek_form(value: Any) -> Form | None:
    """The same without taking it as a sign that a parameter is a tensor."""
    return value.form if isinstance(value, Parameter) else form_of(value)


def number_of(value: Any) -> int | None:
    """The integer that a value is known to be."""
    if isinstance(value, Constant) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return value.value
    if isinstance(value, Size):
        return value.axis.known()
    if isinstance(value, RankOf):
        return value.form.rank
    return None


def side_of(size: Size) -> Any:
    """`int(math.sqrt(n))`: the axis is taken apart as a square."""
    side = square_side(size.axis)
    return Size(side) if side is not None else UNKNOWN


def axis_of(value: Any) -> Axis | None:
    """The axis behind an integer; -1 has none."""
    if isinstance(value, Size):
        return value.axis
    number = number_of(value)
    return Axis(number) if number is not None and number > 0 else None
