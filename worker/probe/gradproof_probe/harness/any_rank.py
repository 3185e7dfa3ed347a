"""Whether code takes tensors of any number of axes: it looks at single values, and reduces over all of them."""

from __future__ import annotations

import ast
from typing import Final

# Functions that look at every value by itself, and reductions over all of them: what is made of these alone takes any
# number of axes.
_ANY_RANK: Final = frozenset(
    {
        "abs", "add", "addcdiv", "addcmul", "atan2", "bernoulli", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "contiguous",
        "cos", "cosh", "detach", "div", "double", "dropout", "elu", "erf", "erfc", "exp", "expm1", "finfo",
        "float", "floor", "gelu", "hardtanh", "heaviside", "huber_loss", "isfinite", "isnan", "item", "l1_loss",
        "leaky_relu", "lerp", "log", "log10", "log1p", "log2", "logaddexp", "logsigmoid", "max", "maximum", "mean",
        "min", "minimum", "mish", "mse_loss", "mul", "neg", "new_tensor", "norm", "numel", "ones_like", "pow",
        "rand_like", "randn_like", "reciprocal", "relu", "relu6", "round", "rsqrt", "save_for_backward", "selu",
        "sigmoid", "sign", "sign_", "silu", "sin", "sinh", "smooth_l1_loss", "softplus", "softsign", "sqrt",
        "square", "std", "sub", "sum", "tan", "tanh", "tensor", "to", "type_as", "var", "view_as", "where",
        "zeros_like",
    }
)  # fmt: skip
_SHAPED: Final = frozenset({"dim", "axis", "dims", "shape", "size", "ndim"})


def names_no_axis(tree: ast.AST | None) -> bool:
    """Whether the code calls nothing but functions of single values and whole reductions, and indexes nothing."""
    if tree is None:
        return False
    calls = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.For | ast.While | ast.MatMult | ast.ListComp):
            return False
        if isinstance(node, ast.Attribute) and node.attr in _SHAPED:
            return False
        if isinstance(node, ast.keyword) and node.arg in _SHAPED:
            return False
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_plain = called in _ANY_RANK or called in ("float", "int", "ValueError", "isinstance", "super")
            if not is_plain:
                return False
            if called in ("sum", "mean", "max", "min", "norm", "std", "var") and any(
                integer_of(item) is not None for item in node.args
            ):
                return False
            calls += 1
        calls += isinstance(node, ast.BinOp)
    return calls > 0


def integer_of(node: ast.expr) -> int | None:
    """The number that an expression is, if it is a whole one."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer_of(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
