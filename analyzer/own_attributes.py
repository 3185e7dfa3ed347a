"""Which attributes the objects of a class have by its own code: what it sets on `self`, what stands in its body.

Where code may set names that can't be read off it, the class is said to be open: anything may be there. This module
must not know other files or base classes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

from analyzer.context import FileContext
from analyzer.syntax import terminal_name

_REGISTERING: Final = frozenset({"register_buffer", "register_parameter", "register_module", "add_module"})
# They are given a name as a word, and say that it may be there or not.
_ASKING: Final = frozenset({"setattr", "hasattr", "getattr", "delattr"})
# These are given `self` and set nothing on it.
_HARMLESS: Final = frozenset({"super", "isinstance", "hasattr", "getattr", "type", "id", "len", "print", "repr", "str"})
_OPENING: Final = frozenset({"__getattr__", "__getattribute__", "__slots__", "__new__"})


@dataclass(frozen=True, slots=True)
class OwnAttributes:
    """`kept`: names that its objects have, or that its code asks about first; `is_open`: there may be any others."""

    kept: frozenset[str] = frozenset()
    is_open: bool = False


NO_ATTRIBUTES: Final = OwnAttributes()


def own_attributes(file: FileContext, node: ast.ClassDef) -> OwnAttributes:
    """The attributes that a class gives its objects by itself."""
    kept = _of_body(node)
    is_open = bool(node.decorator_list or node.keywords or kept & _OPENING)
    for attribute in file.nodes_in(node, ast.Attribute):
        if not isinstance(attribute.ctx, ast.Load):
            kept.add(attribute.attr)
        elif attribute.attr == "__dict__":
            is_open = True
    for call in file.nodes_in(node, ast.Call):
        name = terminal_name(call.func)
        if name in _REGISTERING or name in _ASKING:
            words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            kept.update(words)
            is_open = is_open or (not words and name != "getattr")
        elif name not in _HARMLESS and name != "__init__":
            is_open = is_open or any(isinstance(a, ast.Name) and a.id in ("self", "cls") for a in call.args)
    return OwnAttributes(frozenset(kept), is_open)


def _of_body(node: ast.ClassDef) -> set[str]:
    """Methods, classes and values of the body; a name that is only annotated has no value."""
    found: set[str] = set()
    pending: list[ast.stmt] = list(node.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, ast.Assign):
            found |= {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None and isinstance(statement.target, ast.Name):
                found.add(statement.target.id)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in statement.names}
        else:
            pending.extend(child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt))
    return found
