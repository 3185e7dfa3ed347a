"""Axes that torch picks by itself: softmax without `dim`, and `squeeze()` that takes the batch away as well.

This module must not follow values beyond one function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_FUNCTIONS = ("softmax", "log_softmax", "softmin")
_LAYERS = ("Softmax", "LogSoftmax", "Softmin")


def _net(layer: str, body: str) -> str:
    return (
        _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.last = {layer}\n        self.fc = nn.Linear(4, 4)\n\n    def forward(self, x):\n"
        + "".join(f"        {line}\n" for line in body.splitlines())
    )


_FIRST = 13


class ImplicitDimension(Rule):
    """A softmax without `dim`, or a `squeeze()` that drops the batch when it has one sample."""

    id = "GP715"
    name = "implicit-dimension"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "batch_consistency")
    fix = FixSafety.UNSAFE
    triggers = ("oftmax", "oftmin", "squeeze()", ".squeeze(")
    documentation = Documentation(
        what_it_does=(
            "Finds `F.softmax(x)`, `F.log_softmax(x)`, `nn.Softmax()` and their like without `dim`, and `squeeze()` "
            "without an axis on the output of a pooling layer, or of a layer with one output, in `forward`."
        ),
        why_is_this_bad=(
            "Without `dim` torch takes axis 0 for tensors of one and three axes, and axis 1 otherwise: for a batch of "
            "sequences the probabilities of different samples add up to 1. `squeeze()` also removes the batch when it "
            "holds one sample, so the last batch of an epoch, or a single request, gets another shape."
        ),
        faulty_example=_net("nn.Linear(4, 1)", "x = F.softmax(self.fc(x))\nreturn self.last(x)"),
        right_example=_net("nn.Linear(4, 1)", "x = F.softmax(self.fc(x), dim=-1)\nreturn self.last(x)"),
        fix_safety=(
            "Unsafe: `dim=-1` is another axis than torch picks for three axes or more; `squeeze(-1)` and `flatten(1)` "
            "keep the batch, which changes the shape for a batch of one."
        ),
    )
    valid = (
        _net("nn.Softmax(dim=1)", "return self.last(F.log_softmax(self.fc(x), 1))"),
        _net("nn.Linear(4, 1)", "return torch.softmax(self.last(x), dim=-1).squeeze(-1)"),
        _net("nn.Softmax2d()", "return self.last(x)"),
        _net("nn.Linear(4, 1)", "options = {'dim': 1}\nreturn F.softmax(self.last(x), **options)"),
        _net("nn.Linear(4, 2)", "return self.last(x).squeeze()"),
        _net("nn.AdaptiveAvgPool2d(1)", "return self.fc(self.last(x).flatten(1))"),
        _net("nn.AdaptiveAvgPool2d(7)", "return self.last(x).squeeze()"),
        _net("nn.Linear(4, 1)", "return x.squeeze()"),
        _net("nn.Linear(4, 1)", "return self.last(x).mean().squeeze()"),
        # whatever was dropped is put back
        _net("nn.Linear(4, 1)", "y = self.last(x).squeeze()\nreturn y.unsqueeze(0) if y.dim() == 0 else y"),
        _net("nn.Linear(4, 1)", "return self.last(x).squeeze().view(x.shape[0])"),
        # another library's softmax
        "import torch\nfrom scipy.special import softmax\n\n\ndef f(x):\n    return softmax(x)\n",
    )
    invalid = (
        Invalid(_net("nn.Linear(4, 1)", "x = F.softmax(self.fc(x))\nreturn self.last(x)"), (_FIRST,)),
        Invalid(_net("nn.LogSoftmax()", "return self.last(self.fc(x))"), (9,)),
        Invalid(_net("nn.Sequential(nn.Linear(4, 4), nn.Softmax())", "return self.last(x)"), (9,)),
        Invalid(_net("nn.Linear(4, 1)", "return nn.functional.softmin(\n    self.fc(x),\n)"), (_FIRST,)),
        Invalid(_net("nn.Linear(4, 1)", "return self.last(x).squeeze()"), (_FIRST,)),
        Invalid(_net("nn.Linear(4, 1)", "y = self.last(self.fc(x))\nreturn torch.sigmoid(y.squeeze())"), (_FIRST + 1,)),
        Invalid(_net("nn.AdaptiveAvgPool2d(1)", "x = self.last(x).squeeze()\nreturn self.fc(x)"), (_FIRST,)),
        Invalid(_net("nn.AdaptiveAvgPool2d((1, 1))", "x = torch.squeeze(self.last(x))\nreturn self.fc(x)"), (_FIRST,)),
        Invalid(_net("nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))", "return self.last(x).squeeze()"), (_FIRST,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        yield from _without_axis(file)
        yield from _squeezed_batches(file)


def _without_axis(file: FileContext) -> Iterator[Hit]:
    for call in file.calls(*_FUNCTIONS, *_LAYERS):
        qualified = file.qualified_name(call.func) or ""
        layer = qualified.startswith("torch.nn.") and qualified.rpartition(".")[2] in _LAYERS
        if not layer and not qualified.startswith("torch.nn.functional."):
            continue
        if argument(call, 0 if layer else 1, "dim") is not None or _is_open(call):
            continue
        inside = file.source(call)[:-1].rstrip().removesuffix(",")
        separator = "" if layer and not call.args and not call.keywords else ", "
        fix = Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{inside}{separator}dim=-1)"),))
        yield Hit(
            call,
            f"Without `dim`, `{qualified.rpartition('.')[2]}` takes axis 0 for one or three axes and axis 1 otherwise. "
            f"Say which axis the values are to add up over.",
            fix=fix if "#" not in inside else None,
        )


def _is_open(call: ast.Call) -> bool:
    return any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords)


def _squeezed_batches(file: FileContext) -> Iterator[Hit]:
    for call in file.calls("squeeze"):
        operation = file.values.operation(call)
        method = file.enclosing_function(call)
        if operation is None or operation.operand is None or operation.arguments or call.keywords:
            continue
        if method is None or method.name != "forward" or _shape_is_set(file, call):
            continue
        source = operation.operand
        made = file.values.single_definition(source) if isinstance(source, ast.Name) else source
        kept = _axis_to_keep(file, made) if isinstance(made, ast.Call) else None
        if kept is not None:
            yield Hit(
                call,
                f"`squeeze()` also drops the batch when it holds one sample, and the result has another shape then. "
                f"Use `{kept}`.",
                related=((made, "this is what is squeezed"),) if made is not source and made is not None else (),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{file.operand_source(source)}.{kept}"),)),
            )


def _axis_to_keep(file: FileContext, made: ast.Call) -> str | None:
    """What to write instead of `squeeze()` behind a layer that leaves axes of size one."""
    layer = maker(file, made.func) if not isinstance(made.func, ast.Call) else None
    if layer is None:
        return None
    qualified = file.qualified_name(layer.func) or ""
    if qualified == "torch.nn.Sequential" and layer.args and isinstance(layer.args[-1], ast.Call):
        layer = layer.args[-1]
        qualified = file.qualified_name(layer.func) or ""
    short = qualified.rpartition(".")[2]
    if not qualified.startswith("torch.nn."):
        return None
    if short == "Linear" and _is_one(argument(layer, 1, "out_features")):
        return "squeeze(-1)"
    if short.startswith(("AdaptiveAvgPool", "AdaptiveMaxPool")) and _is_one(argument(layer, 0, "output_size")):
        return "flatten(1)"
    return None


def _is_one(size: ast.expr | None) -> bool:
    if isinstance(size, (ast.Tuple, ast.List)):
        return bool(size.elts) and all(map(_is_one, size.elts))
    return isinstance(size, ast.Constant) and size.value == 1


def _shape_is_set(file: FileContext, call: ast.Call) -> bool:
    """Whether the shape after the squeeze is written out, or its axes are looked at."""
    statement = file.statement(call)
    parent = file.parent(call)
    if isinstance(parent, ast.Attribute) and parent.attr in ("view", "reshape", "item", "tolist", "expand"):
        return True
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name, function = statement.targets[0].id, file.enclosing_function(call)
    if function is None:
        return False
    for use in file.nodes_in(function, ast.Attribute):
        looks = use.attr in ("dim", "ndim", "view", "reshape", "unsqueeze")
        if looks and isinstance(use.value, ast.Name) and use.value.id == name and use.lineno > call.lineno:
            return True
    return any(
        terminal_name(other.func) == "len" and other.args and file.source(other.args[0]) == f"{name}.shape"
        for other in file.nodes_in(function, ast.Call)
    )
