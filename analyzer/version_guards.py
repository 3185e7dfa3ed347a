"""Where a program says that it will cope with another torch: version tests, `hasattr`, `try`, annotations nobody reads.

This module must not know rules or which names exist.
"""

from __future__ import annotations

import ast
import re

from analyzer.context import FileContext
from analyzer.syntax import dotted_name

# A test of any of these kinds says that the author knows that the name may be absent.
_GUARD_WORDS = re.compile(
    r"version|hasattr|getattr|available|_exists|has_|torch_?\d|TYPE_CHECKING|is_torch|_gt_|_ge_", re.I
)
_CATCHING = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_ASKING = frozenset({"hasattr", "getattr", "setattr", "delattr", "patch", "find_spec", "import_module", "importorskip"})


def asked_names(file: FileContext) -> frozenset[str]:
    """Names that some call of the file asks for or sets by a string: `hasattr(torch, "rfft")`."""
    found: set[str] = set()
    for call in file.calls(*_ASKING):
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.update(argument.value.split("."))
    return frozenset(found)


def is_unread_annotation(file: FileContext, node: ast.AST) -> bool:
    """Whether the place is an annotation that Python does not evaluate (`from __future__ import annotations`)."""
    if "annotations" not in file.imports or file.imports["annotations"] != "__future__.annotations":
        return False
    child = node
    for outer in file.ancestors(node):
        if child is getattr(outer, "annotation", None) or child is getattr(outer, "returns", None):
            return True
        if isinstance(outer, ast.stmt):
            return False
        child = outer
    return False


def is_guarded(file: FileContext, node: ast.AST) -> bool:
    """Whether a condition or a handler around the place, or an earlier way out, shows that the name may be absent."""
    child = node
    for outer in file.ancestors(node):
        if _guards(outer, child) or _leaves_before(outer, child):
            return True
        child = outer
    return False


def _guards(outer: ast.AST, child: ast.AST) -> bool:
    found = False
    match outer:
        case ast.If() | ast.IfExp() | ast.While():
            found = _asks(outer.test)
        case ast.BoolOp():
            found = any(_asks(value) for value in outer.values if value is not child)
        case ast.Try():
            found = child in outer.body and any(_catches(handler) for handler in outer.handlers)
        case ast.ExceptHandler():
            found = _catches(outer)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            found = any(_asks(decorator) for decorator in outer.decorator_list)
        case ast.With() | ast.AsyncWith():
            found = any(_asks_to_fail(item) for item in outer.items)
    return found


def _asks(test: ast.AST) -> bool:
    return _GUARD_WORDS.search(ast.unparse(test)) is not None


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any((dotted_name(kind) or "").rpartition(".")[2] in _CATCHING for kind in kinds)


def _leaves_before(outer: ast.AST, child: ast.AST) -> bool:
    """`if torch_is_old: return …` (or raise), or `assert hasattr(torch, …)`, before the place in the same block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(outer, name, None)
        if isinstance(block, list) and child in block:
            return any(_is_way_out(statement) for statement in block[: block.index(child)])
    return False


def _is_way_out(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return _asks(statement.test)
    leaves = isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Return, ast.Raise))
    return leaves and _asks(statement.test)  # type: ignore[attr-defined]


def _asks_to_fail(item: ast.withitem) -> bool:
    text = ast.unparse(item.context_expr)
    return "raises" in text or "suppress" in text
