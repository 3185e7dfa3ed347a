"""Losses that are called in a file, and what their predictions went through last.

`F.cross_entropy(p, y)`, `nn.BCELoss()(p, y)` and `self.criterion(model(x), y)` are told alike; a prediction is followed
through variables, views, layers, chains of layers and the modules of the same file. This module must not know which
combinations are faults.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from analyzer.context import FileContext
from analyzer.formulas import core
from analyzer.layer_calls import called_layer, maker_of, names_given
from analyzer.layers import Attribute, Content
from analyzer.syntax import FunctionNode, parameters, terminal_name

_LAYERS = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}
_MAX_DEPTH = 6
_MODEL = re.compile(r"^(model|net|network|classifier|module)$")


class Activation(Enum):
    """What a tensor went through last."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    SIGMOID = "sigmoid"
    LOGITS = "a linear layer"  # whatever number a matrix product gives


_BY_OPERATION = {
    "softmax": Activation.SOFTMAX,
    "log_softmax": Activation.LOG_SOFTMAX,
    "sigmoid": Activation.SIGMOID,
    "linear": Activation.LOGITS,
    "conv1d": Activation.LOGITS,
    "conv2d": Activation.LOGITS,
    "conv3d": Activation.LOGITS,
}
_BY_LAYER = {
    "torch.nn.Softmax": Activation.SOFTMAX,
    "torch.nn.Softmax2d": Activation.SOFTMAX,
    "torch.nn.LogSoftmax": Activation.LOG_SOFTMAX,
    "torch.nn.Sigmoid": Activation.SIGMOID,
    "torch.nn.Linear": Activation.LOGITS,
    "torch.nn.Bilinear": Activation.LOGITS,
    "torch.nn.Conv1d": Activation.LOGITS,
    "torch.nn.Conv2d": Activation.LOGITS,
    "torch.nn.Conv3d": Activation.LOGITS,
}


@dataclass(frozen=True, slots=True)
class Loss:
    """One call of a loss.

    `name` is that of the function in `torch.nn.functional`; `is_layer`: an instance of the layer is called.
    """

    name: str
    call: ast.Call
    prediction: ast.expr
    target: ast.expr | None
    is_layer: bool

    def keyword(self, name: str) -> ast.expr | None:
        return next((item.value for item in self.call.keywords if item.arg == name), None)


@dataclass(frozen=True, slots=True)
class Activated:
    """`node` is the call that applied the activation, `operand` what it was applied to, where that is told."""

    activation: Activation
    node: ast.AST
    operand: ast.expr | None = None


def losses(file: FileContext, *names: str) -> Iterator[Loss]:
    """The calls of losses with one of these names."""
    for call in file.calls(*names):
        qualified = file.qualified_name(call.func) or ""
        if qualified.startswith("torch.nn.functional."):
            yield from _loss(qualified.rpartition(".")[2], call, is_layer=False)
    classes = {layer: name for layer, name in _LAYERS.items() if name in names}
    for made in file.calls(*classes):
        outer = file.parent(made)
        if isinstance(outer, ast.Call) and outer.func is made:
            yield from _layer_loss(file, outer, classes)
    for given in sorted(names_given(file, classes)):
        for call in file.calls(given):
            yield from _layer_loss(file, call, classes)


def _layer_loss(file: FileContext, call: ast.Call, classes: dict[str, str]) -> Iterator[Loss]:
    layer = called_layer(file, call)
    short = layer.name.rpartition(".")[2] if layer is not None else ""
    if short in classes:
        yield from _loss(classes[short], call, is_layer=True)


def _loss(name: str, call: ast.Call, *, is_layer: bool) -> Iterator[Loss]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    prediction = call.args[0] if call.args else given.get("input")
    target = call.args[1] if len(call.args) > 1 else given.get("target")
    if prediction is not None and not isinstance(prediction, ast.Starred):
        yield Loss(name, call, prediction, target, is_layer)


def activated(file: FileContext, expression: ast.expr, *, depth: int = _MAX_DEPTH) -> Activated | None:
    """What a tensor went through last, if that is one of the activations that losses care about."""
    found = core(file, expression)
    if not isinstance(found, ast.Call) or not depth:
        return None
    operation = file.values.operation(found)
    if operation is not None and operation.name in _BY_OPERATION:
        is_torch = operation.qualified.startswith("torch.") or operation.name in ("softmax", "log_softmax", "sigmoid")
        owner = operation.operand
        if is_torch and not (isinstance(owner, ast.Name) and owner.id == "self"):
            return Activated(_BY_OPERATION[operation.name], found, owner)
    layer = called_layer(file, found)
    if layer is not None:
        return _of_layer(layer, found)
    for function in _own_function(file, found):
        return _returned(file, function, depth - 1)
    return None


def _of_layer(layer: Attribute, call: ast.Call) -> Activated | None:
    last = layer.layers[-1] if layer.content is Content.CHAIN and layer.layers else layer
    activation = _BY_LAYER.get(last.name)
    if activation is None:
        return None
    operand = call.args[0] if call.args and last is layer else None
    return Activated(activation, call if last is layer else last.node, operand)


def _own_function(file: FileContext, call: ast.Call) -> Iterator[FunctionNode]:
    """The function of this file that a call runs: a helper, a method, or the `forward` of a module."""
    called = call.func
    if isinstance(called, ast.Name) and called.id != "self":
        for function in file.functions_by_name.get(called.id, ()):
            if isinstance(file.parent(function), ast.Module):
                yield function
                return
    own = file.enclosing_class(call)
    if isinstance(called, ast.Name) and called.id == "self":
        yield from _methods(own, "forward")
        return
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
        methods = list(_methods(own, called.attr))
        if methods:
            yield from methods
            return
    made = maker_of(file, called)
    if made is None and isinstance(called, ast.Name) and _MODEL.search(called.id) and _is_parameter(file, called):
        yield from _only_model(file)
    elif isinstance(made, ast.Call) and isinstance(made.func, ast.Name):
        for node in file.nodes(ast.ClassDef):
            if node.name == made.func.id:
                yield from _methods(node, "forward")
                return


def _is_parameter(file: FileContext, name: ast.Name) -> bool:
    function = file.enclosing_function(name)
    return function is not None and any(parameter.arg == name.id for parameter in parameters(function))


def _only_model(file: FileContext) -> Iterator[FunctionNode]:
    """The `forward` of the one module that a file defines: what a `model` that is passed around will be."""
    forwards = [
        forward
        for node in file.nodes(ast.ClassDef)
        if any(terminal_name(base) == "Module" for base in node.bases)
        for forward in _methods(node, "forward")
    ]
    if len(forwards) == 1:
        yield forwards[0]


def _methods(owner: ast.ClassDef | None, name: str) -> Iterator[FunctionNode]:
    for statement in owner.body if owner is not None else ():
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
            yield statement


def _returned(file: FileContext, function: FunctionNode, depth: int) -> Activated | None:
    """What all results of a function went through last; None when they differ."""
    values = [statement.value for statement in file.returns_of(function) if statement.value is not None]
    found = [activated(file, value, depth=depth) for value in values]
    known = [item for item in found if item is not None]
    if not known or len(known) != len(values) or len({item.activation for item in known}) > 1:
        return None
    return Activated(known[0].activation, known[0].node)
