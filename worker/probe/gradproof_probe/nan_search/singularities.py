"""Which operations are singular somewhere, which operand must stay away from where, and what to write instead.

Names are those of aten without overload and without the underscore of in-place forms. Measured on torch 2.13: norms,
`cdist`, `std`, `var`, `atan2`, `prod`, `abs` have finite gradients everywhere and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

Residual = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Singularity:
    """`argument` is the operand's place; `residual` is zero on the singular set; `where` says it in words.

    `domain` is negative where the operation has no value at all; `overflows`: the singular set is that of large values.
    """

    argument: int
    where: str
    residual: Residual
    domain: Residual = torch.ones_like
    overflows: bool = False


def _itself(operand: torch.Tensor) -> torch.Tensor:
    return operand


def _zero(operand: torch.Tensor) -> torch.Tensor:
    return operand.abs()


def _one(operand: torch.Tensor) -> torch.Tensor:
    return 1.0 - operand.abs()


def _largest_exponent(operand: torch.Tensor) -> torch.Tensor:
    # exp overflows at the logarithm of the largest number: 88.72 in float32, 11.09 in float16.
    limit = torch.tensor(torch.finfo(operand.dtype).max, dtype=torch.float64).log()
    return float(limit) + 0.5 - operand


_FROM_ZERO: Final = ("sqrt", "rsqrt", "log", "log2", "log10", "special_entr")
_AT_ZERO: Final = ("reciprocal", "digamma", "lgamma")
_AT_ONE: Final = ("acos", "asin", "atanh", "erfinv", "arccos", "arcsin", "arctanh", "special_erfinv")

_TABLE: Final[dict[str, Singularity]] = {
    **dict.fromkeys(_FROM_ZERO, Singularity(0, "0", _zero, _itself)),
    **dict.fromkeys(_AT_ZERO, Singularity(0, "0", _zero)),
    **dict.fromkeys(_AT_ONE, Singularity(0, "±1", _one, _one)),
    **dict.fromkeys(("div", "divide", "true_divide"), Singularity(1, "0", _zero)),
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "sinh", "cosh"), Singularity(0, "its overflow", _largest_exponent, overflows=True)
    ),
    "acosh": Singularity(0, "1", lambda operand: operand - 1.0, lambda operand: operand - 1.0),
    "log1p": Singularity(0, "-1", lambda operand: operand + 1.0, lambda operand: operand + 1.0),
    "xlogy": Singularity(1, "0", _zero),
    "hypot": Singularity(0, "0", _zero),
    "logit": Singularity(0, "0 or 1", lambda operand: torch.minimum(operand.abs(), (1.0 - operand).abs())),
}


def singularity(operation: str, args: tuple[Any, ...]) -> Singularity | None:
    """Of this call, or None: a power is singular only for some exponents, a division only by a tensor."""
    if operation == "pow" and len(args) > 1 and isinstance(args[0], torch.Tensor):
        exponent = args[1]
        if isinstance(exponent, int | float) and (exponent >= 1 or exponent == 0) and float(exponent).is_integer():
            return None
        return Singularity(0, "0", _zero, _itself) if args[0].is_floating_point() else None
    found = _TABLE.get(operation)
    if found is None or len(args) <= found.argument:
        return None
    operand = args[found.argument]
    return found if isinstance(operand, torch.Tensor) and operand.is_floating_point() else None


_ADVICE: Final[dict[str, str]] = {
    "sqrt": "the derivative of a square root at 0 is infinite: add an eps inside the root, or use "
    "torch.linalg.vector_norm, whose gradient at 0 is 0",
    "rsqrt": "1/sqrt(0) is infinite: add an eps inside the root",
    "log": "log(0) is -inf and its slope infinite: clamp the argument to a positive minimum in front of the log, or "
    "stay in logarithms (log_softmax, logsigmoid, logsumexp)",
    "log1p": "log1p(-1) is -inf: keep the argument above -1",
    "div": "the divisor is 0: add an eps to it or clamp it to a positive minimum before dividing",
    "reciprocal": "1/0 is infinite: clamp the argument to a positive minimum",
    "pow": "a power with this exponent has no finite value or slope at a base of 0 or below: clamp the base to a "
    "positive minimum in front of the power",
    "acos": "the slope is infinite at ±1, also behind a clamp to exactly [-1, 1]: clamp to ±(1 - 1e-6), or use atan2",
    "acosh": "the slope is infinite at 1: clamp the argument to at least 1 + 1e-6",
    "exp": "exp overflows: subtract the maximum first, or use logsumexp, softplus or softmax",
    "softmax": "a softmax over nothing but -inf is 0/0: fill with torch.finfo(dtype).min, or leave fully masked rows "
    "out and zero them after",
    "mul": "0 times infinity is NaN: keep the infinite value out of the product (fill with a large finite number, or "
    "select with torch.where before the operation that makes it)",
    "hypot": "the gradient at (0, 0) is NaN: use torch.linalg.vector_norm",
    "linalg_eigh": "the derivative of eigenvectors needs distinct eigenvalues: use the values only, or perturb them",
    "linalg_svd": "the derivative of singular vectors needs distinct singular values: use the values only",
    "xlogy": "the gradient with respect to the second argument at 0 is infinite: clamp it to a positive minimum",
    "special_entr": "the slope of entropy at 0 is infinite: clamp the probabilities to a positive minimum",
    "std": "the deviation of one value with correction=1 is 0/0: use correction=0 or ask for two",
    "sub": "infinity minus infinity is NaN: keep infinite values out of the difference",
}
_SAME_AS: Final = {
    **dict.fromkeys(("log2", "log10"), "log"),
    **dict.fromkeys(("divide", "true_divide"), "div"),
    **dict.fromkeys(("asin", "atanh", "erfinv", "special_erfinv", "logit"), "acos"),
    **dict.fromkeys(("exp2", "expm1", "sinh", "cosh"), "exp"),
    **dict.fromkeys(("_softmax", "_log_softmax", "log_softmax", "_safe_softmax", "logsumexp"), "softmax"),
    **dict.fromkeys(("var", "var_mean", "std_mean"), "std"),
    "_linalg_eigh": "linalg_eigh",
    "_linalg_svd": "linalg_svd",
    "add": "sub",
}


def advice(operation: str) -> str:
    """One sentence on what to write instead."""
    known = _ADVICE.get(_SAME_AS.get(operation, operation))
    return known or f"keep the operand of {operation.lstrip('_')} where its value and slope are finite"
