"""What of a file can matter to others that load it without asking for anything in it: what it does at import.

A package imports all its modules; a change inside a function of one of them changes nothing for the others, unless the
function runs while the package is imported. This module must not know other files: which names are of the snapshot is
for the reader of `calls` to tell.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from analyzer.syntax import dotted_name

# Written by the author, called by Python itself while names are defined or imported.
_CALLED_AT_IMPORT: Final = frozenset(
    {"__init_subclass__", "__set_name__", "__prepare__", "__class_getitem__", "__getattr__", "__dir__"}
)
_OF_PROPERTIES: Final = frozenset({"setter", "getter", "deleter"})
_BUILTIN: Final = frozenset(vars(builtins))
OWN: Final = "."


@dataclass(frozen=True, slots=True)
class ImportEffects:
    """`digest` is of all that runs at import, without bodies of functions, docstrings and constants.

    `calls` are the dotted names of what is called then, relative ones with their dots; `OWN` stands for anything that
    the file itself defines.
    """

    digest: str = ""
    calls: tuple[str, ...] = ()


NO_EFFECTS: Final = ImportEffects()


def effects_of(tree: ast.Module, imports: dict[str, str]) -> ImportEffects:
    """Those of a parsed file. `imports` are its names with what they were imported from."""
    digest = hashlib.sha256()
    calls: set[str] = set()
    for node in _executed(tree.body):
        digest.update(ast.dump(node).encode("utf-8", "surrogatepass") + b"\n")
        calls.update(_called(node, imports))
    return ImportEffects(digest.hexdigest(), tuple(sorted(calls)))


def _executed(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The parts of statements that are evaluated at import, in order."""
    pending: list[ast.AST] = list(reversed(list(body)))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _of_function(node)
        elif isinstance(node, (ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler)):
            yield ast.Name(getattr(node, "name", None) or type(node).__name__)
            inner: list[ast.AST] = []
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                    inner.append(child)
                elif isinstance(node, ast.ClassDef) and child in node.decorator_list:
                    yield _as_call(child)
                else:
                    yield child
            pending.extend(reversed(inner))
        elif not _is_constant(node):
            yield node


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    yield ast.Name(node.name)
    if node.name in _CALLED_AT_IMPORT:
        yield node
        return
    yield node.args
    for decorator in node.decorator_list:
        if not (isinstance(decorator, ast.Attribute) and decorator.attr in _OF_PROPERTIES):
            yield _as_call(decorator)


def _as_call(decorator: ast.AST) -> ast.AST:
    """What decorating does."""
    return ast.Call(decorator, [], []) if isinstance(decorator, ast.expr) else decorator


def _is_constant(statement: ast.AST) -> bool:
    """Whether it only gives a name of the file itself a value that is written there, or says something."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) for target in statement.targets) and _is_literal(statement.value)
    return isinstance(statement, ast.Pass)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _is_literal(key) for key in node.keys) and all(map(_is_literal, node.values))
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    return isinstance(node, ast.Constant)


def _called(node: ast.AST, imports: dict[str, str]) -> Iterator[str]:
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Call) or isinstance(inner.func, ast.Call):
            continue
        name = dotted_name(inner.func)
        root, _, rest = (name or "").partition(".")
        if root in imports:
            yield f"{imports[root]}.{rest}" if rest else imports[root]
        elif root not in _BUILTIN:
            yield OWN
