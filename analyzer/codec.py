"""Results as JSON and back, so that they can be kept in files that somebody else may have written.

Only the shapes that results have are known: dataclasses of strings, numbers, enumerations, tuples, sets, mappings and
each other. Whatever does not have the expected shape raises CodecError; nothing is executed on the way, which is why
this is no pickle. This module must not know what the values mean.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Type = TypeVar("_Type")
_PLAIN = (str, int, float, bool, type(None))


class CodecError(ValueError):
    """A document does not have the shape of the type that was asked for."""


def encode(value: object) -> Any:
    """A structure that `json` can write. Sets come out sorted, dataclasses as lists of their fields."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, _PLAIN):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, (frozenset, set)):
        return sorted(encode(item) for item in value)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    raise CodecError(f"{type(value).__name__} can't be kept")


def decode(document: object, kind: Callable[..., _Type]) -> _Type:
    """The value of type `kind` that `encode` made this of. Raises CodecError."""
    decoded: _Type = _decoder(kind)(document)
    return decoded


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if get_origin(kind) is not None:
        return _generic_decoder(get_origin(kind), get_args(kind))
    if kind is object:
        return lambda document: document
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda document: _member(kind, document)
    return lambda document: _expected(document, kind)


def _generic_decoder(origin: Any, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if origin in (types.UnionType, Union):
        inner = _decoder(next(argument for argument in arguments if argument is not type(None)))
        return lambda document: None if document is None else inner(document)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is frozenset:
        element = _decoder(arguments[0])
        return lambda document: frozenset(element(item) for item in _expected(document, list))
    if origin is Mapping:
        return lambda document: _expected(document, dict)
    raise TypeError(f"{origin} is no type that results have")


def _dataclass_decoder(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    decoders = [_decoder(hints[field.name]) for field in dataclasses.fields(kind)]

    def build(document: Any) -> Any:
        if len(_expected(document, list)) != len(decoders):
            raise CodecError(f"{kind.__name__} has {len(decoders)} fields, not {len(document)}")
        return kind(*(decoder(item) for decoder, item in zip(decoders, document, strict=True)))

    return build


def _tuple_decoder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        element = _decoder(arguments[0])
        return lambda document: tuple(element(item) for item in _expected(document, list))
    decoders = [_decoder(argument) for argument in arguments]

    def build(document: Any) -> Any:
        if len(_expected(document, list)) != len(decoders):
            raise CodecError(f"a tuple of {len(decoders)} was expected")
        return tuple(decoder(item) for decoder, item in zip(decoders, document, strict=True))

    return build


def _expected(document: Any, kind: type) -> Any:
    exact = type(document) is kind or (kind is float and type(document) is int)
    if not exact:
        raise CodecError(f"{kind.__name__} was expected, not {type(document).__name__}")
    return document


def _member(kind: type[Enum], document: Any) -> Enum:
    try:
        return kind(document)
    except ValueError as error:
        raise CodecError(str(error)) from error
