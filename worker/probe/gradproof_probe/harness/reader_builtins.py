"""Python's own functions as the reader of submitted source takes them: what they say of shapes and lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.harness.axes import Form
from gradproof_probe.harness.reader_base import (
    NO,
    YES,
    ReaderBase,
)
from gradproof_probe.harness.values import (
    UNKNOWN,
    Constant,
    Items,
    Parameter,
    RankOf,
    ShapeOf,
    Size,
    number_of,
)


def _length(_reader: ReaderBase, args: list[Any]) -> Any:
    value = args[0] if args else UNKNOWN
    if isinstance(value, ShapeOf) and value.start == 0:
        return RankOf(value.form)
    if isinstance(value, Items):
        return Constant(len(value.values))
    if isinstance(value, Form):
        return Size(value.axis(0))
    if isinstance(value, Constant):
        try:
            return Constant(len(value.value))
        except Exception:
            return UNKNOWN
    return UNKNOWN


def _range(_reader: ReaderBase, args: list[Any]) -> Any:
    for value in args:
        if isinstance(value, Parameter):
            value.whole += 1
            value.number += 1
    numbers = [number_of(value) for value in args]
    if not numbers or None in numbers:
        return UNKNOWN
    return Constant(range(*[number for number in numbers if number is not None][:3]))


def _instance(_reader: ReaderBase, args: list[Any]) -> Any:
    if len(args) < 2 or not isinstance(args[1], Constant):
        return UNKNOWN
    asked = args[1].value
    classes = [kind for kind in (asked if isinstance(asked, tuple) else (asked,)) if isinstance(kind, type)]
    value = args[0]
    if isinstance(value, Form):
        return Constant(torch.Tensor in classes)
    if isinstance(value, Constant):
        try:
            return Constant(isinstance(value.value, tuple(classes)))
        except TypeError:
            return UNKNOWN
    if isinstance(value, Parameter):
        if value.tensor and torch.Tensor in classes:
            return YES
        if value.tensor:
            return NO
        value.kinds += classes
    return UNKNOWN


def _zip(reader: ReaderBase, args: list[Any]) -> Any:
    columns = [reader.iterate(value, 3) for value in args]
    return Items([Items(list(row)) for row in zip(*columns, strict=False)])


def _enumerate(reader: ReaderBase, args: list[Any]) -> Any:
    items = reader.iterate(args[0], 3) if args else []
    return Items([Items([Constant(index), item]) for index, item in enumerate(items)])


def _map(reader: ReaderBase, args: list[Any]) -> Any:
    if len(args) < 2 or not isinstance(args[0], Constant):
        return UNKNOWN
    return Items([reader.call(args[0].value, [item], {}) for item in reader.iterate(args[1], 4)])


def _listing(reader: ReaderBase, args: list[Any]) -> Any:
    if not args:
        return Items([])
    return args[0] if isinstance(args[0], Items | ShapeOf | Parameter) else Items(reader.iterate(args[0], 4))


def _total(reader: ReaderBase, args: list[Any]) -> Any:
    items = reader.iterate(args[0], 4) if args else []
    return items[0] if items else UNKNOWN


def _number(_reader: ReaderBase, args: list[Any]) -> Any:
    value = args[0] if args else UNKNOWN
    if isinstance(value, Parameter):
        value.number += 1
        return UNKNOWN
    return value if isinstance(value, Size | RankOf) or number_of(value) is not None else UNKNOWN


def _callable(_reader: ReaderBase, args: list[Any]) -> Any:
    value = args[0] if args else UNKNOWN
    if isinstance(value, Constant):
        return Constant(callable(value.value))
    return NO if isinstance(value, Form) else UNKNOWN


def _extreme(_reader: ReaderBase, args: list[Any]) -> Any:
    numbers = [number_of(value) for value in args]
    return UNKNOWN if len(numbers) < 2 or None in numbers else Constant(max(n for n in numbers if n is not None))


BUILTINS: Final[dict[Any, Callable[[ReaderBase, list[Any]], Any]]] = {
    len: _length,
    range: _range,
    isinstance: _instance,
    zip: _zip,
    enumerate: _enumerate,
    map: _map,
    list: _listing,
    tuple: _listing,
    reversed: _listing,
    sum: _total,
    int: _number,
    round: _number,
    float: _number,
    callable: _callable,
    max: _extreme,
}


def is_builtin(function: Any) -> bool:
    try:
        return function in BUILTINS
    except TypeError:  # a callable that has no hash
        return False
