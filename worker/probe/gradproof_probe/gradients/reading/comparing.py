"""What a comparison, or a test for truth, says of the quantities in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import torch

from gradproof_probe.gradients.reading.clue import Operand, Relation
from gradproof_probe.gradients.reading.meanings import (
    ELEMENTS,
    UNKNOWN,
    Known,
    Many,
    Mask,
    Meaning,
    Quantity,
    Table,
    before,
    modulus,
)
from gradproof_probe.gradients.reading.notes import Notes

SIGNS: Final[dict[type[ast.cmpop], Relation]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "==",
    ast.IsNot: "!=",
}
_MIRRORED: Final[dict[Relation, Relation]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE: Final[dict[Relation, Relation]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
MOST_ALTERNATIVES: Final = 8
# Reductions after which a tensor's own smallest and largest are compared with each other.
_EXTREMES: Final = frozenset({"max", "min", "mean", "median"})


def compare(notes: Notes, left: Meaning, sign: Relation, right: Meaning, node: ast.AST) -> Meaning:
    """`left sign right`: notes what it tells, and says what it stands for."""
    if isinstance(left, Known) and isinstance(right, Known):
        notes.consulted(left, node)
        notes.consulted(right, node)
        return UNKNOWN
    if isinstance(left, Known | Many) and isinstance(right, Quantity | Mask):
        return compare(notes, right, _MIRRORED.get(sign, sign), left, node)
    if isinstance(left, Quantity):
        return _of_quantity(notes, left, sign, right, node)
    if isinstance(left, Many) and sign in {"==", "!="}:
        for one, other in zip(left.items, _items(right), strict=False):
            compare(notes, one, sign, other, node)
    elif isinstance(left, Mask):
        return left
    else:
        notes.consulted(left, node)
        notes.consulted(right, node)
    return UNKNOWN


def contained(notes: Notes, left: Meaning, right: Meaning, node: ast.AST) -> Meaning:
    """`left in right`."""
    if isinstance(right, Known) and right.origin is not None:
        notes.consulted(right, node)
    items = _items(right)[:MOST_ALTERNATIVES]
    # `x in ("a", "b")` has one sense for all of them together.
    for item in items:
        compare(notes, left, "==", item, node)
    return UNKNOWN


def truth(notes: Notes, meaning: Meaning, node: ast.AST) -> None:
    """`if meaning:`."""
    if isinstance(meaning, Known):
        notes.consulted(meaning, node)
    if not isinstance(meaning, Quantity):
        return
    divisor = modulus(meaning)
    if meaning.kind in {"size", "numel", "rank"} and meaning.steps and divisor is None:
        compare(notes, meaning, "!=", Known(0), node)
    elif divisor is not None and meaning.kind not in ELEMENTS:
        notes.about(meaning, node, number=divisor, relation="multiple", constant=0)
    elif meaning.kind in ELEMENTS:
        if meaning.detail:
            notes.about(meaning, node, number=0, relation="!=")
        elif meaning.kind == "value" and not meaning.derived:
            notes.clue("argument", node, argument=meaning.argument)


def whole(notes: Notes, mask: Mask) -> Meaning:
    """`.all()` of a comparison: it is asked of the whole tensor."""
    detail = ""
    number = mask.number
    if mask.relation == "==" and number is None:
        detail = ""
    elif mask.relation == "==":
        detail = {1.0: "all ones", 0.0: "all zeros"}.get(float(number or 0), "all equal")
    elif mask.relation in {">", ">="}:
        detail = "all above"
    elif mask.relation in {"<", "<="}:
        detail = "all below"
    if detail:
        notes.instead(mask.clues, detail=detail)
    notes.trail.extend(mask.clues)
    return Quantity(mask.of.kind, mask.of.argument, detail="", derived=True)


def negated(mask: Mask) -> Mask:
    return Mask(mask.of, _OPPOSITE.get(mask.relation, mask.relation), mask.number, mask.clues)


def same_values(notes: Notes, left: Meaning, right: Meaning, node: ast.AST) -> Meaning:
    """`torch.equal(left, right)`: `(left == right).all()`."""
    found = compare(notes, left, "==", right, node)
    return whole(notes, found) if isinstance(found, Mask) else found


def _of_quantity(notes: Notes, left: Quantity, sign: Relation, right: Meaning, node: ast.AST) -> Meaning:
    if isinstance(right, Mask):
        return right
    if left.kind == "requires_grad" and left.detail == "needs":
        notes.clue("requires_grad", node)
        return UNKNOWN
    if left.kind == "shape":
        _shapes(notes, left, sign, right, node)
        return UNKNOWN
    if isinstance(right, Known):
        return _with_constant(notes, left, sign, right, node)
    if isinstance(right, Many):
        return UNKNOWN
    if isinstance(right, Quantity):
        if left.kind in ELEMENTS and right.kind in ELEMENTS:
            return _tensors(notes, left, sign, right, node)
        if left.kind in ELEMENTS and (left.detail or left.derived) and right.kind in {"size", "numel"}:
            # A count, or a sum, and how many elements there are.
            notes.about(left, node, detail="count", relation=sign)
            return UNKNOWN
        if right.kind in ELEMENTS and (right.detail or right.derived) and left.kind in {"size", "numel"}:
            notes.about(right, node, detail="count", relation=sign)
            return UNKNOWN
        if right.kind == "value" and left.kind in {"size", "numel", "rank"}:
            # A size and an argument that is a number.
            notes.about(left, node, detail="argument", relation=sign, constant=_operand(left, right))
            return UNKNOWN
        if left.kind == "value" and right.kind in {"size", "numel", "rank"}:
            return _of_quantity(notes, right, _MIRRORED.get(sign, sign), left, node)
        if left.kind == right.kind:
            detail = "other" if left.kind in {"size", "numel", "rank", "dtype"} else ""
            notes.about(left, node, detail=detail, relation=sign, constant=_operand(left, right))
    return UNKNOWN


def _with_constant(notes: Notes, left: Quantity, sign: Relation, right: Known, node: ast.AST) -> Meaning:
    value = right.value
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 and not value.is_complex() and not value.requires_grad else None
        if value is None:
            return UNKNOWN
    if left.kind in {"flag", "count", "contiguous", "requires_grad", "stride"} and not isinstance(value, int | float):
        return UNKNOWN
    if isinstance(value, int | float) and not (isinstance(value, bool) and left.kind in ELEMENTS and left.argument):
        return _with_number(notes, left, sign, float(value), node)
    if left.kind == "dtype":
        notes.about(left, node, relation=sign, constant=str(value).removeprefix("torch."))
    elif left.kind == "cotangent" and value is None:
        notes.about(left, node, detail="missing", relation=sign)
    elif left.kind == "value" and (value is None or isinstance(value, str | bool | type)):
        notes.clue("argument", node, argument=left.argument, relation=sign, constant=value)
    return UNKNOWN


def _with_number(notes: Notes, left: Quantity, sign: Relation, number: float, node: ast.AST) -> Meaning:
    divisor = modulus(left)
    if divisor is not None:
        if left.kind in ELEMENTS:
            asked = notes.about(left, node, number=divisor, detail="multiple", relation="multiple")
            return Mask(left, sign, None, asked)
        remainder = int(number) if number == int(number) else 0
        notes.about(left, node, number=divisor, relation="multiple", constant=remainder)
        return UNKNOWN
    if left.kind in {"flag", "contiguous", "requires_grad"}:
        return UNKNOWN
    notes.has_role(Known(number))
    numbers = before(left.steps, number)
    if not numbers:
        # What was done to it can't be undone: the number itself is as good a guess as any.
        left = replace(left, steps=(), derived=True)
        numbers = [number]
    turned = sum(1 for name, operand in left.steps if name in {"neg", "rsub"} or (name == "mul" and operand < 0)) % 2
    relation = _MIRRORED.get(sign, sign) if turned else sign
    places: tuple[int, ...] = ()
    for item in numbers[:4]:
        places += notes.about(left, node, number=item, relation=relation)
    if left.kind in ELEMENTS and not left.detail:
        # After two roots (|x| == 1) the whole tensor isn't one number; but it may be.
        return Mask(left, relation, numbers[0], places[:1] or places)
    return UNKNOWN


def _tensors(notes: Notes, left: Quantity, sign: Relation, right: Quantity, node: ast.AST) -> Meaning:
    detail = "same tensor"
    if left.kind != right.kind:
        if left.kind == "value":
            left, right, sign = right, left, _MIRRORED.get(sign, sign)
        # An incoming gradient and an argument: if that is a number, it is a bound.
        places = notes.clue(
            "cotangent",
            node,
            detail="argument",
            argument=left.argument,
            relation=sign,
            constant=_operand(left, right),
        )
        return Mask(left, sign, None, places)
    if left.argument == right.argument:
        steps = {name for name, _ in (*left.steps, *right.steps)}
        if "sort" in steps or sign not in {"==", "!="}:
            detail = "sorted"
        elif steps & {"round", "floor", "ceil", "trunc", "int"}:
            detail = "rounded"
        elif steps & {"abs", "relu", "sign"}:
            detail = "all above"
        elif {left.detail, right.detail} & _EXTREMES or left.moved or right.moved:
            detail = "all equal"
        else:
            return UNKNOWN
    places = notes.clue(
        left.kind if left.kind == "cotangent" else "value",
        node,
        detail=detail,
        argument=left.argument,
        relation=sign,
        constant=_operand(left, right) if detail == "same tensor" else None,
    )
    return Mask(left, sign if detail == "same tensor" else "==", None, places)


def _operand(left: Quantity, right: Quantity) -> Operand:
    return Operand(right.argument, None if right.moved else right.axis, right.steps, left.steps)


def _shapes(notes: Notes, left: Quantity, sign: Relation, right: Meaning, node: ast.AST) -> None:
    start = left.axis or 0
    for axis, item in enumerate(_items(right)[:MOST_ALTERNATIVES]):
        size = Quantity("size", left.argument, axis=start + axis, moved=left.moved)
        compare(notes, size, sign, item, node)


def _items(meaning: Meaning) -> list[Meaning]:
    if isinstance(meaning, Many):
        return list(meaning.items)
    if isinstance(meaning, Table):
        return list(meaning.keys)
    if isinstance(meaning, Known) and isinstance(meaning.value, tuple | list | set | frozenset | dict):
        return [Known(item) for item in _plain(meaning.value)]
    return []


def _plain(values: Iterable[Any]) -> list[Any]:
    return [item for item in list(values)[:64] if isinstance(item, int | float | str | torch.dtype | type(None))]
