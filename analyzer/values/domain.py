"""The abstract values of the analysis, and arithmetic on them.

A value is an interval with open or closed ends, a kind, whether a gradient can flow through it, and, if it can be
exactly zero, how plausible that is and why. Unknown means unknown: rules speak only when there is evidence, because
nearly every tensor could be zero and nearly no report of that is worth reading. This module must not know syntax
beyond holding the node a value came from.
"""

from __future__ import annotations

import ast
import math
import struct
from dataclasses import dataclass, replace
from enum import Enum, IntEnum


class Kind(Enum):
    """What sort of thing a value is."""

    TENSOR = "tensor"
    INTEGER_TENSOR = "integer tensor"
    BOOLEAN_TENSOR = "boolean tensor"
    NUMBER = "number"
    ARRAY = "array"
    OTHER = "other"
    UNKNOWN = "unknown"


class Gradient(Enum):
    """Whether a gradient flows through a value."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Precision(Enum):
    """The floating-point type of a tensor, where the source says it; UNKNOWN says nothing about it."""

    UNKNOWN = "unknown"
    HALF = "float16"
    BFLOAT16 = "bfloat16"
    SINGLE = "float32"
    DOUBLE = "float64"

    @property
    def is_low(self) -> bool:
        """Whether it is one of the 16-bit types."""
        return self in (Precision.HALF, Precision.BFLOAT16)


class Zero(IntEnum):
    """How plausible it is that a value is exactly zero.

    CERTAIN_ORIGIN: an operation made it that yields zero for inputs that occur in practice (the norm of a padding row,
    the sum of a mask, a clamp at zero). ROUNDED: positive on paper, zero in floating point (softmax, sigmoid).
    CONCEIVABLE: nothing forbids it, nothing suggests it more than for any other tensor. UNKNOWN: nothing is known.
    EXCLUDED: it can't be.
    """

    EXCLUDED = 0
    UNKNOWN = 1
    CONCEIVABLE = 2
    ROUNDED = 3
    CERTAIN_ORIGIN = 4


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of an expression.

    `low` and `high` bound every element; an open end is never reached. `zero_because` completes the sentence "it is
    zero …"; `origin` is the node that brought the zero about. `reaches_high`: the upper bound is attained in practice
    (a probability rounds to 1, a clamp stops there), so that the bound minus the value is zero. `mask` marks
    selections and counts of them, `parameter` a trained parameter itself. `screened`: a selection before this (a double
    `where`, an index by a mask) kept unwanted places away, so that zero is no more likely than for anything else.
    `precision` is the floating-point type, where a cast, a `dtype=` or an autocast region fixes it.
    """

    kind: Kind = Kind.UNKNOWN
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    gradient: Gradient = Gradient.UNKNOWN
    zero: Zero = Zero.UNKNOWN
    zero_because: str = ""
    origin: ast.AST | None = None
    reaches_high: bool = False
    screened: bool = False
    mask: bool = False
    parameter: bool = False
    precision: Precision = Precision.UNKNOWN

    @property
    def positive(self) -> bool:
        return self.low > 0 or (self.low == 0 and self.low_open)

    @property
    def non_negative(self) -> bool:
        return self.low >= 0

    @property
    def negative(self) -> bool:
        return self.high < 0 or (self.high == 0 and self.high_open)

    @property
    def is_number(self) -> bool:
        """A Python or NumPy value: no tensor, so no graph."""
        return self.kind in (Kind.NUMBER, Kind.ARRAY)

    @property
    def is_discrete(self) -> bool:
        return self.kind in (Kind.INTEGER_TENSOR, Kind.BOOLEAN_TENSOR)

    @property
    def constant(self) -> float | None:
        """The number that every element is, if it is known."""
        return self.low if self.low == self.high and not self.low_open and not math.isinf(self.low) else None

    def settled(self) -> Value:
        """The same with `zero` made to agree with the bounds."""
        if (self.positive or self.negative) and self.zero is not Zero.ROUNDED:
            return replace(self, zero=Zero.EXCLUDED, zero_because="", origin=None)
        return self

    def without_zero(self) -> Value:
        """The same after a guard that keeps zero away."""
        low_open = self.low_open or self.low == 0
        return replace(self, zero=Zero.EXCLUDED, zero_because="", origin=None, low_open=low_open)


UNKNOWN = Value()
UNKNOWN_TENSOR = Value(kind=Kind.TENSOR)
SOME_NUMBER = Value(kind=Kind.NUMBER, gradient=Gradient.NO)
SIZE = Value(kind=Kind.NUMBER, low=0.0, gradient=Gradient.NO)
OTHER = Value(kind=Kind.OTHER, gradient=Gradient.NO)


def number(value: float) -> Value:
    """A literal."""
    zero = Zero.CERTAIN_ORIGIN if value == 0 else Zero.EXCLUDED
    return Value(Kind.NUMBER, value, value, gradient=Gradient.NO, zero=zero, zero_because="as a literal")


def rounded(value: float, precision: Precision = Precision.SINGLE) -> float:
    """The nearest number that a tensor can hold: `1 - 1e-8` is 1 to a float32 tensor, 1e-8 is 0 to a float16 one.

    An unknown precision counts as float32.
    """
    if precision is Precision.DOUBLE or math.isinf(value):
        return value
    if precision is Precision.BFLOAT16:
        return _rounded_to_bfloat16(value)
    try:
        form = "e" if precision is Precision.HALF else "f"
        return float(struct.unpack(form, struct.pack(form, value))[0])
    except (OverflowError, struct.error):
        return value


def _rounded_to_bfloat16(value: float) -> float:
    """Eight significant bits; the range is that of float32."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def join(values: list[Value]) -> Value:
    """What is known when any of the values may be meant."""
    if not values:
        return UNKNOWN
    if len(values) == 1:
        return values[0]
    low = min(value.low for value in values)
    high = max(value.high for value in values)
    # What starts as zero is there to be filled: among other definitions it is no evidence.
    worst = max(values, key=lambda value: min(value.zero, Zero.CONCEIVABLE) if value.constant == 0 else value.zero)
    return Value(
        kind=_joined_kind(values),
        low=low,
        high=high,
        low_open=all(value.low_open for value in values if value.low == low),
        high_open=all(value.high_open for value in values if value.high == high),
        gradient=combined_gradient(values),
        zero=min(worst.zero, Zero.CONCEIVABLE) if worst.constant == 0 else worst.zero,
        zero_because=worst.zero_because,
        origin=worst.origin,
        screened=any(value.screened for value in values),
        reaches_high=any(value.reaches_high for value in values if value.high == high),
        mask=any(value.mask for value in values),
        parameter=any(value.parameter for value in values),
        precision=_joined_precision(values),
    )


def _joined_precision(values: list[Value]) -> Precision:
    """What all tensors among the alternatives agree on; a Python number takes the type of what it meets."""
    found = {value.precision for value in values if not value.is_number}
    return found.pop() if len(found) == 1 else Precision.UNKNOWN


def promoted(left: Value, right: Value) -> Precision:
    """The type of an arithmetic result: a Python number does not widen a tensor (measured: half + 1e-3 is half)."""
    if left.is_number:
        return right.precision
    if right.is_number or left.precision is right.precision:
        return left.precision
    both = {left.precision, right.precision}
    if Precision.UNKNOWN in both:
        return Precision.UNKNOWN
    return Precision.DOUBLE if Precision.DOUBLE in both else Precision.SINGLE


def _joined_kind(values: list[Value]) -> Kind:
    kinds = {value.kind for value in values}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= {Kind.TENSOR, Kind.INTEGER_TENSOR, Kind.BOOLEAN_TENSOR}:
        return Kind.TENSOR
    return Kind.UNKNOWN


def combined_gradient(values: list[Value]) -> Gradient:
    """Whether a gradient flows through something computed from these."""
    if any(value.gradient is Gradient.YES for value in values):
        return Gradient.YES
    if all(value.gradient is Gradient.NO for value in values):
        return Gradient.NO
    return Gradient.UNKNOWN


def combined_kind(left: Value, right: Value) -> Kind:
    """The kind of an arithmetic result."""
    kinds = (left.kind, right.kind)
    if Kind.TENSOR in kinds:
        return Kind.TENSOR
    if Kind.UNKNOWN in kinds:
        tensors = {Kind.INTEGER_TENSOR, Kind.BOOLEAN_TENSOR}
        return Kind.TENSOR if tensors & set(kinds) else Kind.UNKNOWN
    if Kind.ARRAY in kinds:
        return Kind.ARRAY
    if Kind.INTEGER_TENSOR in kinds or Kind.BOOLEAN_TENSOR in kinds:
        return Kind.INTEGER_TENSOR
    return Kind.NUMBER if kinds == (Kind.NUMBER, Kind.NUMBER) else Kind.OTHER


def _arithmetic(left: Value, right: Value) -> Value:
    return Value(
        kind=combined_kind(left, right),
        gradient=combined_gradient([left, right]),
        precision=promoted(left, right),
    )


def add(left: Value, right: Value) -> Value:
    """The sum. Of two non-negative values it is zero only where both are."""
    result = replace(
        _arithmetic(left, right),
        low=left.low + right.low if not math.isinf(left.low + right.low) else -math.inf,
        high=left.high + right.high if not math.isinf(left.high + right.high) else math.inf,
        low_open=left.low_open or right.low_open,
        high_open=left.high_open or right.high_open,
    )
    if left.constant == 0:
        return replace(right, kind=result.kind, precision=result.precision)
    if right.constant == 0:
        return replace(left, kind=result.kind, precision=result.precision)
    if left.non_negative and right.non_negative:
        weaker = min(left, right, key=lambda value: value.zero)
        # `d + (d == 0) * eps`: whoever adds a mask to something means to keep it away from zero.
        masked = left.mask is not right.mask
        result = replace(
            result,
            zero=min(weaker.zero, Zero.UNKNOWN) if masked else weaker.zero,
            zero_because="when both terms are zero",
            origin=weaker.origin,
            screened=left.screened or right.screened,
            mask=weaker.mask,
        )
    elif left.is_number or right.is_number:
        # A shift by a constant: zero takes an exact coincidence.
        result = replace(result, screened=True)
    return result.settled()


def negate(value: Value) -> Value:
    return replace(value, low=-value.high, high=-value.low, low_open=value.high_open, high_open=value.low_open)


def subtract(left: Value, right: Value, *, node: ast.AST | None = None) -> Value:
    """The difference. One minus something that rounds to one is zero there."""
    result = add(left, negate(right))
    if result.constant is not None or (left.is_number and right.is_number):
        return result
    if left.constant is not None and right.high == left.constant and not right.high_open and right.low >= 0:
        zero = Zero.ROUNDED if right.reaches_high else Zero.CONCEIVABLE
        return replace(
            result,
            zero=Zero.CERTAIN_ORIGIN if right.mask else zero,
            reaches_high=right.zero in (Zero.ROUNDED, Zero.CERTAIN_ORIGIN),
            zero_because=f"where what is subtracted reaches {left.constant:g}",
            origin=node,
            mask=right.mask,
        )
    return replace(result, zero=min(result.zero, Zero.CONCEIVABLE)).settled()


def multiply(left: Value, right: Value) -> Value:
    """The product. It is zero where either factor is."""
    result = _arithmetic(left, right)
    corners = [_times(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    low, high = min(corners), max(corners)
    low_open = low == 0 and left.positive and right.positive
    worst = max(left, right, key=lambda value: value.zero)
    return replace(
        result,
        low=low,
        high=high,
        low_open=low_open,
        high_open=(left.high_open or right.high_open) and high not in (0, math.inf),
        zero=worst.zero,
        zero_because=worst.zero_because,
        origin=worst.origin,
        mask=(left.mask or left.is_number) and (right.mask or right.is_number),
    ).settled()


def _times(left: float, right: float) -> float:
    return 0.0 if left == 0 or right == 0 else left * right


def divide(left: Value, right: Value) -> Value:
    """The quotient, as far as its sign is concerned. It is zero where the numerator is."""
    result = _arithmetic(left, right)
    if left.constant is not None and right.constant:
        quotient = left.constant / right.constant
        zero = Zero.CERTAIN_ORIGIN if quotient == 0 else Zero.EXCLUDED
        return replace(result, low=quotient, high=quotient, zero=zero)
    carried = replace(
        result, zero=left.zero, zero_because=left.zero_because, origin=left.origin, mask=left.mask and right.is_number
    )
    if right.constant:
        scaled = multiply(left, number(1.0 / right.constant))
        return replace(carried, low=scaled.low, high=scaled.high, low_open=scaled.low_open, high_open=scaled.high_open)
    if left.non_negative and right.non_negative:
        return replace(carried, low=0.0, low_open=left.positive).settled()
    return replace(carried, zero=min(left.zero, Zero.CONCEIVABLE) if not left.non_negative else left.zero)


def power(base: Value, exponent: Value, *, node: ast.AST | None = None) -> Value:
    """`base ** exponent`."""
    result = _arithmetic(base, exponent)
    if base.positive:
        return replace(result, low=0.0, low_open=True, zero=Zero.EXCLUDED)
    constant = exponent.constant
    if constant is None:
        return _power_of_setting(base, exponent, result)
    if constant == 0:
        return replace(result, low=1.0, high=1.0, zero=Zero.EXCLUDED)
    if constant > 0 and (base.non_negative or (constant.is_integer() and int(constant) % 2 == 0)):
        even = squared(base, node=node)
        return replace(even, kind=result.kind, gradient=result.gradient, precision=result.precision)
    return result


def _power_of_setting(base: Value, exponent: Value, result: Value) -> Value:
    """A power with an exponent of which only the sign may be known: zero stays zero for a positive number."""
    if not base.non_negative:
        return result
    if not exponent.is_number or exponent.low < 0:
        return replace(result, low=0.0)
    return replace(result, low=0.0, zero=base.zero, zero_because=base.zero_because, origin=base.origin)


def squared(base: Value, *, node: ast.AST | None = None) -> Value:
    """An even power: never negative, and zero where the base is."""
    if base.kind is Kind.NUMBER and base.constant is None:
        # A setting: zero is possible, and its author's business.
        return Value(Kind.NUMBER, 0.0, low_open=True, gradient=Gradient.NO, zero=Zero.EXCLUDED)
    zero = max(base.zero, Zero.CONCEIVABLE) if base.zero is not Zero.EXCLUDED else Zero.EXCLUDED
    reach = max(abs(base.low), abs(base.high))
    return Value(
        kind=base.kind,
        low=0.0,
        high=reach * reach if not math.isinf(reach) else math.inf,
        low_open=base.positive or base.negative,
        gradient=base.gradient,
        zero=zero,
        zero_because=base.zero_because or "where its base is zero",
        origin=base.origin or node,
        reaches_high=base.reaches_high and abs(base.high) == reach,
        screened=base.screened,
        mask=base.mask,
        precision=base.precision,
    ).settled()
