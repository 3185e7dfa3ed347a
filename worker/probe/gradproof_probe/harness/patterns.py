"""einops patterns and einsum equations as demands on forms: `b n (h d)`, `... d`, `bhid,bhjd->bhij`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gradproof_probe.harness.axes import Axis, Form
from gradproof_probe.harness.values import axis_of, form_of

ELLIPSIS: Final = "..."


def terms(side: str) -> list[list[str]]:
    """`b (h d) ...` as [["b"], ["h", "d"], ["..."]]."""
    return [item.strip("()").split() for item in re.findall(r"\([^)]*\)|\.\.\.|[\w*]+", side)]


def read_pattern(form: Form, side: str, names: dict[str, Axis]) -> None:
    """Demand the left side of a pattern of a form; `names` collects the axes by their names."""
    listed = terms(side)
    dots = listed.index([ELLIPSIS]) if [ELLIPSIS] in listed else None
    if dots is None:
        if not form.set_rank(len(listed)):
            return
        for index, term in enumerate(listed):
            _read_term(form.axis(index), term, names)
        return
    for index in range(dots):
        _read_term(form.axis(index), listed[index], names)
    for index in range(dots + 1, len(listed)):
        _read_term(form.axis(index - len(listed)), listed[index], names)


def _read_term(axis: Axis, term: list[str], names: dict[str, Axis]) -> None:
    if len(term) == 1 and not term[0].isdigit():
        axis.root().symbol = axis.root().symbol or term[0]
        named = names.setdefault(term[0], axis)
        named.join(axis)
        return
    parts = [Axis(int(name)) if name.isdigit() else names.setdefault(name, Axis(symbol=name)) for name in term]
    if not parts or all(name == "1" for name in term):
        axis.fix(1)
    elif not axis.root().parts:
        axis.root().parts = tuple(parts)


def write_pattern(side: str, names: dict[str, Axis]) -> Form:
    """The form that the right side of a pattern makes."""
    listed = terms(side)
    axes = [_write_term(term, names) for term in listed if term != [ELLIPSIS]]
    if [ELLIPSIS] not in listed:
        return Form.of(axes)
    dots = listed.index([ELLIPSIS])
    result = Form(least_rank=len(axes))
    result.axes = dict(enumerate(axes[:dots])) | {
        index - (len(axes) - dots): axis for index, axis in enumerate(axes[dots:])
    }
    return result


def _write_term(term: list[str], names: dict[str, Axis]) -> Axis:
    parts = [Axis(int(name)) if name.isdigit() else names.setdefault(name, Axis(symbol=name)) for name in term]
    if len(parts) == 1:
        return parts[0]
    axis = Axis(None if parts else 1)
    axis.parts = tuple(parts)
    return axis


def rearrange(value: Any, pattern: str, sizes: Mapping[str, Any]) -> Form | None:
    """What `rearrange`, `reduce` and `repeat` demand of their tensor, and the form that they give."""
    left, arrow, right = pattern.partition("->")
    form = form_of(value)
    if form is None or not arrow:
        return None
    names: dict[str, Axis] = {}
    for name, size in sizes.items():
        axis = axis_of(size)
        if axis is not None:
            names[name] = axis
    read_pattern(form, left, names)
    return write_pattern(right, names)


def einsum(equation: str, operands: Sequence[Any]) -> Form | None:
    """`bhid,bhjd->bhij`, also in the spaced spelling of einops."""
    left, arrow, right = equation.partition("->")
    names: dict[str, Axis] = {}
    spaced = " " in left.strip().replace(", ", ",")
    for operand, term in zip(operands, left.split(","), strict=False):
        form = form_of(operand)
        if form is not None:
            read_pattern(form, term if spaced else _spaced(term), names)
    return write_pattern(right if spaced else _spaced(right), names) if arrow else None


def pack(value: Any, pattern: str) -> Form | None:
    """einops' `pack([x], "* n d")`: the star takes all axes that the others leave, and becomes one."""
    form = form_of(value)
    if form is None or "*" not in pattern:
        return None
    names: dict[str, Axis] = {}
    read_pattern(form, pattern.replace("*", ELLIPSIS), names)
    return write_pattern(pattern.replace("*", "packed"), names)


def _spaced(term: str) -> str:
    return " ".join(re.findall(r"\.\.\.|\w", term))
