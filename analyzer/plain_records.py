"""Classes whose objects hold numbers, words and the like only: enumerations, and records whose fields all say so.

A function that gives nothing but such objects gives no tensor. This module must not know other files: the names of
fields are looked up by who knows the snapshot.
"""

from __future__ import annotations

import ast
from typing import Final

from analyzer.annotations import annotation_names
from analyzer.syntax import terminal_name

_RECORDS: Final = frozenset({"dataclass", "define", "frozen"})
_RECORD_BASES: Final = frozenset({"NamedTuple", "TypedDict"})
_ENUMERATIONS: Final = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})
_PLAIN: Final = frozenset(
    {
        *("int", "float", "bool", "str", "bytes", "complex", "None", "Path", "dtype", "device", "Size", "Literal"),
        *("Optional", "Union", "List", "Dict", "Tuple", "Sequence", "list", "dict", "tuple", "Iterable", "Iterator"),
        *("Set", "set", "frozenset", "FrozenSet", "Mapping", "Final", "ClassVar", "Annotated"),
    }
)


def plain_fields(node: ast.ClassDef) -> tuple[str, ...] | None:
    """The classes that the fields of a record are of, numbers and words left out; None for any other class."""
    bases = {terminal_name(base) for base in node.bases}
    if bases & _ENUMERATIONS:
        return ()
    decorators = {terminal_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
    # A record that derives from another class has fields that don't stand here.
    if not (bases <= _RECORD_BASES and (bases or decorators & _RECORDS)):
        return None
    fields = [annotation_names(s.annotation) for s in node.body if isinstance(s, ast.AnnAssign)]
    return tuple(sorted(frozenset[str]().union(*fields) - _PLAIN)) if fields else None


def classes_given(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """The classes that the annotation of a result names beside numbers, words and containers."""
    return tuple(sorted(annotation_names(function.returns) - _PLAIN)) if function.returns is not None else ()
