"""What names and annotations promise: `eps` is a small number, `mask` a selection, `labels` carry no gradient.

Promises, not facts: they only ever make the analysis quieter, or name a selection. This module must not look beyond
the signature it is given.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace

from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.domain import (
    OTHER,
    SOME_NUMBER,
    UNKNOWN,
    UNKNOWN_TENSOR,
    Gradient,
    Kind,
    Value,
    Zero,
    number,
)

# The first that an annotation mentions decides: `Tensor | float` may be a tensor.
_BY_ANNOTATION: tuple[tuple[frozenset[str], Value], ...] = (
    (frozenset({"Tensor", "FloatTensor"}), UNKNOWN_TENSOR),
    (
        frozenset({"LongTensor", "IntTensor", "BoolTensor", "ByteTensor"}),
        Value(Kind.INTEGER_TENSOR, gradient=Gradient.NO),
    ),
    (
        frozenset({"ndarray", "NDArray", "ArrayLike", "DataFrame", "Image"}),
        Value(Kind.ARRAY, gradient=Gradient.NO),
    ),
    (frozenset({"int", "float", "bool", "str", "Number", "Scalar"}), SOME_NUMBER),
)
_EPSILON_WORDS = ("eps", "epsilon", "tiny", "smooth", "jitter")
_NUMBER_WORDS = frozenset(
    {
        *(
            "dim",
            "axis",
            "scale_factor",
            "temperature",
            "num_heads",
            "head_dim",
            "embed_dim",
            "num_classes",
            "world_size",
        ),
        *(
            "batch_size",
            "bs",
            "n_heads",
            "hidden_size",
            "seq_len",
            "height",
            "width",
            "stride",
            "kernel_size",
            "keepdim",
        ),
    }
)
_MASK_NAME = re.compile(r"(^|_)(masks?|valid|visible|keep)$|^(masks?|is|has)_")
_NO_GRADIENT_WORDS = ("mask", "target", "label", "index", "indices", "idx", "timestep", "position", "bucket", "freq")
_LARGEST_MARGIN = 1e-3
_SETTINGS = frozenset({"cfg", "args", "hparams"})


def parameter_value(function: FunctionNode, parameter: ast.arg) -> Value:
    """What a parameter may be, from its annotation, its default and its name."""
    default = default_of(function, parameter)
    annotated = _annotated(parameter.annotation)
    if annotated is not None:
        if annotated.kind is Kind.NUMBER:
            return named_number(parameter.arg, default)
        return _named_tensor(parameter.arg, annotated)
    literal = default.operand if isinstance(default, ast.UnaryOp) else default
    if isinstance(literal, ast.Constant) and literal.value is not None:
        return named_number(parameter.arg, default)
    if parameter.arg in ("self", "cls"):
        return OTHER
    if is_epsilon(parameter.arg) or parameter.arg in _NUMBER_WORDS:
        return named_number(parameter.arg, None)
    return _named_tensor(parameter.arg, UNKNOWN)


def is_setting(expression: ast.expr) -> bool:
    """Whether an expression is an attribute of a configuration: `config.scale`, `self.config.scale`."""
    owner = terminal_name(expression.value) if isinstance(expression, ast.Attribute) else None
    return owner is not None and (owner in _SETTINGS or owner.endswith("config"))


def _annotated(annotation: ast.expr | None) -> Value | None:
    """What an annotation says; a union that holds a tensor may be a tensor."""
    if annotation is None:
        return None
    names: set[str | None] = set()
    for node in ast.walk(annotation):
        names.add(terminal_name(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"\w+", node.value))
    for words, value in _BY_ANNOTATION:
        if names & words:
            return value
    return None


def named_number(name: str, default: ast.expr | None) -> Value:
    """A number passed in: its default stands for it where the name promises that it is one of the small ones."""
    value = default.value if isinstance(default, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # Whatever its name, a default as small as this is there to keep something away from an edge.
        if is_epsilon(name) or 0 < value <= _LARGEST_MARGIN:
            return number(float(value))
        return replace(SOME_NUMBER, low=0.0 if value >= 0 else -math.inf, low_open=value > 0)
    if is_epsilon(name):
        return Value(Kind.NUMBER, 0.0, low_open=True, gradient=Gradient.NO, zero=Zero.EXCLUDED)
    return SOME_NUMBER


def _named_tensor(name: str, value: Value) -> Value:
    """A tensor passed in: masks are selections, and labels carry no gradient."""
    lowered = name.lower()
    if _MASK_NAME.search(lowered):
        return replace(
            value,
            low=0.0,
            gradient=Gradient.NO,
            mask=True,
            zero=Zero.CERTAIN_ORIGIN,
            zero_because="where nothing is selected",
        )
    if any(word in lowered for word in _NO_GRADIENT_WORDS):
        return replace(value, gradient=Gradient.NO)
    return value


def default_of(function: FunctionNode, parameter: ast.arg) -> ast.expr | None:
    """The default value of a parameter, if it has one."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if parameter in positional:
        position = positional.index(parameter) - (len(positional) - len(arguments.defaults))
        return arguments.defaults[position] if position >= 0 else None
    if parameter in arguments.kwonlyargs:
        return arguments.kw_defaults[arguments.kwonlyargs.index(parameter)]
    return None


def is_epsilon(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _EPSILON_WORDS) and "step" not in lowered and "reps" not in lowered
