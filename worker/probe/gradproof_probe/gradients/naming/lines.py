"""The line of backward that makes one gradient: where the returned value was last assigned.

Read from the syntax tree of the source; nothing is run. What can't be followed (a helper, a starred tuple) ends at the
line that hands it over.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

# A gradient is handed from name to name (`grad = gx`, `return grad.t()` is not followed) only so often.
_HOPS: Final = 8


@dataclass(frozen=True, slots=True)
class _Assignment:
    line: int
    end: int
    value: ast.expr | None  # None: only part of the statement's value, or changed in place


def gradient_line(function: type, position: int, executed: AbstractSet[int] | None = None) -> tuple[str, int] | None:
    """File and line of what makes the gradient for forward's `position`-th argument (after ctx).

    `executed`: line numbers of backward that were run, if known: of several returns and branches, those count.
    None if there is no source.
    """
    read = _source(function)
    if read is None:
        return None
    filename, definition = read
    body = list(_own(definition))
    returned = _last_return(body, executed)
    if returned is None:
        return filename, definition.lineno
    return filename, _line(returned, position, body, executed)


def _source(function: type) -> tuple[str, ast.FunctionDef] | None:
    """Backward under its decorators, its nodes numbered as in the file."""
    backward: Any = inspect.getattr_static(function, "backward", None)
    if backward is None:
        backward = inspect.getattr_static(function, "vjp", None)
    backward = getattr(backward, "__func__", backward)
    try:
        backward = inspect.unwrap(backward)
        lines, start = inspect.getsourcelines(backward)
        filename = inspect.getsourcefile(backward)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if filename is None or not tree.body or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    ast.increment_lineno(tree, max(start, 1) - 1)
    return filename, tree.body[0]


def _own(definition: ast.FunctionDef) -> Iterator[ast.stmt]:
    """All statements in the order of the text, those of inner functions and classes left out."""
    waiting: list[ast.stmt] = list(reversed(definition.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner: list[ast.stmt] = []
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(statement, name, []):
                inner += child.body if isinstance(child, ast.ExceptHandler | ast.match_case) else [child]
        waiting += reversed(inner)


def _last_return(body: list[ast.stmt], executed: AbstractSet[int] | None) -> ast.Return | None:
    returns = [statement for statement in body if isinstance(statement, ast.Return)]
    if executed is not None:
        # A return that stretches over several lines counts as run if any of them was.
        run = [node for node in returns if executed & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))]
        returns = run or returns
    return returns[-1] if returns else None


def _line(returned: ast.Return, position: int, body: list[ast.stmt], executed: AbstractSet[int] | None) -> int:
    before = returned.lineno
    value: ast.expr | None = returned.value
    line = returned.lineno
    for _ in range(_HOPS):
        if isinstance(value, ast.Tuple | ast.List):
            element = _element(value, position)
            if element is None:
                return line
            value, line = element, element.lineno
            if isinstance(value, ast.Tuple | ast.List):
                return line
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in {"tuple", "list"}:
            value = value.args[0] if len(value.args) == 1 else None
        if not isinstance(value, ast.Name):
            return line
        found = _assignment(value.id, position, before, body, executed)
        if found is None:
            return line
        value, line, before = found.value, found.line, found.line
    return line


def _element(value: ast.Tuple | ast.List, position: int) -> ast.expr | None:
    """The element for this position; None if a star stands before it."""
    for place, element in enumerate(value.elts):
        if isinstance(element, ast.Starred):
            return None
        if place == position:
            return element
    return None


def _assignment(
    name: str, position: int, before: int, body: list[ast.stmt], executed: AbstractSet[int] | None
) -> _Assignment | None:
    """The last statement above `before` that gives `name` a value other than None, or writes into it."""
    found: list[_Assignment] = []
    for statement in body:
        if statement.lineno >= before:
            continue
        assignment = _gives(statement, name, position)
        if assignment is not None and not _is_none(assignment.value):
            found.append(assignment)
    if executed is not None:
        run = [item for item in found if executed & set(range(item.line, item.end + 1))]
        found = run or found
    return found[-1] if found else None


def _is_none(value: ast.expr | None) -> bool:
    """`gx = None` only says that there is none so far."""
    if isinstance(value, ast.Tuple | ast.List):
        return all(_is_none(element) for element in value.elts)
    return isinstance(value, ast.Constant) and value.value is None


def _gives(statement: ast.stmt, name: str, position: int) -> _Assignment | None:
    line, end = statement.lineno, statement.end_lineno or statement.lineno
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        if isinstance(statement.target, ast.Name) and statement.target.id == name:
            return _Assignment(line, end, statement.value)
    elif isinstance(statement, ast.AugAssign):
        changed = statement.target
        if (isinstance(changed, ast.Name) and changed.id == name) or _indexed(changed, name, position):
            return _Assignment(line, end, None)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            given = _target(target, statement.value, name, position)
            if given is not None:
                value, exact = given
                return _Assignment(value.lineno if exact and value is not None else line, end, value)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        # grad.mul_(2), grads.append(...): the value changes without an assignment.
        if (
            isinstance(method, ast.Attribute)
            and isinstance(method.value, ast.Name)
            and method.value.id == name
            and method.attr.endswith("_")
            and not method.attr.endswith("__")
        ):
            return _Assignment(line, end, None)
    return None


def _target(target: ast.expr, value: ast.expr, name: str, position: int) -> tuple[ast.expr | None, bool] | None:
    """What the target takes for `name`: the value, and whether its own line is the better one."""
    if isinstance(target, ast.Name):
        return (value, False) if target.id == name else None
    if isinstance(target, ast.Tuple | ast.List):
        for place, element in enumerate(target.elts):
            if isinstance(element, ast.Name) and element.id == name:
                if isinstance(value, ast.Tuple | ast.List) and place < len(value.elts):
                    return value.elts[place], True
                return None, False
        return None
    return (None, False) if _indexed(target, name, position) else None


def _indexed(target: ast.expr, name: str, position: int) -> bool:
    """`grads[1] = …` is about the gradient at 1, `gx[mask] = …` about all of gx."""
    if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name):
        return False
    index = target.slice
    if name.startswith("grads") and isinstance(index, ast.Constant) and isinstance(index.value, int):
        return index.value == position
    return True
