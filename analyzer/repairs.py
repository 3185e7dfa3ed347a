"""Texts and rewrites that several numerical rules propose: a floor under an operand, another function's name.

Everything is built from the author's own text, so that formatting inside the operands stays. This module must not
decide whether something is a finding, or whether a fix is wanted.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from analyzer.findings import FixSafety
from analyzer.formulas import operation_behind, square_of
from analyzer.rules.base import Replacement, Rewrite
from analyzer.singularities import Form, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Precision, Value
from analyzer.values.guards import value_names
from analyzer.values.operations import Operation

if TYPE_CHECKING:
    from analyzer.context import FileContext

# Squares of float32 numbers below 1e-19 are zero anyway, so that nothing above this floor is noise. float16 holds
# nothing below 6e-8, and 1 / 1e-5 overflows it.
_FLOOR = "1e-12"
_FLOOR_OF_LOW_PRECISION = "1e-4"


def floor_of(value: Value) -> str:
    """A number to keep a value above, as text."""
    return _FLOOR_OF_LOW_PRECISION if value.precision is Precision.HALF else _FLOOR


def clamped(file: FileContext, operand: ast.expr, floor: str) -> str:
    """`operand.clamp(min=floor)`."""
    return f"{file.operand_source(operand)}.clamp(min={floor})"


def floored(file: FileContext, operand: ast.expr, safety: FixSafety, *, floor: str | None = None) -> Rewrite:
    """Put the operand on a floor where it stands.

    A root in it gets the floor inside: outside, its own slope would still be infinite. A clamp at zero gets another
    bound.
    """
    root = _root_behind(file, operand)
    if root is not None:
        operand, safety = root, FixSafety.UNSAFE
    bound = floor if floor is not None else floor_of(file.values.value(operand))
    at_zero = _zero_bound(file, operand)
    if at_zero is not None:
        return Rewrite(FixSafety.UNSAFE, (Replacement(at_zero, bound),))
    return Rewrite(safety, (Replacement(operand, clamped(file, operand, bound)),))


def _zero_bound(file: FileContext, operand: ast.expr) -> ast.expr | None:
    """The `0` of `x.clamp(min=0)`."""
    operation = file.values.operation(operand) if isinstance(operand, ast.Call) else None
    if operation is None or operation.name.rstrip("_") not in ("clamp", "clip", "clamp_min"):
        return None
    bound = operation.argument(0, "min")
    return bound if isinstance(bound, ast.Constant) and bound.value == 0 else None


def _root_behind(file: FileContext, operand: ast.expr) -> ast.expr | None:
    """What the root is taken of through which the zero of an operand comes, if there is one in this function."""
    scope, origin = file.enclosing_function(operand), file.values.value(operand).origin
    if origin is None:
        return None
    behind = _computed_from(file, operand, origin)
    for singular in file.singularities.of(Form.ROOT):
        if (
            file.enclosing_function(singular.node) is not scope
            or file.values.value(singular.operand).origin is not origin
        ):
            continue
        if singular.node in behind or any(outer in behind for outer in file.ancestors(singular.node)):
            return singular.operand
    return None


def _computed_from(file: FileContext, operand: ast.expr, origin: ast.AST) -> set[ast.AST]:
    """The operand, and what the variables in it that carry the same zero were assigned."""
    found: set[ast.AST] = set()
    pending: list[ast.expr] = [operand]
    while pending:
        expression = pending.pop()
        if expression in found:
            continue
        found.add(expression)
        for _, node in value_names(expression):
            if file.values.value(node).origin is origin:
                pending.extend(b.value for b in file.values.definitions(node) if b.value is not None)
    return found


def substituted(file: FileContext, outer: ast.expr, replacements: Mapping[ast.expr, str]) -> str:
    """The text of `outer` with the texts of some of its parts replaced."""
    start = file.span(outer)
    lines = file.source(outer).split("\n")
    places = sorted(replacements, key=lambda node: (node.lineno, node.col_offset), reverse=True)
    for node in places:
        region = file.span(node)
        first, last = region.start_line - start.start_line, region.end_line - start.start_line
        begin = region.start_column - (start.start_column if first == 0 else 1)
        end = region.end_column - (start.start_column if last == 0 else 1)
        head, tail = lines[first][:begin], lines[last][end:]
        lines[first : last + 1] = (head + replacements[node] + tail).split("\n")
    return "\n".join(lines)


def renamed(file: FileContext, call: ast.Call, name: str) -> str | None:
    """The call with another function of the same module, or another method of the same tensor, in its place.

    None for a function that was imported by its bare name.
    """
    function = call.func
    if not isinstance(function, ast.Attribute):
        return None
    text = file.source(call)
    callee = file.source(function)
    return callee[: -len(function.attr)] + name + text[len(callee) :]


def arguments_text(file: FileContext, operation: Operation, *, skip: Iterable[str] = ()) -> list[str]:
    """The arguments after the operand as they were written, without the keywords in `skip`."""
    left_out = {*skip, "input", "x", "self"}
    texts = [file.source(argument) for argument in operation.arguments]
    texts.extend(
        f"{keyword.arg}={file.source(keyword.value)}"
        for keyword in operation.call.keywords
        if keyword.arg is not None and keyword.arg not in left_out
    )
    return texts


def has_plain_arguments(operation: Operation) -> bool:
    """Whether a call has no `*args` and no `**options`, whose contents can't be moved elsewhere."""
    return not any(isinstance(argument, ast.Starred) for argument in operation.call.args) and all(
        keyword.arg is not None for keyword in operation.call.keywords
    )


def reduced_dimension(operation: Operation) -> tuple[ast.expr | None, bool]:
    """(the `dim` of a reduction, whether it keeps it)."""
    dimension = operation.argument(0, "dim", "axis")
    keep = operation.argument(1, "keepdim", "keepdims")
    return dimension, isinstance(keep, ast.Constant) and keep.value is True


def vector_norm(file: FileContext, singular: Singular) -> Rewrite | None:
    """`torch.linalg.vector_norm` for a root of a sum of squares, which has a slope of zero at zero (measured)."""
    spelled = file.spelling("torch.linalg.vector_norm")
    call = singular.operand
    if spelled is None or not isinstance(call, ast.Call) or not isinstance(singular.node, ast.expr):
        return None
    operation = file.values.operation(call)
    if operation is None or operation.operand is None or operation.name != "sum" or not has_plain_arguments(operation):
        return None
    inner = square_of(file, operation.operand)
    if inner is None or any(keyword.arg not in ("dim", "axis", "keepdim", "input") for keyword in call.keywords):
        return None
    texts = [file.source(inner)]
    for position, argument in enumerate(operation.arguments[:2]):
        texts.append(f"{('dim', 'keepdim')[position]}={file.source(argument)}")
    names = {"axis": "dim"}
    texts.extend(
        f"{names.get(keyword.arg or '', keyword.arg or '')}={file.source(keyword.value)}"
        for keyword in call.keywords
        if keyword.arg != "input"
    )
    return Rewrite(FixSafety.SAFE, (Replacement(singular.node, f"{spelled}({', '.join(texts)})"),))


def deviation(file: FileContext, singular: Singular) -> Rewrite | None:
    """`x.std(...)` for the root of `x.var(...)`: the same number, with a slope of zero at zero (measured)."""
    call = singular.operand
    if not isinstance(call, ast.Call) or not isinstance(singular.node, ast.expr) or terminal_name(call.func) != "var":
        return None
    operation = operation_behind(file, call, "var")
    text = renamed(file, call, "std") if operation is not None else None
    return Rewrite(FixSafety.SAFE, (Replacement(singular.node, text),)) if text is not None else None


def clamped_between(file: FileContext, operand: ast.expr, low: float, high: float, margin: str) -> str:
    """The operand, kept away from both edges by a margin; an edge at infinity needs none."""
    text = file.operand_source(operand)
    lower = f"{low:g} + {margin}" if low else margin
    if math.isinf(high):
        return f"{text}.clamp(min={lower})"
    return f"{text}.clamp({lower}, {high:g} - {margin})"
