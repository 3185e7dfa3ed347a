"""What the text of submitted code says: if an attribute is read, a class is part of another, a thing done elsewhere."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Final

from gradproof_probe.gradients.attribution import relative
from gradproof_probe.importing import Resolved
from gradproof_probe.source_texts import source_texts

_MOST_FILES: Final = 1000  # loaded ones that are parsed


def is_read(name: str, resolved: Resolved, source_root: Path) -> bool:
    """Whether loaded submitted code reads an attribute of this name anywhere."""
    loaded = [getattr(item, "__file__", None) for item in [resolved.module, *list(sys.modules.values())]]
    files = [Path(file) for file in loaded if isinstance(file, str) and relative(file, source_root) is not None]
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        for file in list(dict.fromkeys(files))[:_MOST_FILES]
        for node in ast.walk(_tree(file))
    )


def is_contained(qualname: str, source_root: Path) -> bool:
    """Whether another class of the source uses this one: as a part it gets its input from the parts before it.

    In a source with more files than are read it may be so.
    """
    name = qualname.rpartition(".")[2]
    word = re.compile(rf"\b{re.escape(name)}\b")
    texts = source_texts(source_root)
    return not texts.complete or any(
        isinstance(node, ast.ClassDef) and node.name != name and _uses(node, name)
        for item in texts.python
        if word.search(item.text)
        for node in ast.walk(_tree(item.file))
    )


def is_called_elsewhere(name: str, source_root: Path) -> bool:
    """Whether anything in the source but a function of this name calls one. In too large a source it may be so."""
    word = re.compile(rf"\b{re.escape(name)}\s*\(")
    texts = source_texts(source_root)
    return not texts.complete or any(
        _calls_outside(_tree(item.file), name) for item in texts.python if word.search(item.text)
    )


def others_mention(pattern: re.Pattern[str], resolved: Resolved, source_root: Path) -> bool:
    """Whether a line outside of a function holds this, in its file or in one that names it (of a method its class).

    In a source that can't be read it may be so.
    """
    name = re.compile(rf"\b{re.escape(resolved.target.qualname.partition('.')[0])}\b")
    own = getattr(resolved.module, "__file__", None)
    try:
        lines, start = inspect.getsourcelines(inspect.unwrap(resolved.value))
    except (OSError, TypeError):
        return True
    inside = range(start, start + len(lines))
    texts = source_texts(source_root)
    for item in texts.python:
        same_file = isinstance(own, str) and item.file.resolve() == Path(own).resolve()
        if not same_file and not name.search(item.text):
            continue
        for at, line in enumerate(item.text.splitlines(), 1):
            if not (same_file and at in inside) and pattern.search(line.partition("#")[0]):
                return True
    return not texts.complete


@cache
def _tree(file: Path) -> ast.AST:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _uses(definition: ast.ClassDef, name: str) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
        for statement in definition.body
        for node in ast.walk(statement)
    )


def _calls_outside(node: ast.AST, name: str) -> bool:
    """Whether something is called so, but for what calls itself."""
    if isinstance(node, ast.FunctionDef) and node.name == name:
        return False
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == name:
            return True
    return any(_calls_outside(child, name) for child in ast.iter_child_nodes(node))
