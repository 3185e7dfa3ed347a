"""Ratios of exponentials in a custom Function, which are inf / inf for large arguments (GP325)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name

# exp(88.7) is the largest that float32 holds; half precision ends at exp(11.1).
_LARGEST_ARGUMENT = 88.0


class ExponentialRatio(Rule):
    """A custom Function divides one exponential by a sum that holds the same one."""

    id = "GP325"
    name = "exponential-ratio"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("exp(",)
    documentation = Documentation(
        what_it_does=(
            "Finds, in the methods of a custom `torch.autograd.Function`, `e / (1 + e)`, `e / (1 + e) ** 2` and "
            "`(e - 1) / (e + 1)` where `e` is `torch.exp` of something that can be large: the "
            "hand-written derivative of "
            "a sigmoid or a tanh. Arguments that are bounded from above (`-x.abs()`, `clamp`) are left alone."
        ),
        why_is_this_bad=(
            "`exp` is infinite from 88.7 on in float32 and from 11.1 on in half precision, and inf / inf is NaN. A "
            "surrogate slope of 25 is there at a potential of 3.6 below the threshold. Inside a Function no anomaly "
            "detection sees it until the NaN has spread."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nreturn (x > 0).float()",
            "(x,) = ctx.saved_tensors\ne = torch.exp(-25 * x)\nreturn grad * e / (1 + e) ** 2",
        ),
        right_example=combined(
            "ctx.save_for_backward(x)\nreturn (x > 0).float()",
            "(x,) = ctx.saved_tensors\ns = torch.sigmoid(25 * x)\nreturn grad * s * (1 - s)",
        ),
        fix_safety="Safe: `sigmoid(u) * sigmoid(-u)` is the same number, and zero where the ratio was NaN.",
    )
    valid = (
        combined("return x.exp()", "e = torch.exp(-grad.abs())\nreturn e / (1 + e)"),
        combined("return x.exp()", "e = torch.exp(-(grad * grad))\nreturn e / (1 + e) ** 2"),
        combined("return x.exp()", "e = torch.exp(grad.clamp(max=20))\nreturn e / (1 + e)"),
        combined("return x.exp()", "e = torch.exp(grad - grad.max())\nreturn e / (1 + e)"),
        combined("return x.exp()", "return 1 / (1 + torch.exp(-grad))"),
        combined("return x.exp()", "e = torch.exp(grad)\nreturn e / e.sum()"),
        combined("return x.exp()", "e = torch.exp(grad)\nk = torch.exp(-grad)\nreturn k / (1 + e)"),
        combined("return x.exp()", "e = torch.exp(grad)\nreturn grad / (1 + e) ** 2"),
        combined(
            "return x.exp()", "top = grad.max()\nshifted = grad - top\nreturn shifted.exp() / (1 + shifted.exp())"
        ),
        combined("return x.exp()", "import math\ne = math.exp(2)\nreturn grad * e / (1 + e)"),
    )
    invalid = (
        Invalid(combined("return x.exp()", "e = torch.exp(-grad)\nreturn e / (1 + e)"), (14,)),
        Invalid(combined("return x.exp()", "e = torch.exp(-2 * grad)\nreturn grad * 2 * e / (1 + e) ** 2"), (14,)),
        Invalid(
            combined("return x.exp()", "e = torch.exp(-grad)\nreturn grad * e / (e + 1.0).square(), None", "x, k"),
            (14,),
        ),
        Invalid(combined("return x.exp()", "return torch.exp(grad) / (1 + torch.exp(grad)).pow(2)"), (13,)),
        Invalid(combined("return x.exp()", "return grad.exp() / ((1 + grad.exp()) * (1 + grad.exp()))"), (13,)),
        # both grow with the same exponential, and neither fits a sigmoid: no fix
        Invalid(combined("return x.exp()", "e = torch.exp(grad)\nreturn e / (2 + e)"), (14,)),
        Invalid(combined("return x.exp()", "e = torch.exp(grad)\nreturn e / (1 + e) ** 3"), (14,)),
        Invalid(combined("e = torch.exp(2 * x)\nreturn (e - 1) / (e + 1)", "return grad"), (10,)),
        Invalid(
            combined("return x.exp()", "e = torch.exp(-grad)\nbelow = (1 + e) ** 2\nreturn grad * e / below"), (15,)
        ),
        Invalid(combined("return x.exp()", "e = torch.exp(-grad)\nreturn torch.div(e, (1 + e) ** 2)"), (14,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every division in the methods of every Function."""
        for function in autograd_functions(file):
            for method in function.own_methods:
                for node, upper, lower in _divisions(file, own_nodes(method)):
                    file.check_deadline()
                    exponential = _shared(file, upper, lower)
                    if exponential is None:
                        continue
                    argument = _argument(file, exponential)
                    assert argument is not None
                    shown = file.source(argument)
                    yield Hit(
                        node,
                        f"numerator and denominator both grow with `exp({shown})`: from 88.7 on (11.1 "
                        f"in half precision) "
                        "this is inf / inf, which is NaN. Write it with `torch.sigmoid`, which has no such range.",
                        hypothesis={
                            "function": function.name,
                            "operand": normalised_source(argument, file.text),
                            "singular_set": f"{shown} > 88.7",
                            "operation": "exp",
                            "symbol": file.symbol(node),
                            "line": node.lineno,
                        },
                        related=((exponential, "this is infinite for large arguments"),),
                        fix=_with_sigmoid(file, node, upper, lower, exponential),
                    )


def _divisions(file: FileContext, nodes: Iterator[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """(the division, numerator, denominator)."""
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield node, node.left, node.right
        elif isinstance(node, ast.Call) and terminal_name(node.func) in {"div", "divide", "true_divide"}:
            operation = file.values.operation(node)
            lower = operation.argument(0, "other") if operation is not None else None
            if operation is not None and operation.operand is not None and lower is not None:
                yield node, operation.operand, lower


def _definition(file: FileContext, expression: ast.expr) -> ast.expr:
    """What a name was given, if once; else the expression itself."""
    found = file.values.single_definition(expression) if isinstance(expression, ast.Name) else None
    return found if found is not None else expression


def _argument(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`u` of `torch.exp(u)` or `u.exp()`, also through a name."""
    expression = _definition(file, expression)
    if isinstance(expression, ast.Call) and terminal_name(expression.func) == "exp":
        operation = file.values.operation(expression)
        return operation.operand if operation is not None else None
    return None


def _factors(file: FileContext, expression: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
    """The factors of a product, powers taken as one; names are looked through."""
    if depth > 4:
        return
    opened = expression if _argument(file, expression) is not None else _definition(file, expression)
    match opened:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            yield from _factors(file, left, depth + 1)
            yield from _factors(file, right, depth + 1)
        case ast.BinOp(op=ast.Pow(), left=base):
            yield from _factors(file, base, depth + 1)
        case ast.Call(func=ast.Attribute(attr="square" | "pow")):
            operation = file.values.operation(opened)
            if operation is not None and operation.operand is not None:
                yield from _factors(file, operation.operand, depth + 1)
        case _:
            yield opened


def _terms(file: FileContext, expression: ast.expr) -> Iterator[ast.expr]:
    """The terms of a sum or difference; an expression that is none is its only term."""
    match expression:
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            yield from _terms(file, left)
            yield from _terms(file, right)
        case _:
            yield expression


def _shared(file: FileContext, upper: ast.expr, lower: ast.expr) -> ast.expr | None:
    """The exponential that both sides of a division grow with, if its argument can be large."""
    below: set[str] = set()
    for factor in _factors(file, lower):
        terms = list(_terms(file, factor))
        if len(terms) > 1:
            below |= {
                normalised_source(found, file.text) for term in terms if (found := _argument(file, term)) is not None
            }
    if not below:
        return None
    for factor in _factors(file, upper):
        for term in _terms(file, factor):
            argument = _argument(file, term)
            if argument is None or normalised_source(argument, file.text) not in below:
                continue
            if _may_be_large(file, argument):
                return term
    return None


def _may_be_large(file: FileContext, argument: ast.expr) -> bool:
    value = file.values.value(argument)
    if value.is_number or value.high <= _LARGEST_ARGUMENT:
        return False
    opened = _definition(file, argument)
    # `x - x.max()`, `x - lse`: shifted so that the largest is zero.
    shifted = isinstance(opened, ast.BinOp) and isinstance(opened.op, ast.Sub)
    names = {terminal_name(node) or "" for node in ast.walk(opened)} if shifted else set()
    return not any(word in name for name in names for word in ("max", "lse", "logsumexp", "norm"))


def _with_sigmoid(
    file: FileContext, node: ast.expr, upper: ast.expr, lower: ast.expr, exponential: ast.expr
) -> Rewrite | None:
    """`a * sigmoid(u)` for `a * e / (1 + e)`, times `sigmoid(-u)` for the square of the sum."""
    sigmoid = file.spelling("torch.sigmoid")
    argument = _argument(file, exponential)
    power = _power_of_sum(file, lower)
    if sigmoid is None or argument is None or power is None:
        return None
    text = file.source(argument)
    product = f"{sigmoid}({text})" if power == 1 else f"{sigmoid}({text}) * {sigmoid}(-{file.operand_source(argument)})"
    if _argument(file, upper) is not None:
        return Rewrite(FixSafety.SAFE, (Replacement(node, product),))
    if isinstance(upper, ast.BinOp) and isinstance(upper.op, ast.Mult) and _argument(file, upper.right) is not None:
        return Rewrite(FixSafety.SAFE, (Replacement(node, f"{file.operand_source(upper.left)} * {product}"),))
    return None


def _power_of_sum(file: FileContext, lower: ast.expr) -> int | None:
    """1 for `1 + e`, 2 for its square however written; None for anything else."""
    lower = _definition(file, lower)
    match lower:
        case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=2)):
            return 2 if _is_one_plus(file, base) else None
        case ast.Call(func=ast.Attribute(attr="square")):
            operation = file.values.operation(lower)
            return (
                2
                if operation is not None and operation.operand is not None and _is_one_plus(file, operation.operand)
                else None
            )
    return 1 if _is_one_plus(file, lower) else None


def _is_one_plus(file: FileContext, expression: ast.expr) -> bool:
    opened = _definition(file, expression)
    if not isinstance(opened, ast.BinOp) or not isinstance(opened.op, ast.Add):
        return False
    sides = (opened.left, opened.right)
    one = any(isinstance(side, ast.Constant) and side.value == 1 for side in sides)
    return one and any(_argument(file, side) is not None for side in sides)
