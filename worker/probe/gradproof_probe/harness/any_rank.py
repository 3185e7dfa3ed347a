"""Whether code takes tensors of any number of axes: it looks at single values and at the last axes only.

Read, not run: that other numbers of axes do run is the other half, which `validation` tries. Helpers of the repository
that are called are read as well; a call that isn't known counts against it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

DEPTH: Final = 4

# Functions that look at every value by itself, reductions, and those that work along an axis which is said by a number.
_ANY_RANK: Final = frozenset(
    {
        "Tensor", "ValueError", "TypeError", "abs", "add", "addcdiv", "addcmul", "all", "any", "append", "apply",
        "arange", "argmax", "atan2", "bernoulli", "bool", "cat", "ceil", "chunk", "clamp", "clamp_", "clamp_max",
        "clamp_min", "clone", "contiguous", "cos", "cosh", "cosine_similarity", "cumsum", "detach", "device", "dim",
        "div", "div_", "double", "dropout", "elu", "empty_like", "eq", "erf", "erfc", "exp", "expand_as", "expm1",
        "finfo", "float", "floor", "full_like", "gather", "ge", "gelu", "getattr", "glu", "gt", "hardtanh", "heaviside",
        "huber_loss", "int", "is_floating_point", "is_tensor", "isfinite", "isinstance", "isnan", "item", "kl_div",
        "l1_loss", "le", "leaky_relu", "len", "lerp", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp",
        "logical_and", "logical_not", "logical_or", "logsigmoid", "logsumexp", "long", "lt", "masked_fill",
        "masked_fill_", "max", "maximum", "mean", "min", "minimum", "mish", "mse_loss", "mul", "mul_", "ne", "neg",
        "new_tensor", "norm", "normalize", "numel", "ones_like", "pow", "print", "prod", "rand_like", "randn_like",
        "reciprocal", "relu", "relu6", "requires_grad_", "round", "rsqrt", "save_for_backward", "selu", "sigmoid",
        "sign", "silu", "sin", "sinh", "smooth_l1_loss", "softmax", "softplus", "softsign", "sort", "split", "sqrt",
        "square", "squeeze", "stack", "std", "sub", "sum", "super", "tan", "tanh", "tensor", "to", "topk", "type",
        "type_as", "unbind", "unflatten", "unsqueeze", "var", "view_as", "where", "zeros_like",
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "linear", "layer_norm", "size", "view", "reshape",
        "expand", "transpose", "flip", "roll", "range", "zip", "tuple", "list", "enumerate", "new_zeros", "new_ones",
        "zeros", "ones", "scatter_", "scatter", "flatten", "sum_to_size", "exp_", "sub_", "add_", "is_complex", "str",
    }
)  # fmt: skip
_BY_SHAPE: Final = frozenset({"shape", "size"})
_PATTERNS: Final = frozenset({"rearrange", "repeat", "reduce", "einsum"})
_PLAIN_LAYERS: Final = (nn.Identity, nn.Dropout, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Softmax, nn.LogSoftmax)


def names_no_leading_axis(function: Callable[..., Any], instance: nn.Module | None, depth: int = 0) -> bool:
    """Whether nothing in the code says how many axes there are, or names one counted from the front."""
    tree = source_tree(function)
    if tree is None or depth > DEPTH:
        return False
    scope = getattr(function, "__globals__", {})
    return all(_is_open(node, instance, scope, depth) for node in ast.walk(tree))


def source_tree(function: Callable[..., Any]) -> ast.AST | None:
    """The parsed source, or None where there is none to read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None


def _is_open(node: ast.AST, instance: nn.Module | None, scope: dict[str, Any], depth: int) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_open_index(node)
    if isinstance(node, ast.While):
        return False
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
        # `b, n, d = x.shape`
        return not any(isinstance(part, ast.Attribute) and part.attr in _BY_SHAPE for part in ast.walk(node.value))
    if isinstance(node, ast.keyword):
        return node.arg not in ("dim", "axis", "dims") or _is_from_end(node.value)
    if isinstance(node, ast.Call):
        return _is_open_call(node, instance, scope, depth)
    return True


def _is_open_index(node: ast.Subscript) -> bool:
    index = node.slice
    if isinstance(index, ast.Tuple):
        first = index.elts[0] if index.elts else None
        return isinstance(first, ast.Constant) and first.value is ...
    # `x[mask]` takes any rank; `x[0]` names the first axis; types and tuples are subscripted too.
    number = integer_of(index)
    return number is None and not isinstance(index, ast.Slice)


def _is_open_call(node: ast.Call, instance: nn.Module | None, scope: dict[str, Any], depth: int) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    value = _live(node.func, instance, scope)
    if isinstance(value, nn.Module):
        plain = isinstance(value, _PLAIN_LAYERS) or not any(True for _ in value.children())
        is_own = not type(value).__module__.startswith("torch.")
        return names_no_leading_axis(type(value).forward, value, depth + 1) if is_own else plain
    if isinstance(value, types.FunctionType | types.MethodType) and not value.__module__.startswith("torch"):
        function = value.__func__ if isinstance(value, types.MethodType) else value
        return names_no_leading_axis(function, instance, depth + 1)
    if isinstance(value, type) and issubclass(value, torch.nn.Module | torch.autograd.Function):
        return False
    if called == "apply" and isinstance(node.func, ast.Attribute):
        owner = _live(node.func.value, instance, scope)
        is_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        return is_function and names_no_leading_axis(owner.forward, None, depth + 1)
    if called in _PATTERNS:
        texts = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        return bool(texts) and all(text.lstrip().startswith("...") for text in texts)
    if called not in _ANY_RANK:
        return False
    # Numbers behind the first argument of a function, or any of a method, may be axes.
    return all(number < 0 for item in node.args if (number := integer_of(item)) is not None) or called in (
        *("pow", "clamp", "clamp_min", "clamp_max", "max", "maximum", "min", "minimum", "add", "sub", "mul", "div"),
        *("tensor", "float", "int", "full_like", "chunk", "where", "range", "arange", "lerp"),
    )


def _live(node: ast.expr, instance: nn.Module | None, scope: dict[str, Any]) -> Any:
    """What a dotted name stands for in the module, or in the built instance behind `self`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    if node.id == "self" and not parts:
        return None
    value: Any = instance if node.id == "self" else scope.get(node.id)
    for part in reversed(parts):
        value = inspect.getattr_static(value, part, None) if isinstance(value, type) else getattr(value, part, None)
        value = value.__func__ if isinstance(value, staticmethod) else value
    return value


def _is_from_end(node: ast.expr) -> bool:
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    return all((number := integer_of(item)) is None or number < 0 for item in items)


def integer_of(node: ast.expr) -> int | None:
    """The number that an expression is, if it is a whole one."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer_of(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
