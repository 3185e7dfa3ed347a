"""Recognises formulas that are written out by hand, through the variables and views in between.

`p = x.softmax(-1)`, then `p[i].log()`, is the logarithm of a softmax. This module must not know rules, nor decide
whether a formula is a fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind, Precision
from analyzer.values.guards import value_names
from analyzer.values.operations import Operation

if TYPE_CHECKING:
    from analyzer.context import FileContext

# What gives the same elements, or some of them.
_VIEWS = frozenset(
    {
        *("view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as", "permute", "transpose", "flatten", "t"),
        *("contiguous", "to", "float", "double", "half", "bfloat16", "type", "type_as", "clone", "repeat", "gather"),
        *("index_select", "masked_select", "select", "narrow", "take_along_dim", "view_as", "reshape_as", "cuda"),
        *("diag", "diagonal"),
    }
)
_LARGEST_DEPTH = 8
# exp() of more than this is inf: 88.72 in float32 and bfloat16, 11.09 in float16.
_LARGEST_EXPONENT = 80.0
_LARGEST_EXPONENT_HALF = 11.0


_BOUNDED_NAME = re.compile(r"(^|_)(cos|cosine|sim|sims|image|images|img|imgs|rgb|pixels?|probs?)($|_)|similarit")


def core(file: FileContext, expression: ast.expr) -> ast.expr:
    """What an expression is computed as, behind variables that were assigned once, views, casts and selections."""
    for _ in range(_LARGEST_DEPTH):
        inner: ast.expr | None = None
        if isinstance(expression, (ast.Name, ast.Attribute)):
            inner = file.values.single_definition(expression)
        elif isinstance(expression, (ast.Subscript, ast.NamedExpr)):
            inner = expression.value
        elif isinstance(expression, ast.Call):
            operation = file.values.operation(expression)
            if operation is not None and operation.name in _VIEWS:
                inner = operation.operand
        if inner is None:
            return expression
        expression = inner
    return expression


def operation_behind(file: FileContext, expression: ast.expr, *names: str) -> Operation | None:
    """The call of one of these operations that an expression stands for."""
    found = core(file, expression)
    operation = file.values.operation(found) if isinstance(found, ast.Call) else None
    return operation if operation is not None and operation.name.rstrip("_") in names else None


def is_number(file: FileContext, expression: ast.expr, value: float) -> bool:
    """Whether an expression is this number (or a tensor filled with it)."""
    return file.values.value(expression).constant == value


def terms(expression: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Both sides of a sum."""
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        return expression.left, expression.right
    return None


def one_plus(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`x` of `1 + x` and `x + 1`."""
    both = terms(core(file, expression))
    if both is None:
        return None
    left, right = both
    if is_number(file, left, 1.0):
        return right
    return left if is_number(file, right, 1.0) else None


def one_minus(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`x` of `1 - x`."""
    found = core(file, expression)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub) and is_number(file, found.left, 1.0):
        return found.right
    return None


def minus_one(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`x` of `x - 1`."""
    found = core(file, expression)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub) and is_number(file, found.right, 1.0):
        return found.left
    return None


def same(file: FileContext, left: ast.expr, right: ast.expr) -> bool:
    """Whether two expressions are written alike and mean the same at both places."""
    return ast.dump(left) == ast.dump(right) and still_means(file, left, right)


def still_means(file: FileContext, expression: ast.expr, place: ast.AST) -> bool:
    """Whether the names of an expression stand for the same at another place of its function."""
    scope = file.enclosing_function(expression)
    if scope is not file.enclosing_function(place):
        return False
    here, there = file.statement(expression), file.statement(place)
    if here is there or scope is None:
        return here is there
    bindings = file.values.bindings(scope)
    return all(bindings.reaching(key, here) == bindings.reaching(key, there) for key, _ in value_names(expression))


def square_of(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`x` of `x ** 2`, `x * x`, `torch.mul(x, x)`, `x.square()` and `x.pow(2)`, as it is written there."""
    if isinstance(expression, ast.BinOp):
        if isinstance(expression.op, ast.Mult) and ast.dump(expression.left) == ast.dump(expression.right):
            return expression.left
        is_two = isinstance(expression.op, ast.Pow) and file.values.value(expression.right).constant == 2
        return expression.left if is_two else None
    operation = file.values.operation(expression) if isinstance(expression, ast.Call) else None
    if operation is None or operation.operand is None:
        return None
    if operation.name in ("mul", "multiply"):
        other = operation.argument(0, "other")
        is_square = other is not None and ast.dump(other) == ast.dump(operation.operand)
    elif operation.name == "pow":
        exponent = operation.argument(0, "exponent")
        is_square = exponent is not None and file.values.value(exponent).constant == 2
    else:
        is_square = operation.name == "square"
    return operation.operand if is_square else None


def sum_of_squares(file: FileContext, expression: ast.expr) -> list[ast.expr]:
    """`[x, y]` for `x ** 2 + y ** 2`: what is squared in a sum of at least two squares; empty for anything else."""
    found: list[ast.expr] = []
    pending = [core(file, expression)]
    while pending:
        both = terms(pending.pop())
        if both is None:
            return []
        for term in both:
            inner = square_of(file, core(file, term))
            if inner is not None:
                found.append(inner)
            else:
                pending.append(core(file, term))
    return found


def growing_exponential(file: FileContext, expression: ast.expr) -> Operation | None:
    """An `exp` that can overflow and that an expression grows with: through sums, means, products and powers."""
    pending, seen = [expression], 0
    while pending and seen < _LARGEST_DEPTH:
        seen += 1
        found = core(file, pending.pop())
        if isinstance(found, ast.BinOp) and isinstance(found.op, (ast.Add, ast.Sub, ast.Mult)):
            pending.extend((found.right, found.left))
        elif isinstance(found, ast.BinOp) and isinstance(found.op, ast.Pow):
            pending.append(found.left)
        elif isinstance(found, ast.UnaryOp):
            pending.append(found.operand)
        elif isinstance(found, ast.Call):
            exponential = exponential_of(file, found)
            if exponential is not None:
                return exponential
            operation = file.values.operation(found)
            if operation is not None and operation.operand is not None and operation.name in _GROWING:
                pending.append(operation.operand)
    return None


_GROWING = frozenset({"sum", "nansum", "mean", "cumsum", "masked_fill", "mul", "add", "square", "pow", "clamp_min"})


def exponential_of(file: FileContext, expression: ast.expr) -> Operation | None:
    """The `exp` that an expression stands for, if its argument is a tensor that can be large enough to overflow."""
    operation = operation_behind(file, expression, "exp")
    if operation is None or operation.operand is None:
        return None
    return operation if can_overflow(file, operation.operand) else None


def can_overflow(file: FileContext, exponent: ast.expr) -> bool:
    """Whether nothing bounds an exponent from above."""
    value = file.values.value(exponent)
    if value.is_number or value.is_discrete:
        return False
    largest = _LARGEST_EXPONENT_HALF if value.precision is Precision.HALF else _LARGEST_EXPONENT
    return value.high > largest and not _falls_off(file, exponent) and not is_bounded(file, exponent)


def _falls_off(file: FileContext, exponent: ast.expr) -> bool:
    """`-k * d ** 2`: a negative sign before a square or a distance, whatever the scale is called."""
    found = core(file, exponent)
    negative = has_square = False
    parts = [found]
    while parts:
        part = parts.pop()
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
            negative = not negative
            parts.append(part.operand)
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            parts.extend((part.left, part.right))
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div):
            parts.append(part.left)
        else:
            value = file.values.value(part)
            negative = negative is not (value.constant is not None and value.constant < 0)
            if value.non_negative and not value.is_number:
                has_square = True
            elif (
                not value.is_number and not _is_setting(file, part) and not isinstance(core(file, part), ast.Attribute)
            ):
                return False
    return negative and has_square


def is_bounded(file: FileContext, expression: ast.expr) -> bool:
    """Whether an expression is a bounded tensor, scaled or shifted by settings: similarities over a temperature."""
    pending, seen = [expression], 0
    while pending and seen < _LARGEST_DEPTH:
        seen += 1
        current = pending.pop()
        found = core(file, current)
        value = file.values.value(found)
        in_range = value.low >= -_LARGEST_EXPONENT and value.high <= _LARGEST_EXPONENT
        if in_range or value.is_number or is_cosine(file, found) or _is_named_bounded(current, found):
            continue
        if isinstance(found, ast.UnaryOp):
            pending.append(found.operand)
        elif isinstance(found, ast.BinOp) and isinstance(found.op, (ast.Add, ast.Sub)):
            pending.extend((found.left, found.right))
        elif isinstance(found, ast.BinOp) and isinstance(found.op, (ast.Mult, ast.Div)):
            scaled = _scaled(file, found)
            if scaled is None:
                return False
            pending.append(scaled)
        else:
            return False
    return not pending


def _is_named_bounded(*expressions: ast.expr) -> bool:
    """Similarities, probabilities and images are called so, and lie between -1 and 1."""
    return any(_BOUNDED_NAME.search((terminal_name(expression) or "").lower()) for expression in expressions)


def _scaled(file: FileContext, product: ast.BinOp) -> ast.expr | None:
    """What is multiplied with a number or a setting, or divided by one."""
    sides = [(product.right, product.left)]
    if isinstance(product.op, ast.Mult):
        sides.append((product.left, product.right))
    for scale, scaled in sides:
        if file.values.value(scale).is_number:
            return scaled
    for scale, scaled in sides:
        if _is_setting(file, scale):
            return scaled
    return None


def _is_setting(file: FileContext, expression: ast.expr) -> bool:
    """Whether a factor is a number, or a name of which nothing says that it is a tensor: a temperature."""
    value = file.values.value(expression)
    is_name = isinstance(core(file, expression), (ast.Name, ast.Attribute))
    return value.is_number or (is_name and value.kind is Kind.UNKNOWN)


def is_cosine(file: FileContext, expression: ast.expr) -> bool:
    """Whether an expression is a product of normalised vectors, or `cosine_similarity` itself."""
    found = core(file, expression)
    if isinstance(found, ast.Call):
        operation = file.values.operation(found)
        if operation is None or operation.operand is None:
            return False
        if operation.name == "sum":
            return is_cosine(file, operation.operand)
        return operation.name == "cosine_similarity" or _are_unit(file, _multiplied(operation))
    if isinstance(found, ast.BinOp) and isinstance(found.op, (ast.MatMult, ast.Mult)):
        return _are_unit(file, (found.left, found.right))
    return False


def _multiplied(operation: Operation) -> tuple[ast.expr, ...]:
    """The two factors of a product of matrices or vectors."""
    if operation.name in ("matmul", "mm", "bmm", "inner", "dot", "linear") and operation.operand is not None:
        return (operation.operand, *operation.arguments[:1])
    return operation.arguments if operation.name == "einsum" else ()


def _are_unit(file: FileContext, vectors: tuple[ast.expr, ...]) -> bool:
    return len(vectors) == 2 and all(operation_behind(file, vector, "normalize") is not None for vector in vectors)


# --- probabilities ---------------------------------------------------------------------------------------------------


def probability_behind(file: FileContext, expression: ast.expr) -> tuple[str, ast.Call] | None:
    """("softmax" or "sigmoid", the call) that an expression stands for, as a function, a method or a layer."""
    found = core(file, expression)
    if not isinstance(found, ast.Call):
        return None
    operation = file.values.operation(found)
    if operation is not None and operation.name in _PROBABILITIES:
        return _PROBABILITIES[operation.name], found
    layer = file.values.last_layer(found)
    return (_PROBABILITY_LAYERS[layer], found) if layer in _PROBABILITY_LAYERS else None


def complement_behind(file: FileContext, expression: ast.expr) -> tuple[str, ast.Call] | None:
    """The same for `1 - sigmoid(x)`."""
    inner = one_minus(file, expression)
    return probability_behind(file, inner) if inner is not None else None


def odds_behind(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`p` of `p / (1 - p)`."""
    found = core(file, expression)
    if not isinstance(found, ast.BinOp) or not isinstance(found.op, ast.Div):
        return None
    inner = one_minus(file, found.right)
    return found.left if inner is not None and ast.dump(inner) == ast.dump(found.left) else None


def summed_exponential(file: FileContext, expression: ast.expr) -> tuple[Operation, Operation] | None:
    """(the sum, the exp) of `exp(x).sum(...)`, also of exponentials with weights."""
    total = operation_behind(file, expression, "sum", "nansum", "mean")
    if total is None or total.operand is None:
        return None
    summed = core(file, total.operand)
    weighted = isinstance(summed, ast.BinOp) and isinstance(summed.op, ast.Mult)
    for factor in (summed.left, summed.right) if isinstance(summed, ast.BinOp) and weighted else (summed,):
        exponential = operation_behind(file, factor, "exp")
        if exponential is not None and exponential.operand is not None:
            return total, exponential
    return None


def blended_probability(file: FileContext, expression: ast.expr) -> ast.Call | None:
    """The sigmoid in `y * p + (1 - y) * (1 - p)`, the probability of what is true."""
    both = terms(core(file, expression))
    if both is None:
        return None
    for left, right in (both, both[::-1]):
        for factor in _factors(file, left):
            chosen = probability_behind(file, factor)
            if chosen is not None and any(complement_behind(file, other) == chosen for other in _factors(file, right)):
                return chosen[1]
    return None


def _factors(file: FileContext, expression: ast.expr) -> tuple[ast.expr, ...]:
    found = core(file, expression)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Mult):
        return found.left, found.right
    return (expression,)


def is_logarithm_formula(file: FileContext, operand: ast.expr) -> bool:
    """Whether the logarithm of this operand is a formula that has a name: log_softmax, logsigmoid, logit."""
    kind = probability_behind(file, operand)
    if kind is not None:
        return True
    complement = complement_behind(file, operand)
    if complement is not None and complement[0] == "sigmoid":
        return True
    return odds_behind(file, operand) is not None


_PROBABILITIES = {"softmax": "softmax", "softmin": "softmax", "sigmoid": "sigmoid"}
_PROBABILITY_LAYERS: dict[str | None, str] = {
    "torch.nn.Softmax": "softmax",
    "torch.nn.Softmin": "softmax",
    "torch.nn.Sigmoid": "sigmoid",
}


# --- maxima ----------------------------------------------------------------------------------------------------------


def maximum_subtracted(file: FileContext, expression: ast.expr) -> Operation | None:
    """The `max` that is subtracted in `x - x.max(...)`, through a variable, an unpacking, a scale or a `detach`."""
    pending, seen = [expression], 0
    while pending and seen < _LARGEST_DEPTH:
        seen += 1
        found = core(file, pending.pop())
        if isinstance(found, ast.IfExp):
            pending.extend((found.body, found.orelse))
        elif isinstance(found, ast.BinOp) and isinstance(found.op, (ast.Mult, ast.Div)):
            pending.extend((found.left, found.right))
        elif isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub):
            largest = _maximum_behind(file, found.right)
            if largest is not None:
                return largest
        else:
            operation = operation_behind(file, found, "sub", "subtract")
            if operation is not None and operation.arguments:
                largest = _maximum_behind(file, operation.arguments[0])
                if largest is not None:
                    return largest
    return None


def _maximum_behind(file: FileContext, expression: ast.expr) -> Operation | None:
    subtracted: ast.expr | None = expression
    for _ in range(_LARGEST_DEPTH):
        if subtracted is None:
            return None
        subtracted = core(file, subtracted)
        if isinstance(subtracted, ast.Name):
            definitions = file.values.definitions(subtracted)
            subtracted = definitions[0].value if len(definitions) == 1 else None
        elif isinstance(subtracted, ast.Attribute):
            subtracted = subtracted.value
        elif isinstance(subtracted, ast.Call):
            operation = file.values.operation(subtracted)
            if operation is None or operation.name in _MAXIMA:
                return operation
            subtracted = operation.operand if operation.name in ("detach", "clone", "clamp", "clamp_min") else None
        else:
            return None
    return None


_MAXIMA = frozenset(
    {
        *("max", "amax", "maximum", "cummax", "logsumexp", "scatter_max", "segment_max"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d"),
    }
)


# --- quotients that are finite in the limit only ---------------------------------------------------------------------


def removable_singularity(file: FileContext, numerator: ast.expr, divisor: ast.expr) -> str | None:
    """The function whose quotient with its own argument is 0 / 0 at zero, as in `sin(x) / x` and `x / tanh(x)`."""
    name = _vanishing(file, numerator, divisor)
    if name is not None:
        return name
    return _vanishing(file, divisor, numerator)


def _vanishing(file: FileContext, function: ast.expr, argument: ast.expr) -> str | None:
    """The name of the function, if `function` is one of `argument` (or of its root) and zero where that is zero."""
    candidates = [argument]
    squared = square_of(file, core(file, argument))
    if squared is not None:
        candidates.append(squared)
    for candidate in candidates:
        for name, operand in _zero_at_zero(file, function, is_squared=candidate is not argument):
            if _same_formula(file, operand, candidate):
                return name
    return None


def _zero_at_zero(file: FileContext, expression: ast.expr, *, is_squared: bool) -> Iterator[tuple[str, ast.expr]]:
    """(function, argument) for `sin(x)`, `exp(x) - 1`, `log(1 + x)`; over a square only for `1 - cos(x)`."""
    less = one_minus(file, expression)
    cosine = operation_behind(file, less, "cos") if less is not None else None
    if cosine is not None and cosine.operand is not None:
        yield "1 - cos", cosine.operand
    if is_squared:
        return
    known = operation_behind(file, expression, *_ZERO_AT_ZERO)
    if known is not None and known.operand is not None:
        yield known.name, known.operand
    more = minus_one(file, expression)
    exponential = operation_behind(file, more, "exp") if more is not None else None
    if exponential is not None and exponential.operand is not None:
        yield "exp - 1", exponential.operand
    exponential = operation_behind(file, less, "exp") if less is not None else None
    if exponential is not None and exponential.operand is not None:
        yield "1 - exp", exponential.operand
    logarithm = operation_behind(file, expression, "log")
    inner = one_plus(file, logarithm.operand) if logarithm is not None and logarithm.operand is not None else None
    if inner is not None:
        yield "log(1 + x)", inner


def _same_formula(file: FileContext, left: ast.expr, right: ast.expr) -> bool:
    """Whether two expressions are the same up to a sign."""
    sides = [
        side.operand if isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub) else side
        for side in (left, right)
    ]
    return ast.dump(sides[0]) == ast.dump(sides[1]) and still_means(file, sides[0], sides[1])


_ZERO_AT_ZERO = ("sin", "sinh", "tanh", "tan", "expm1", "log1p", "atan", "asin", "asinh", "arctan", "arcsin", "erf")
