"""What torch's operations do to a range: one small function an operation, in a table by name.

Ranges and zeros are those measured on torch 2.13 (norms, deviations and distances are exactly 0 for zero or equal
inputs; softmax and sigmoid underflow to 0 and round to 1). This module must not know where names come from.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from analyzer.syntax import terminal_name
from analyzer.values.domain import (
    SIZE,
    SOME_NUMBER,
    UNKNOWN,
    Gradient,
    Kind,
    Precision,
    Value,
    Zero,
    add,
    combined_gradient,
    divide,
    join,
    multiply,
    negate,
    number,
    power,
    rounded,
    squared,
    subtract,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a torch function or tensor method, written either way: `torch.sum(x, dim=1)` or `x.sum(dim=1)`."""

    name: str
    call: ast.Call
    operand: ast.expr | None
    arguments: tuple[ast.expr, ...]
    qualified: str

    def argument(self, position: int, *keywords: str) -> ast.expr | None:
        """The argument after the operand at `position` (0 is the first), or under one of the keywords."""
        if position < len(self.arguments):
            return self.arguments[position]
        for keyword in self.call.keywords:
            if keyword.arg in keywords:
                return keyword.value
        return None


class Reader(Protocol):
    """How an operation asks for the values of its arguments."""

    def value(self, expression: ast.expr) -> Value: ...

    def precision(self, expression: ast.expr) -> Precision: ...


_Transfer = Callable[[Operation, Value, Reader], Value]


def evaluate_operation(operation: Operation, reader: Reader) -> Value | None:
    """The value of an operation; None when the table does not know it."""
    name = operation.name
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    transfer = _TABLE.get(name)
    if transfer is None:
        return None
    operand = reader.value(operation.operand) if operation.operand is not None else UNKNOWN
    if operand.is_number and not operation.qualified.startswith("torch"):
        # A method of an array or a Python number: none of a tensor's business.
        return SOME_NUMBER if operand.kind is Kind.NUMBER else Value(kind=Kind.ARRAY, gradient=Gradient.NO)
    result = transfer(operation, operand, reader)
    precision = _precision_of(operation, name, operand, result, reader)
    return result if precision is result.precision else replace(result, precision=precision)


def _precision_of(operation: Operation, name: str, operand: Value, result: Value, reader: Reader) -> Precision:
    """The floating-point type of a result: a cast or `dtype=` decides, everything else keeps that of its operand."""
    if result.is_number or result.is_discrete:
        return Precision.UNKNOWN
    if name in _CASTS:
        return _CASTS[name]
    asked = next((keyword.value for keyword in operation.call.keywords if keyword.arg == "dtype"), None)
    if name in _CONVERSIONS and asked is None:
        asked = next((argument for argument in operation.arguments[:2] if not _is_device(argument)), None)
    if asked is not None:
        return reader.precision(asked)
    if name in _NOT_OF_OPERAND:
        return result.precision
    return operand.precision


def _is_device(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Constant):
        return isinstance(expression.value, str)
    return "device" in (terminal_name(expression) or "").lower() or "cuda" in ast.dump(expression)


_CASTS = {
    "half": Precision.HALF,
    "bfloat16": Precision.BFLOAT16,
    "float": Precision.SINGLE,
    "double": Precision.DOUBLE,
}
_CONVERSIONS = frozenset({"to", "type", "type_as"})
# Their type comes from both sides, from all parts, or from a default that the file does not show.
_NOT_OF_OPERAND = frozenset(
    {
        *("zeros", "ones", "full", "rand", "randn", "empty", "eye", "linspace", "logspace", "tensor", "scalar_tensor"),
        *("from_numpy", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "where"),
        *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "maximum", "minimum"),
    }
)


def _tensor(operand: Value, **known: object) -> Value:
    kind = known.pop("kind", Kind.TENSOR)
    return Value(kind=kind, gradient=operand.gradient, mask=operand.mask, parameter=operand.parameter, **known)  # type: ignore[arg-type]


# --- the same elements -----------------------------------------------------------------------------------------------


def _same(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return operand if operand.kind is not Kind.UNKNOWN else replace(operand, kind=Kind.TENSOR)


def _as_float(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return replace(operand, kind=Kind.TENSOR)


def _as_integer(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return replace(operand, kind=Kind.INTEGER_TENSOR, gradient=Gradient.NO)


def _detached(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return replace(operand, kind=Kind.TENSOR, gradient=Gradient.NO)


def _as_number(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return replace(operand, kind=Kind.NUMBER, gradient=Gradient.NO)


def _size(_operation: Operation, _operand: Value, _reader: Reader) -> Value:
    return SIZE


def _unknown(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(operand)


def _joined(operation: Operation, _operand: Value, reader: Reader) -> Value:
    """`cat` and `stack`: any element of any part."""
    parts = operation.operand
    if isinstance(parts, (ast.List, ast.Tuple)) and parts.elts:
        return replace(join([reader.value(part) for part in parts.elts]), kind=Kind.TENSOR)
    return Value(kind=Kind.TENSOR)


# --- reductions ------------------------------------------------------------------------------------------------------


def _norm(operation: Operation, operand: Value, _reader: Reader) -> Value:
    if operand.positive or operand.zero is Zero.ROUNDED:
        return _tensor(operand, low=0.0, low_open=True, zero=Zero.EXCLUDED)
    return _tensor(
        operand,
        low=0.0,
        zero=Zero.CONCEIVABLE if operand.screened else Zero.CERTAIN_ORIGIN,
        zero_because="for a vector of zeros",
        origin=operation.call,
    )


def _distance(operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(
        operand, low=0.0, zero=Zero.CERTAIN_ORIGIN, zero_because="for two equal points", origin=operation.call
    )


def _loss(operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(
        operand, low=0.0, zero=Zero.CERTAIN_ORIGIN, zero_because="for a perfect prediction", origin=operation.call
    )


def _deviation(operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(operand, low=0.0, zero=Zero.CERTAIN_ORIGIN, zero_because="for constant input", origin=operation.call)


def _sum(operation: Operation, operand: Value, _reader: Reader) -> Value:
    origin = operation.call
    kind = Kind.INTEGER_TENSOR if operand.is_discrete else Kind.TENSOR
    result = Value(kind=kind, gradient=operand.gradient, mask=operand.mask, parameter=operand.parameter)
    if operand.positive or (operand.non_negative and operand.zero is Zero.ROUNDED):
        # A sum of exponentials or of softmax weights: some term is always above zero.
        return replace(result, low=0.0, low_open=True, zero=Zero.EXCLUDED)
    if operand.non_negative:
        selected = operand.mask
        because = "when nothing is selected" if selected else "when all its terms are zero"
        zero = Zero.CERTAIN_ORIGIN if operand.zero >= Zero.CONCEIVABLE else operand.zero
        if operand.screened or _is_scattered(operand.origin):
            zero = min(zero, Zero.CONCEIVABLE)
        return replace(result, low=0.0, zero=zero, zero_because=because, origin=origin)
    if operand.mask:
        return replace(
            result, low=0.0, zero=Zero.CERTAIN_ORIGIN, zero_because="when nothing is selected", origin=origin
        )
    return replace(result, zero=Zero.CONCEIVABLE, zero_because="when its terms cancel", origin=origin)


def _is_scattered(origin: ast.AST | None) -> bool:
    """Whether zeros are the places that no index names: their sum is not zero for that."""
    return isinstance(origin, ast.Call) and (terminal_name(origin.func) or "").rstrip("_") in (
        "index_add",
        "scatter_add",
    )


def _mean(operation: Operation, operand: Value, reader: Reader) -> Value:
    result = _sum(operation, operand, reader)
    return replace(result, kind=Kind.TENSOR, low=operand.low, high=operand.high, low_open=operand.positive).settled()


def _extreme(operation: Operation, operand: Value, reader: Reader) -> Value:
    """`max` and `min`: of one tensor, or of two element by element."""
    other = operation.argument(0, "other") if not operation.name.startswith("am") else None
    is_largest = "max" in operation.name
    if other is not None:
        other_value = reader.value(other)
        if other_value.kind is not Kind.NUMBER or operation.name in ("maximum", "minimum", "fmax", "fmin"):
            return _larger(operand, other_value, operation) if is_largest else _smaller(operand, other_value)
    if is_largest and operand.non_negative and operand.zero is Zero.ROUNDED:
        return _tensor(operand, low=0.0, low_open=True, high=operand.high, zero=Zero.EXCLUDED)
    zero = operand.zero if operand.non_negative else min(operand.zero, Zero.CONCEIVABLE)
    if operand.non_negative and operand.zero is Zero.CONCEIVABLE and is_largest:
        zero = Zero.CERTAIN_ORIGIN
    return replace(
        operand,
        kind=operand.kind if operand.kind is not Kind.UNKNOWN else Kind.TENSOR,
        zero=zero,
        zero_because=operand.zero_because or "when every element is zero",
        origin=operand.origin or operation.call,
    )


def _larger(left: Value, right: Value, operation: Operation) -> Value:
    """The larger of two values: one positive is enough to keep zero away."""
    result = _tensor(join([left, right]), low=max(left.low, right.low), high=max(left.high, right.high))
    result = replace(result, kind=_tensor_kind(left, right), gradient=combined_gradient([left, right]))
    if left.positive or right.positive:
        return replace(result, low_open=result.low == 0, zero=Zero.EXCLUDED)
    if 0 in (left.constant, right.constant):
        return replace(
            result,
            low=0.0,
            zero=Zero.CERTAIN_ORIGIN,
            zero_because="wherever the other side is negative",
            origin=operation.call,
        )
    return replace(result, zero=min(left.zero, right.zero))


def _smaller(left: Value, right: Value) -> Value:
    result = join([left, right])
    return replace(result, kind=_tensor_kind(left, right), high=min(left.high, right.high))


def _tensor_kind(left: Value, right: Value) -> Kind:
    return Kind.NUMBER if left.kind is right.kind is Kind.NUMBER else Kind.TENSOR


def _pooled(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    """Averages and maxima of windows stay within the bounds of what they are taken of."""
    return replace(operand, kind=Kind.TENSOR, mask=False)


def _count(operation: Operation, operand: Value, _reader: Reader) -> Value:
    return Value(
        kind=Kind.INTEGER_TENSOR,
        low=0.0,
        gradient=Gradient.NO,
        zero=Zero.CERTAIN_ORIGIN,
        zero_because="when nothing is counted",
        origin=operation.call,
        mask=True,
        high=operand.high if operand.high == 0 else math.inf,
    )


# --- elementwise -----------------------------------------------------------------------------------------------------


def _positive(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(replace(operand, mask=False), low=0.0, low_open=True, zero=Zero.EXCLUDED)


def _exponential(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    high = math.exp(operand.high) if operand.high < 80 else math.inf
    # exp(0) is one, and that is reached where the argument can be zero: `1 - exp(-x.abs())`.
    reaches = operand.high == 0 and (operand.zero >= Zero.CONCEIVABLE or operand.reaches_high)
    return _tensor(
        replace(operand, mask=False), low=0.0, low_open=True, high=high, reaches_high=reaches, zero=Zero.EXCLUDED
    )


def _probability(operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(
        replace(operand, mask=False),
        low=0.0,
        high=1.0,
        reaches_high=True,
        zero=Zero.ROUNDED,
        zero_because=f"where {operation.name} underflows",
        origin=operation.call,
    )


def _rectified(operation: Operation, operand: Value, _reader: Reader) -> Value:
    if operand.positive:
        return operand
    return _tensor(
        operand,
        low=0.0,
        high=operand.high if operand.high > 0 else math.inf,
        zero=Zero.CERTAIN_ORIGIN,
        zero_because="wherever its input is negative",
        origin=operation.call,
    )


def _absolute(operation: Operation, operand: Value, _reader: Reader) -> Value:
    if operand.zero is Zero.EXCLUDED:
        return _tensor(operand, low=0.0, low_open=True, zero=Zero.EXCLUDED)
    return _tensor(
        operand,
        low=0.0,
        high=max(abs(operand.low), abs(operand.high)),
        zero=operand.zero if operand.screened else max(operand.zero, Zero.CONCEIVABLE),
        screened=operand.screened,
        zero_because=operand.zero_because or "where its input is zero",
        origin=operand.origin or operation.call,
    )


def _square(operation: Operation, operand: Value, _reader: Reader) -> Value:
    return replace(squared(operand, node=operation.call), kind=Kind.TENSOR)


def _power(operation: Operation, operand: Value, reader: Reader) -> Value:
    exponent = operation.argument(0, "exponent")
    if exponent is None:
        return _tensor(operand)
    result = power(operand, reader.value(exponent), node=operation.call)
    return replace(result, kind=Kind.TENSOR)


def _root(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(
        operand,
        low=0.0,
        high=math.sqrt(operand.high) if 0 <= operand.high < math.inf else math.inf,
        low_open=operand.positive,
        zero=operand.zero,
        zero_because=operand.zero_because,
        origin=operand.origin,
    )


def _bounded_one(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(replace(operand, mask=False), low=-1.0, high=1.0, reaches_high=True)


def _spectrum(operation: Operation, operand: Value, _reader: Reader) -> Value:
    """Fourier transforms: all of a spectrum is zero for silence."""
    return _tensor(operand, zero=Zero.CERTAIN_ORIGIN, zero_because="for silence", origin=operation.call)


def _odd_sigmoid(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    """`tanh` and its like keep the sign of what they are given, and round to one."""
    return _tensor(operand, low=0.0 if operand.non_negative else -1.0, high=1.0, reaches_high=True)


def _normalised(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(operand, low=0.0 if operand.non_negative else -1.0, high=1.0)


def _logarithm_of_probability(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return _tensor(operand, high=0.0)


def _clamp(operation: Operation, operand: Value, reader: Reader) -> Value:
    name = operation.name.rstrip("_")
    lower = operation.argument(0, "min") if not name.endswith("_max") else None
    upper = operation.argument(0 if name.endswith("_max") else 1, "max") if not name.endswith("_min") else None
    return _clamped(
        operand,
        reader.value(lower) if lower is not None else None,
        reader.value(upper) if upper is not None else None,
        operation,
    )


def _clamped(operand: Value, low: Value | None, high: Value | None, operation: Operation) -> Value:
    kind = operand.kind if operand.kind is not Kind.UNKNOWN else Kind.TENSOR
    result = replace(operand, kind=kind)
    if high is not None:
        result = _below(result, high)
    if low is None or (low.kind is Kind.OTHER and low.constant is None):
        return result
    if low.constant == 0:
        if operand.positive:
            return result
        return replace(
            result,
            low=0.0,
            low_open=False,
            zero=Zero.CERTAIN_ORIGIN,
            zero_because="wherever its input is not positive",
            origin=operation.call,
        )
    if low.low < 0 and not math.isinf(low.low):
        # `clamp(-1 + eps, 1 - eps)`: a bound below zero, which may be an open one.
        reached = rounded(low.low, operand.precision)
        if reached < result.low:
            return result
        return replace(result, low=reached, low_open=low.low_open)
    # A bound above zero, or one that was given a name: whoever clamps at a named bound means to keep zero away.
    bound = low.low if low.positive else 0.0
    floor = rounded(bound, operand.precision)
    zero = Zero.ROUNDED if bound > 0 and floor == 0 else Zero.EXCLUDED
    because = f"because {bound:g} rounds to zero in {operand.precision.value}" if zero is Zero.ROUNDED else ""
    return replace(
        result,
        low=max(result.low, bound),
        low_open=bound == 0,
        zero=zero,
        zero_because=because,
        origin=operation.call if zero is Zero.ROUNDED else None,
        high=max(result.high, bound),
    )


def _below(result: Value, high: Value) -> Value:
    """After an upper bound, which is reached as it is rounded: `1 - 1e-8` is 1 to a float32 tensor."""
    if math.isinf(high.high):
        return result
    reached = rounded(high.high, result.precision)
    if reached > result.high:
        return result
    result = replace(result, high=reached, high_open=high.high_open, reaches_high=not high.high_open)
    return replace(result, low=min(result.low, reached)) if reached <= 0 else result


def _threshold(operation: Operation, operand: Value, reader: Reader) -> Value:
    """`F.threshold(x, 0, 0)`: a clamp at zero; of other thresholds nothing is said."""
    limits = (operation.argument(0, "threshold"), operation.argument(1, "value"))
    zeros = [limit for limit in limits if limit is not None and reader.value(limit).constant == 0]
    return _rectified(operation, operand, reader) if len(zeros) == 2 else _tensor(operand)


# --- selection -------------------------------------------------------------------------------------------------------


def _where(operation: Operation, _operand: Value, reader: Reader) -> Value:
    if operation.qualified.startswith("torch"):
        chosen, otherwise = operation.argument(0, "input"), operation.argument(1, "other")
    else:
        # `x.where(condition, other)`
        chosen, otherwise = operation.operand, operation.argument(1, "other")
    if chosen is None or otherwise is None:
        return Value(kind=Kind.INTEGER_TENSOR, gradient=Gradient.NO)
    return _chosen(reader.value(chosen), reader.value(otherwise))


def _chosen(left: Value, right: Value) -> Value:
    """One of two: a constant other than zero on either side is there to keep zero away."""
    result = replace(join([left, right]), kind=_tensor_kind(left, right), gradient=combined_gradient([left, right]))
    for guard, other in ((left, right), (right, left)):
        is_filling = guard.constant not in (None, 0) or guard.positive
        if is_filling and other.constant is None:
            return replace(
                result, low_open=result.low == 0, zero=Zero.EXCLUDED, zero_because="", origin=None, screened=True
            )
    return replace(result, screened=0 not in (left.constant, right.constant))


def _filled(operation: Operation, operand: Value, reader: Reader) -> Value:
    """`masked_fill`: with something other than zero it is a guard."""
    filling = operation.argument(1, "value")
    value = reader.value(filling) if filling is not None else UNKNOWN
    if value.zero is Zero.EXCLUDED or value.constant not in (None, 0):
        return replace(operand.without_zero(), kind=Kind.TENSOR, low=min(operand.low, value.low))
    return replace(operand, kind=Kind.TENSOR, zero=max(operand.zero, Zero.CONCEIVABLE))


def _one_hot(operation: Operation, _operand: Value, _reader: Reader) -> Value:
    return Value(
        kind=Kind.INTEGER_TENSOR,
        low=0.0,
        high=1.0,
        reaches_high=True,
        gradient=Gradient.NO,
        zero=Zero.CERTAIN_ORIGIN,
        zero_because="for every class but one",
        origin=operation.call,
        mask=True,
    )


def _predicate(operation: Operation, _operand: Value, _reader: Reader) -> Value:
    return Value(
        kind=Kind.BOOLEAN_TENSOR,
        low=0.0,
        high=1.0,
        reaches_high=True,
        gradient=Gradient.NO,
        zero=Zero.CERTAIN_ORIGIN,
        zero_because="where the condition does not hold",
        origin=operation.call,
        mask=True,
    )


# --- arithmetic by name ----------------------------------------------------------------------------------------------


def _binary(combine: Callable[[Value, Value], Value]) -> _Transfer:
    def transfer(operation: Operation, operand: Value, reader: Reader) -> Value:
        other = operation.argument(0, "other")
        if other is None:
            return _tensor(operand)
        if combine is multiply and _alike(operation.operand, other):
            return _square(operation, operand, reader)
        result = combine(operand, reader.value(other))
        return result if result.kind is not Kind.UNKNOWN else replace(result, kind=Kind.TENSOR)

    return transfer


def _negated(_operation: Operation, operand: Value, _reader: Reader) -> Value:
    return negate(operand)


def _scattered(operation: Operation, operand: Value, reader: Reader) -> Value:
    """`zeros.index_add(dim, index, source)`: places that no index names stay what they were."""
    source = operation.argument(2, "source", "src")
    added = reader.value(source) if source is not None else UNKNOWN
    keeps_zero = operand.constant == 0
    return Value(
        kind=Kind.TENSOR,
        low=0.0 if operand.non_negative and added.non_negative else -math.inf,
        gradient=combined_gradient([operand, added]),
        zero=Zero.CERTAIN_ORIGIN if keeps_zero else Zero.UNKNOWN,
        zero_because="where no index points",
        origin=operation.call,
    )


def _alike(left: ast.expr | None, right: ast.expr | None) -> bool:
    """Whether the same is written twice."""
    return left is not None and right is not None and type(left) is type(right) and ast.dump(left) == ast.dump(right)


def _length_squared(operation: Operation, operand: Value, reader: Reader) -> Value:
    """The product of a vector with itself: zero for a vector of zeros."""
    return _sum(operation, _square(operation, operand, reader), reader)


def _einsum(operation: Operation, _operand: Value, reader: Reader) -> Value:
    """`einsum("bd,bd->b", x, y)`: sums of products of what follows the equation."""
    values = [reader.value(argument) for argument in operation.arguments]
    if not values:
        return Value(kind=Kind.TENSOR)
    if len(values) == 2 and _alike(*operation.arguments) and _is_inner_product(operation.operand):
        return _length_squared(operation, values[0], reader)
    low = 0.0 if all(value.non_negative for value in values) else -math.inf
    return Value(kind=Kind.TENSOR, low=low, gradient=combined_gradient(values))


def _is_inner_product(equation: ast.expr | None) -> bool:
    """Whether an equation multiplies two tensors along the same letters: `"bd,bd->b"`, not `"id,jd->ij"`."""
    text = equation.value if isinstance(equation, ast.Constant) else None
    both = text.replace(" ", "").split("->")[0].split(",") if isinstance(text, str) else []
    return len(both) == 2 and both[0] == both[1]


def _is_row_times_column(left: ast.expr, right: ast.expr) -> bool:
    """`x.unsqueeze(1) @ x.unsqueeze(2)`: each vector with itself."""
    axes: list[object] = []
    vectors: list[ast.expr] = []
    for side in (left, right):
        if not isinstance(side, ast.Call) or not isinstance(side.func, ast.Attribute) or len(side.args) != 1:
            return False
        try:
            axes.append(ast.literal_eval(side.args[0]))
        except ValueError:
            return False
        vectors.append(side.func.value)
    names = {terminal_name(side.func) for side in (left, right) if isinstance(side, ast.Call)}
    return names == {"unsqueeze"} and axes in ([1, 2], [-2, -1], [1, -1], [-2, 2]) and _alike(*vectors)


def _product(_operation: Operation, operand: Value, reader: Reader) -> Value:
    """Matrix products: non-negative when both factors are."""
    other = _operation.argument(0, "other", "mat2", "vec", "tensor")
    if _operation.operand is not None and other is not None:
        is_inner = _operation.name in ("dot", "vdot", "vecdot") and _alike(_operation.operand, other)
        if is_inner or _is_row_times_column(_operation.operand, other):
            return _length_squared(_operation, operand, reader)
    right = reader.value(other) if other is not None else UNKNOWN
    low = 0.0 if operand.non_negative and right.non_negative else -math.inf
    positive = all(factor.positive or factor.zero is Zero.ROUNDED for factor in (operand, right))
    return Value(
        kind=Kind.TENSOR,
        low=low,
        low_open=positive,
        gradient=combined_gradient([operand, right]),
        zero=Zero.EXCLUDED if positive else Zero.UNKNOWN,
    )


# --- factories -------------------------------------------------------------------------------------------------------


def _filled_with(value: float) -> _Transfer:
    def transfer(operation: Operation, _operand: Value, _reader: Reader) -> Value:
        constant = number(value)
        return replace(constant, kind=Kind.TENSOR, zero_because="as it was made", origin=operation.call)

    return transfer


def _full(operation: Operation, _operand: Value, reader: Reader) -> Value:
    filling = operation.argument(0, "fill_value")
    value = reader.value(filling) if filling is not None else UNKNOWN
    return replace(value, kind=Kind.TENSOR, gradient=Gradient.NO)


def _literal(operation: Operation, operand: Value, _reader: Reader) -> Value:
    """`torch.tensor(0.1)`: the number itself, as a tensor without a graph."""
    if isinstance(operation.operand, (ast.List, ast.Tuple)):
        return Value(kind=Kind.TENSOR, gradient=Gradient.NO)
    return replace(operand, kind=Kind.TENSOR, gradient=Gradient.NO)


def _identity(operation: Operation, _operand: Value, _reader: Reader) -> Value:
    return Value(
        kind=Kind.TENSOR,
        low=0.0,
        high=1.0,
        reaches_high=True,
        gradient=Gradient.NO,
        zero=Zero.CERTAIN_ORIGIN,
        zero_because="off the diagonal",
        origin=operation.call,
        mask=True,
    )


def _data(_operation: Operation, _operand: Value, _reader: Reader) -> Value:
    return Value(kind=Kind.TENSOR, gradient=Gradient.NO)


def _uniform(operation: Operation, _operand: Value, _reader: Reader) -> Value:
    if operation.name.startswith("uniform") and (operation.arguments or operation.call.keywords):
        return Value(kind=Kind.TENSOR, gradient=Gradient.NO)  # `x.uniform_(low, high)`
    return Value(
        kind=Kind.TENSOR,
        low=0.0,
        high=1.0,
        high_open=True,
        gradient=Gradient.NO,
        zero=Zero.ROUNDED,
        zero_because="once in 16.8 million draws",
        origin=operation.call,
    )


def _range(_operation: Operation, _operand: Value, _reader: Reader) -> Value:
    return Value(kind=Kind.INTEGER_TENSOR, gradient=Gradient.NO)


def _table() -> dict[str, _Transfer]:
    groups: list[tuple[_Transfer, str]] = [
        (
            _same,
            "view reshape unsqueeze squeeze expand expand_as permute transpose t swapaxes movedim flatten "
            "unflatten contiguous to type type_as clone repeat repeat_interleave chunk split unbind select narrow "
            "index_select gather take take_along_dim roll flip cuda cpu view_as reshape_as broadcast_to tile "
            "requires_grad as_tensor rearrange values diagonal tril triu topk sort "
            "swapdims ravel masked_select nan_to_num",
        ),
        (_as_float, "float double half bfloat16"),
        (_as_integer, "long int short round floor ceil trunc"),
        (_detached, "detach"),
        (_as_number, "item tolist"),
        (_size, "size numel dim nelement ndimension stride __len__"),
        (_joined, "cat concat concatenate stack hstack vstack"),
        (_norm, "norm vector_norm matrix_norm"),
        (_distance, "cdist dist pairwise_distance"),
        (_deviation, "std var"),
        (_loss, "mse_loss l1_loss smooth_l1_loss huber_loss"),
        (_sum, "sum nansum"),
        (_mean, "mean nanmean"),
        (_extreme, "max min amax amin maximum minimum fmax fmin"),
        (
            _pooled,
            "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d "
            "max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        ),
        (_count, "count_nonzero bincount"),
        (_positive, "softplus cosh rsqrt"),
        (_exponential, "exp exp2"),
        (_probability, "softmax sigmoid softmin gumbel_softmax hardsigmoid"),
        (_rectified, "relu relu6"),
        (_threshold, "threshold"),
        (_absolute, "abs absolute fabs"),
        (_square, "square"),
        (_power, "pow float_power"),
        (_root, "sqrt"),
        (_bounded_one, "sin cos cosine_similarity"),
        (_odd_sigmoid, "tanh erf softsign sign sgn"),
        (_spectrum, "stft rfft rfft2 rfftn fft fft2 fftn spectrogram"),
        (_normalised, "normalize"),
        (_logarithm_of_probability, "log_softmax logsigmoid"),
        (_clamp, "clamp clip clamp_min clamp_max"),
        (_where, "where"),
        (_filled, "masked_fill"),
        (_one_hot, "one_hot"),
        (
            _predicate,
            "eq ne gt ge lt le isnan isfinite isinf logical_and logical_or logical_not logical_xor isin bool any all "
            "greater less greater_equal less_equal",
        ),
        (_binary(add), "add"),
        (_binary(subtract), "sub subtract"),
        (_binary(multiply), "mul multiply"),
        (_binary(divide), "div divide true_divide"),
        (_negated, "neg negative"),
        (_scattered, "index_add scatter_add"),
        (_product, "matmul mm bmm mv dot vdot inner vecdot"),
        (_einsum, "einsum"),
        (_filled_with(0.0), "zeros zeros_like new_zeros"),
        (_filled_with(1.0), "ones ones_like new_ones"),
        (_full, "full full_like new_full"),
        (_literal, "tensor scalar_tensor new_tensor"),
        (_identity, "eye"),
        (_data, "randn randn_like randint from_numpy linspace logspace empty empty_like randperm bernoulli"),
        (_uniform, "rand rand_like uniform"),
        (_range, "arange argmax argmin argsort nonzero searchsorted bucketize"),
        (
            _unknown,
            "log log2 log10 log1p expm1 acos asin atan atan2 tan digamma lgamma logsumexp linear conv1d conv2d "
            "conv3d cumsum cumprod prod lerp addcmul addcdiv baddbmm addmm interpolate pad gelu silu elu leaky_relu "
            "layer_norm batch_norm group_norm cross det slogdet logdet inverse solve median quantile fmod remainder "
            "reciprocal scatter index_put scatter_reduce index_copy",
        ),
    ]
    return {name: transfer for transfer, names in groups for name in names.split()}


_TABLE = _table()
