"""What each function and method of a file may call: names that lead to definitions of the snapshot, and `self.x`.

A name that is only read counts as well: functions are handed over, modules are built in one method and called in
another. This module must not know other files.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode

# More than any function that somebody wrote by hand refers to.
_MOST_REFERENCES: Final = 200
_MOST_DEFINITIONS: Final = 5_000
_NOT_OF_THE_SNAPSHOT: Final = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "einops", "scipy", "torchvision"}


_OWN: Final = frozenset({"self", "cls", "super"})


@dataclass(frozen=True, slots=True)
class DefinitionOutline:
    """A function, a method (`Class.method`), or what stands in a class outside of its methods (`Class`).

    `references` are dotted names: `.x` is relative to the module, no dot is of this file. `own` are attributes of
    `self` and `super()`, `far` attributes of attributes of it: `y` in `self.x.y(…)`.
    """

    qualname: str
    line: int
    end_line: int
    references: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    far: tuple[str, ...] = ()


class _Collected:
    __slots__ = ("far", "own", "references")

    def __init__(self) -> None:
        self.references: dict[str, None] = {}
        self.own: dict[str, None] = {}
        self.far: dict[str, None] = {}


def definitions_of(file: FileContext) -> tuple[DefinitionOutline, ...]:
    """Every definition that can be told from outside, in source order; what is nested in a function is part of it."""
    owners: dict[ast.ClassDef | FunctionNode, str] = {}
    for node, qualname in _definitions(file.tree):
        owners.setdefault(node, qualname)
        if len(owners) >= _MOST_DEFINITIONS:
            break
    local = {name for name in owners.values() if "." not in name}
    leads = {
        alias: target for alias, target in file.imports.items() if target.partition(".")[0] not in _NOT_OF_THE_SNAPSHOT
    }
    by_line = _owners_by_line(owners)
    parents = file.index.parents
    collected: dict[ast.AST, _Collected] = {}
    # In the order of the source: the references that are kept of a long function are its first ones.
    loads = file.loads
    told = [(name, leads.get(text)) for text in {*leads, *local, *_OWN} for name in loads.get(text, ())]
    for name, target in sorted(told, key=lambda item: (item[0].lineno, item[0].col_offset)):
        owner = by_line.get(name.lineno)
        if owner is None:
            continue
        into = collected.get(owner)
        if into is None:
            into = collected[owner] = _Collected()
        if target is None and name.id in _OWN:
            _note_own(parents, name, into)
        elif len(into.references) < _MOST_REFERENCES:
            into.references.setdefault((target or name.id) + _rest(parents, name))
    empty = _Collected()
    return tuple(
        DefinitionOutline(
            qualname=qualname,
            line=_first_line(node),
            end_line=node.end_lineno or node.lineno,
            references=tuple((found := collected.get(node, empty)).references),
            own=tuple(found.own)[:_MOST_REFERENCES],
            far=tuple(found.far)[:_MOST_REFERENCES],
        )
        for node, qualname in owners.items()
    )


def _first_line(node: ast.ClassDef | FunctionNode) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | FunctionNode, str]]:
    """Classes, their methods, and functions of the module, also under `if`, `try` and `with`, in source order."""
    pending: list[tuple[ast.AST, str]] = [(statement, "") for statement in reversed(tree.body)]
    while pending:
        node, prefix = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield node, prefix + node.name
            pending.extend((child, f"{prefix}{node.name}.") for child in reversed(node.body))
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            for field in ("finalbody", "handlers", "orelse", "body"):
                pending.extend((child, prefix) for child in reversed(getattr(node, field, [])))


def _owners_by_line(owners: Iterable[ast.ClassDef | FunctionNode]) -> dict[int, ast.AST]:
    """The outermost function on each line, or else the innermost class: methods come after their classes here."""
    table: dict[int, ast.AST] = {}
    for owner in owners:
        table.update(dict.fromkeys(range(owner.lineno, (owner.end_lineno or owner.lineno) + 1), owner))
    return table


def _rest(parents: Mapping[ast.AST, ast.AST], name: ast.expr) -> str:
    """`.b.c` behind `a` in `a.b.c`."""
    rest = ""
    outer = parents.get(name)
    while isinstance(outer, ast.Attribute):
        rest += f".{outer.attr}"
        outer = parents.get(outer)
    return rest


def _note_own(parents: Mapping[ast.AST, ast.AST], name: ast.Name, into: _Collected) -> None:
    outer = parents.get(name)
    if name.id == "super":
        if not isinstance(outer, ast.Call):
            return
        outer = parents.get(outer)
        into.own.setdefault("super")
    if not isinstance(outer, ast.Attribute):
        return
    into.own.setdefault(outer.attr)
    further = parents.get(outer)
    while isinstance(further, ast.Subscript):
        further = parents.get(further)
    if isinstance(further, ast.Attribute):
        into.far.setdefault(further.attr)
