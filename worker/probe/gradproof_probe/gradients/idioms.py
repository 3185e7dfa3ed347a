"""What the source around a cut says: idioms by which authors stop, replace or approximate a gradient on purpose.

Only ever read together with a run that shows the cut to be the cause; words alone prove nothing.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gradproof_probe.gradients.attribution import Place

_WORDS: Final = re.compile(
    r"straight[ _-]?through|(?<![a-z])ste(?![a-z])|stop[ _-]?grad(ient)?s?|surrogate|gumbel|"
    r"no[ _-]grad(ient)?s? (to|through|flow)|reinforce|(?<![a-z])ema(?![a-z])|moving[ _]average|momentum|"
    r"codebook|commit(ment)?|quanti[sz]|binari|"
    r"detach(ed|es)?[ _](the|from|target|weight|grad)|don'?t (back-?prop|propagate|track)|without (gradient|grad)|"
    r"not (back-?propagat|differentiat)|teacher|target network|power iteration|straight_?through|fixed[ _]point|"
    r"control[ _]variate|baseline|random[ _]projection|no need (for|of) grad",
    re.IGNORECASE,
)
# Names of values that are constants of a loss by convention.
_NAMES: Final = re.compile(
    r"target|teacher|label|^gt|ground_?truth|ema|momentum|weight|coef|scale|factor|temperature|mask|ind(ex|ices)|"
    r"baseline|reward|codebook|codes?$|embed(dings?)?$|centroid|cluster|count|stat|norm_?const|"
    r"running|threshold|alpha|noise",
    re.IGNORECASE,
)
_STEPS: Final = frozenset(
    {"round", "floor", "ceil", "sign", "argmax", "argmin", "topk", "one_hot", "scatter", "scatter_", "heaviside", "gt"}
)
_BEFORE: Final = 3  # lines of comments above the statement that are taken to speak of it


def idiom(place: Place | None, source_root: Path) -> str | None:
    """A sentence on what the source at this line says; None if nothing speaks of intent."""
    if place is None:
        return None
    path = source_root / place.path
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    lines = text.splitlines()
    owner, statement = _around(tree, place.line)
    if statement is not None:
        found = _straight_through(statement)
        if found is not None:
            return f"line {statement.lineno} reads {found}"
    spoken = _spoken(path, lines, place.line, statement, owner)
    if spoken is not None:
        return f"its source speaks of {spoken!r}"
    name = _assigned(statement)
    if name is not None:
        return f"what is cut is called {name!r}, a constant by convention"
    steps = _steps(owner)
    if steps is not None:
        return f"{steps} in the same function has no useful derivative"
    return None


def _around(tree: ast.AST, line: int) -> tuple[ast.AST | None, ast.stmt | None]:
    """The innermost function or class, and the innermost simple statement, that hold the line."""
    owner: ast.AST | None = None
    statement: ast.stmt | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            owner = node
        elif statement is None or node.lineno >= statement.lineno:
            statement = node
    return owner, statement


def _straight_through(statement: ast.stmt) -> str | None:
    """`x + (q - x).detach()`, `(q - x).detach() + x`, `q + x - x.detach()`."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
            continue
        text = ast.unparse(node)
        for cut in _detached(node):
            inner = cut.func.value if isinstance(cut.func, ast.Attribute) else None
            if inner is None:
                continue
            outside = text.replace(ast.unparse(cut), "")
            operands = [inner.left, inner.right] if isinstance(inner, ast.BinOp) else [inner]
            if any(_mentions(outside, ast.unparse(operand)) for operand in operands):
                return f"`{text[:80]}`, the straight-through idiom"
    return None


def _detached(node: ast.AST) -> Iterator[ast.Call]:
    for item in ast.walk(node):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr == "detach":
            yield item


def _mentions(text: str, operand: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(operand)}(?![\w.])", text) is not None


def _spoken(path: Path, lines: list[str], line: int, statement: ast.stmt | None, owner: ast.AST | None) -> str | None:
    """A word of intent in the statement's own lines, in comments right above, or in the function's name and its doc."""
    first = min(statement.lineno, line) if statement is not None else line
    last = max(first, line)
    texts = ["\n".join(lines[first - 1 : last])]
    texts += [comment for number, comment in _comments(path) if first - _BEFORE <= number <= last]
    if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
        texts += [owner.name, ast.get_docstring(owner) or ""]
    for text in texts:
        match = _WORDS.search(text)
        if match:
            return match[0].strip()
    return None


def _comments(path: Path) -> list[tuple[int, str]]:
    try:
        with path.open("rb") as stream:
            return [
                (token.start[0], token.string)
                for token in tokenize.tokenize(stream.readline)
                if token.type == tokenize.COMMENT
            ]
    except (OSError, tokenize.TokenError, SyntaxError, IndentationError):
        return []


def _assigned(statement: ast.stmt | None) -> str | None:
    """The name of what is cut: `target.detach()`, `weight = f(x).detach()`, `with no_grad(): weight = …`."""
    if statement is None:
        return None
    for cut in _detached(statement):
        inner = cut.func.value if isinstance(cut.func, ast.Attribute) else None
        name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", None)
        if name and _NAMES.search(name):
            return str(name)
    inside = [statement] if not isinstance(statement, ast.With) else statement.body
    for item in inside:
        if not isinstance(item, ast.Assign):
            continue
        if item is statement and not any(True for _ in _detached(item.value)):
            continue
        for target in item.targets:
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", None)
            if name and _NAMES.search(name):
                return str(name)
    return None


def _steps(owner: ast.AST | None) -> str | None:
    if owner is None:
        return None
    for node in ast.walk(owner):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if name in _STEPS:
                return f"`{name}`"
    return None
