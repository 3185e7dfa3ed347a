"""Where the source keeps something under a name, and where it lets go of it again. Reads only, runs nothing."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.gradients.steps import CUTTING_METHOD
from gradproof_probe.source_texts import source_texts
from gradproof_probe.training.memory import Root

_ADDING: Final = frozenset({"append", "extend", "add", "update", "insert", "appendleft", "setdefault", "put"})


def kept_at(root: Root, source_root: Path) -> Place | None:
    """The statement, outside of constructors, that puts something under this name; the last one, if several do."""
    owners = root.owner.__mro__ if isinstance(root.owner, type) else (root.owner,)
    for owner in owners:
        try:
            path = relative(inspect.getsourcefile(owner) or "", source_root)
            lines, start = inspect.getsourcelines(owner)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        found = [node for node in _statements(tree, root) if not _is_letting_go(node)]
        if path is not None and found:
            return Place(path, max(start, 1) - 1 + found[-1].lineno)
    return None


def let_go_of(root: Root, source_root: Path) -> str | None:
    """How the source empties what is kept, if it does: a method for it, or a statement in some file."""
    if isinstance(root.owner, type):
        methods = sorted(name for name in dir(root.owner) if _lets_go(name) and _own(root.owner, name))
        if methods:
            return f"{methods[0]}() is there for its caller to call"
    name = re.escape(root.name)
    emptied = re.compile(
        rf"(?<!\w){name}\s*(\.clear\(|\.pop(left)?\(|\[:\]\s*=)|\bdel\s+[\w.]*\b{name}\b|"
        rf"\.{name}\s*=\s*(\[\]|\{{\}}|None|list\(|dict\()"
    )
    for item in source_texts(source_root).python:
        text = item.text
        try:
            tree = ast.parse(text) if name in text and emptied.search(text) else None
        except (SyntaxError, ValueError, RecursionError):
            continue
        if tree is None:
            continue
        constructors = [
            n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in ("__init__", "__new__")
        ]
        for number, line in enumerate(text.splitlines(), 1):
            inside = any(node.lineno <= number <= (node.end_lineno or 0) for node in constructors)
            if emptied.search(line) and not inside:
                return f"{item.path}:{number} empties it"
    return None


def set_on_context(function: type, attribute: str, source_root: Path) -> Place | None:
    """The line of forward (or setup_context) that sets this attribute of ctx."""
    for method in ("forward", "setup_context"):
        try:
            unwrapped = inspect.unwrap(getattr(function, method))
            lines, start = inspect.getsourcelines(unwrapped)
            path = relative(inspect.getsourcefile(unwrapped) or "", source_root)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError, AttributeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Store):
                return None if path is None else Place(path, start - 1 + node.lineno)
    return None


def _lets_go(method: str) -> bool:
    return CUTTING_METHOD.search(method) is not None and "param" not in method  # `reset_parameters` begins anew


def _own(owner: type, name: str) -> bool:
    """Whether it is a method of the submitted class or one of its bases, not of `torch.nn.Module`."""
    return any(name in vars(base) and not base.__module__.startswith("torch.") for base in owner.__mro__[:-1])


def _statements(tree: ast.AST, root: Root) -> Iterator[ast.stmt]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in ("__init__", "__new__", "__setstate__"):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr) and _keeps(node, root):
                yield node


def _keeps(statement: ast.stmt, root: Root) -> bool:
    if isinstance(statement, ast.Expr):
        call = statement.value
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _ADDING
            and _mentions(call.func.value, root)
        )
    targets: list[Any] = (
        statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    )
    return any(target is not None and _mentions(target, root) for target in targets)


def _mentions(node: ast.AST, root: Root) -> bool:
    """`self.name`, `name`, or an element of it."""
    for item in ast.walk(node):
        if root.is_attribute and isinstance(item, ast.Attribute) and item.attr == root.name:
            return True
        if not root.is_attribute and isinstance(item, ast.Name) and item.id == root.name:
            return True
    return False


def _is_letting_go(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.List | ast.Dict) and not ast.unparse(value)[1:-1])
