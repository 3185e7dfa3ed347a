"""Samples that are made dependent on their batch: scaled by its extremes, weighted along another axis.

This module must not judge losses and metrics, which speak of a whole batch on purpose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, keyword
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, parameters, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(4, 4)\n\n"
    "    def forward(self, x):\n"
)
_FIRST = 12
# `x / x.norm()` is what GP102 speaks of.
_EXTREMES = frozenset({"max", "min", "amax", "amin", "mean", "std"})
# What these yield is one number for a batch, by design; and a data pipeline sees one sample at a time.
_WHOLE_BATCH = re.compile(r"Loss|Criterion|Metric|Transform|Augment|Regulari|Penalt|Visuali|Estimator|Quanti|Scheduler")


class ScaledByBatchExtreme(Rule):
    """`x / x.max()` in `forward`: the largest value of the whole batch decides."""

    id = "GP734"
    name = "scaled-by-batch"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search", "batch_consistency")
    triggers = (".max(", ".min(", ".mean()", ".std(")
    documentation = Documentation(
        what_it_does=(
            "Finds tensors that `forward` of a module divides by their own `max()` or `std()`, or by "
            "`max() - min()`, taken over all axes."
        ),
        why_is_this_bad=(
            "The statistic runs over the batch as well: what a sample yields depends on who else is in the batch, "
            "and a "
            "single large sample shrinks all others. In evaluation the same input gives other results."
        ),
        faulty_example=_HEAD + _NET + "        h = self.fc(x)\n        return h / h.max()\n",
        right_example=_HEAD + _NET + "        h = self.fc(x)\n        return h / h.amax(dim=1, keepdim=True)\n",
        fix_safety="No automatic fix: which axes belong to a sample is not in the code.",
    )
    valid = (
        documentation.right_example,
        # softmax by hand: the shift cancels
        _HEAD + _NET + "        e = (x - x.max()).exp()\n        return e / e.sum(-1, keepdim=True)\n",
        _HEAD + _NET.replace("Net", "SpreadLoss") + "        return (x / x.max()).mean()\n",
        # weights have no batch
        _HEAD + _NET + "        w = self.fc.weight / self.fc.weight.norm()\n        return F.linear(x, w)\n",
        _HEAD + "def scale(x):\n    return x / x.max()\n",
        _HEAD + _NET + "        return self.fc(x) / x.max()\n",
        # sample by sample
        _HEAD + _NET + "        return torch.stack([h / h.max() for h in self.fc(x)])\n",
        _HEAD
        + _NET
        + "        out = []\n        for h in self.fc(x):\n            h = h / h.max()\n            out.append(h)\n"
        "        return torch.stack(out)\n",
        _HEAD + _NET + "        with torch.no_grad():\n            print(x / x.max())\n        return self.fc(x)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST + 1,)),
        Invalid(_HEAD + _NET + "        return self.fc((x - x.min()) / (x.max() - x.min() + 1e-6))\n", (_FIRST,)),
        Invalid(
            _HEAD + _NET + "        x = self.fc(x)\n        return (x - x.mean()) / (x.std() + 1e-5)\n", (_FIRST + 1,)
        ),
        Invalid(_HEAD + _NET + "        return x / torch.max(x)\n", (_FIRST,)),
        Invalid(
            _HEAD + _NET + "        s = (x - self.mean).square().sum(dim=1)\n        low, high = s.min(), s.max()\n"
            "        return (s - low) / (high - low).clamp(min=1e-6)\n",
            (_FIRST + 2,),
        ),
        Invalid(
            _HEAD + _NET + "        low, high = x.min(), x.max()\n        return self.fc((x - low) / (high - low))\n",
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for forward in file.functions_by_name.get("forward", ()):
            owner = file.parent(forward)
            if not isinstance(owner, ast.ClassDef) or _WHOLE_BATCH.search(owner.name) or not _is_module(owner):
                continue
            for division in file.nodes_in(forward, ast.BinOp):
                if isinstance(division.op, ast.Div) and file.enclosing_function(division) is forward:
                    name = _scaled(file, division)
                    if name is not None and _is_batched(file, forward, name) and not file.grad_disabled(division):
                        yield Hit(
                            division,
                            f"This statistic of `{name.id}` runs over the whole batch, so what a sample yields depends "
                            f"on the others. Take it over the axes of a sample (`dim=…, keepdim=True`).",
                        )


def _is_module(owner: ast.ClassDef) -> bool:
    return any((terminal_name(base) or "").endswith("Module") for base in owner.bases)


def _scaled(file: FileContext, division: ast.BinOp) -> ast.Name | None:
    """The tensor of `x / x.max()`, `(x - x.min()) / (x.max() - x.min())`, `(x - x.mean()) / (x.std() + eps)`."""
    top, bottom = division.left, division.right
    if isinstance(top, ast.BinOp) and isinstance(top.op, ast.Sub) and _statistic_of(file, top.right) is not None:
        top = top.left
    if not isinstance(top, ast.Name):
        return None
    if isinstance(bottom, ast.Call) and terminal_name(bottom.func) in ("clamp", "clamp_min", "clip"):
        bottom = bottom.func.value if isinstance(bottom.func, ast.Attribute) else bottom
    if isinstance(bottom, ast.BinOp) and isinstance(bottom.op, ast.Add):
        bottom = bottom.left
    if isinstance(bottom, ast.BinOp) and isinstance(bottom.op, ast.Sub):
        bottom = bottom.left
    return top if _statistic_of(file, bottom) == top.id else None


def _statistic_of(file: FileContext, expression: ast.expr) -> str | None:
    """The name whose statistic over all axes an expression is: `x` of `x.max()`, also through a variable."""
    if isinstance(expression, ast.Name):
        definition = file.values.single_definition(expression)
        return _statistic_of(file, definition) if isinstance(definition, ast.Call) else None
    if not isinstance(expression, ast.Call) or expression.keywords:
        return None
    operation = file.values.operation(expression)
    if operation is None or operation.name not in _EXTREMES or operation.arguments:
        return None
    return operation.operand.id if isinstance(operation.operand, ast.Name) else None


def _is_batched(file: FileContext, forward: FunctionNode, name: ast.Name) -> bool:
    """Whether a name is the input of `forward`, or what a layer of the module made of something; no loop variable."""
    if any(isinstance(outer, (ast.For, ast.While, ast.comprehension)) for outer in file.ancestors(name)):
        return False
    definitions = file.values.definitions(name)
    if not definitions:
        given = [parameter.arg for parameter in parameters(forward)]
        return name.id in given[1:]
    if len(definitions) != 1 or definitions[0].element is not None:
        return False
    value = definitions[0].value
    if isinstance(value, ast.Call) and file.source(value.func).startswith("self."):
        return True
    # Computed, axis by axis, from the input: `(x - self.mean).square().sum(dim=1)`.
    return isinstance(value, ast.Call) and _reduces_axes(value) and _input_of(file, value, forward)


def _reduces_axes(value: ast.Call) -> bool:
    return terminal_name(value.func) in ("sum", "mean", "norm", "amax") and keyword(value, "dim") is not None


def _input_of(file: FileContext, value: ast.Call, forward: FunctionNode) -> bool:
    first = next((parameter.arg for parameter in parameters(forward)[1:]), None)
    names = [node for node in ast.walk(value) if isinstance(node, ast.Name) and node.id == first]
    return bool(names) and not any(file.values.definitions(name) for name in names)


class WeightsOfAnotherAxis(Rule):
    """Weights that add up to one along one axis, used for a sum along another."""

    id = "GP735"
    name = "weights-of-another-axis"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "batch_consistency")
    fix = FixSafety.UNSAFE
    triggers = ("oftmax",)
    documentation = Documentation(
        what_it_does=(
            "Finds weighted sums `(w * x).sum(dim=1)` whose weights come from a softmax over another axis, "
            "`w = torch.softmax(s, dim=0)`."
        ),
        why_is_this_bad=(
            "The weights add up to one over the wrong axis, mostly the batch: samples compete with each other, the "
            "weighted sum is no average, and what a sample yields depends on its neighbours."
        ),
        faulty_example=_HEAD
        + _NET
        + "        w = torch.softmax(self.fc(x), dim=0)\n        return (w * x).sum(dim=1)\n",
        right_example=_HEAD
        + _NET
        + "        w = torch.softmax(self.fc(x), dim=1)\n        return (w * x).sum(dim=1)\n",
        fix_safety="Unsafe: the softmax takes the axis of the sum, which changes the values, as it is meant to.",
    )
    valid = (
        documentation.right_example,
        # counted from the other end: the ranks are not known
        _HEAD + _NET + "        w = torch.softmax(self.fc(x), dim=-1)\n        return (w * x).sum(dim=1)\n",
        _HEAD
        + _NET
        + "        w = torch.softmax(self.fc(x), dim=1).transpose(1, 2)\n        return (w * x).sum(dim=2)\n",
        _HEAD + _NET + "        w = torch.softmax(self.fc(x), dim=1)\n        return (w[:, None] * x).sum(dim=2)\n",
        _HEAD + _NET + "        w = torch.softmax(self.fc(x), dim=1)\n        return (w * x).sum()\n",
        # a sum over features of weighted entries
        _HEAD + _NET + "        w = torch.softmax(self.fc(x), dim=1)\n        return (w * x).sum(dim=(1, 2))\n",
        # an entropy
        _HEAD + _NET + "        p = torch.softmax(self.fc(x), dim=1)\n        return (p * p.log()).sum(dim=1)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST,)),
        Invalid(
            _HEAD
            + _NET
            + "        a = F.softmax(self.fc(x), 0)\n        y = torch.sum(x * a, dim=1)\n        return y\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + _NET + "        a = self.fc(x).softmax(dim=2)\n        y = x * a\n        return y.sum(1)\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("softmax"):
            axis = _axis(file, call)
            statement = file.parent(call)
            if axis is None or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                continue
            name = statement.targets[0]
            for total, over in _weighted_sums(file, statement, name):
                if over != axis[1]:
                    yield Hit(
                        call,
                        f"These weights add up to one over axis {axis[1]}, but they are used for a sum over axis "
                        f"{over}: "
                        f"it is no average, and the samples of a batch compete. Take the softmax over axis {over}.",
                        related=((total, f"the sum over axis {over}"),),
                        fix=Rewrite(FixSafety.UNSAFE, (Replacement(axis[0], str(over)),)),
                    )
                    break


def _axis(file: FileContext, call: ast.Call) -> tuple[ast.expr, int] | None:
    """(the argument, its value) of a softmax over an axis that is counted from the front."""
    operation = file.values.operation(call)
    axis = operation.argument(0, "dim") if operation is not None else None
    if isinstance(axis, ast.Constant) and isinstance(axis.value, int) and axis.value >= 0:
        return axis, axis.value
    return None


def _weighted_sums(file: FileContext, statement: ast.Assign, weights: ast.Name) -> Iterator[tuple[ast.Call, int]]:
    """(the sum, its axis) of products of exactly these weights with something else."""
    function = file.enclosing_function(statement)
    if function is None:
        return
    for use in file.nodes_in(function, ast.Name):
        if use.id != weights.id or not isinstance(use.ctx, ast.Load):
            continue
        product = file.parent(use)
        if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
            continue
        other = product.right if product.left is use else product.left
        if isinstance(other, ast.Constant) or weights.id in {n.id for n in ast.walk(other) if isinstance(n, ast.Name)}:
            continue
        if [binding.statement for binding in file.values.definitions(use)] != [statement]:
            continue
        total = _total(file, function, product)
        if total is None or keyword(total[0], "keepdim") is not None:
            continue
        over = argument(total[0], total[1], "dim", "axis")
        if isinstance(over, ast.Constant) and type(over.value) is int and over.value >= 0:
            yield total[0], over.value


def _total(file: FileContext, function: FunctionNode, product: ast.BinOp) -> tuple[ast.Call, int] | None:
    """(the call, the position of its axis) of the sum of a product, at once or through one variable."""
    holder: ast.expr = product
    statement = file.parent(product)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        uses = [n for n in file.nodes_in(function, ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)]
        if len(uses) != 1:
            return None
        holder = uses[0]
    parent = file.parent(holder)
    if isinstance(parent, ast.Attribute) and parent.attr == "sum":
        call = file.parent(parent)
        return (call, 0) if isinstance(call, ast.Call) and call.func is parent else None
    if isinstance(parent, ast.Call) and file.qualified_name(parent.func) == "torch.sum" and parent.args[0] is holder:
        return parent, 1
    return None
