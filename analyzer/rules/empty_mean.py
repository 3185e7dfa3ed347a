"""Means over a selection that may hold nothing (GP125).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.formulas import core
from analyzer.losses import losses
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import shown
from analyzer.singularities import Form
from analyzer.values.domain import Gradient, Kind, Zero
from analyzer.values.guards import guarded, made_of, value_names
from analyzer.values.surroundings import Surroundings, surroundings

_LOSSES = (
    *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss"),
    *("smooth_l1_loss", "huber_loss"),
)
_RARE = re.compile(r"(^|_)(pos|positives?|fg|foreground|hard|inliers?|matched|neg|negatives?)($|_)")
_PADDING = re.compile(r"mask|pad|length|special|attention")
# Element by element: a selection of nothing stays one. Reductions in between would not.
_ELEMENTWISE = frozenset(
    {
        *("pow", "square", "abs", "exp", "log", "log1p", "sqrt", "relu", "sigmoid", "tanh", "clamp", "float", "double"),
        *("view", "reshape", "flatten", "squeeze", "neg", "contiguous", "to", "half", "mul", "sub", "add", "div"),
        *("softplus", "logsigmoid"),
    }
)


class MeanOfNothing(Rule):
    id = "GP125"
    name = "mean-of-empty-selection"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    fix = FixSafety.NONE
    triggers = ("mean", "sum", *_LOSSES, "Loss(")
    documentation = Documentation(
        what_it_does=(
            "Finds the mean, or a loss with `reduction='mean'`, of elements that a mask selects (`x[mask].mean()`), "
            "when nothing makes sure that the mask selects any. A mask that compares labels or predictions is worth a "
            "warning; one that is passed in, or that only leaves padding out, a note."
        ),
        why_is_this_bad=(
            "The mean of nothing is 0/0 = NaN (measured on torch 2.13, for `mean` and all losses). One batch without a "
            "positive example makes the loss NaN; whatever is computed from it (the sum of the losses, a running mean, "
            "a loss scale, a check for NaN that stops the training) is NaN as well."
        ),
        faulty_example="import torch\n\n\ndef positives(loss, labels):\n    return loss[labels > 0].mean()\n",
        right_example=(
            "import torch\n\n\ndef positives(loss, labels):\n    chosen = labels > 0\n"
            "    return (loss * chosen).sum() / chosen.sum().clamp(min=1)\n"
        ),
        fix_safety=(
            "Nothing is rewritten: zero, a skipped term or another average may be what an empty selection should give."
        ),
    )
    valid = (
        "import torch\ndef f(loss, m):\n    return (loss * m).sum() / m.sum().clamp(min=1)\n",
        "import torch\ndef f(loss, m):\n    if m.any():\n        return loss[m].mean()\n    return loss.sum() * 0\n",
        "import torch\ndef f(loss, y):\n    pos = y > 0\n    n = pos.sum()\n    if n == 0:\n"
        "        return 0.0 * loss.sum()\n    return loss[pos].mean()\n",
        "import torch\ndef f(loss, y):\n    chosen = loss[y > 0]\n    if chosen.numel() > 0:\n"
        "        return chosen.mean()\n    return loss.sum() * 0\n",
        "import torch\ndef f(loss, y):\n    picked = loss[y > 0]\n    return picked.mean() if len(picked) else 0.0\n",
        "import torch\ndef f(loss, y):\n    n = (y > 0).sum()\n    return loss.sum() / n if n > 0 else loss.mean()\n",
        "import torch\ndef f(loss, y):\n    pos = y > 0\n    return (loss * pos).sum() / (pos.sum() + 1e-6)\n",
        "import torch\ndef f(loss, attention_mask):\n    keep = attention_mask == 1\n"
        "    return (loss * keep).sum() / keep.sum()\n",
        # a sum of nothing is zero
        "import torch\ndef f(loss, m):\n    return loss[m].sum()\n",
        "import torch\nimport torch.nn.functional as F\ndef f(x, y, mask):\n"
        "    return F.mse_loss(x[mask], y[mask], reduction='sum')\n",
        # positions, not conditions
        "import torch\ndef f(loss, idx):\n    return loss[idx].mean()\n",
        "import torch\ndef f(loss):\n    return loss[:, 0].mean() + loss[1:].mean()\n",
        "import torch\ndef f(x, mask):\n    return x[mask].mean(dim=-1)\n",
        # nothing is differentiated
        "import torch\n@torch.no_grad()\ndef f(x, mask):\n    return x[mask].mean()\n",
        "import torch\nclass AccuracyMetric:\n    def update(self, x, y):\n        return x[y > 0].mean()\n",
        "import torch\ndef f(x, y):\n    accuracy = (x == y)[y > 0].float().mean()\n    return accuracy.item()\n",
        # every row has its diagonal
        "import torch\ndef f(s):\n    eye = torch.eye(s.size(0)).bool()\n    return s[~eye].mean()\n",
        "import torch\ndef f(loss, y):\n    try:\n        top = loss.topk(3).values\n        return top.mean()\n"
        "    except RuntimeError:\n        return loss.mean()\n",
    )
    invalid = (
        # a sum over a count
        Invalid("import torch\ndef f(loss, y):\n    pos = y > 0\n    return (loss * pos).sum() / pos.sum()\n", (4,)),
        Invalid(
            "import torch\ndef f(loss, y):\n    pos = (y == 1).float()\n    n = pos.sum()\n"
            "    return (loss * pos).sum() / n\n",
            (5,),
        ),
        # passed in: a note
        Invalid("import torch\ndef f(loss, mask):\n    return loss[mask].mean()\n", (3,)),
        Invalid("import torch\ndef f(loss, y):\n    return loss[y != -100].mean()\n", (3,)),
        Invalid("import torch\ndef f(loss, y):\n    pos = y > 0\n    return torch.mean(loss[pos] ** 2)\n", (4,)),
        Invalid("import torch\ndef f(a, b, valid):\n    d = (a[valid] - b[valid]).abs()\n    return d.mean()\n", (4,)),
        Invalid("import torch\ndef f(loss, y):\n    return loss.masked_select(y == 1).mean()\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x, y, mask):\n"
            "    return F.smooth_l1_loss(x[mask], y[mask])\n",
            (4,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass L(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.ce = nn.CrossEntropyLoss()\n    def forward(self, x, y):\n"
            "        keep = y != -1\n        return self.ce(x[keep], y[keep])\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        yield from self._by_count(file)
        seen: set[tuple[ast.stmt | None, str]] = set()
        for node, reduced in _means(file):
            index = _selection(file, reduced)
            if index is None or surroundings(file, node) is not Surroundings.DIFFERENTIATED:
                continue
            if _never_empty(file, index) or file.values.value(reduced).gradient is Gradient.NO:
                continue
            if guarded(file, node, index) or guarded(file, node, reduced):
                continue
            place = (file.statement(node), ast.dump(index))
            if place in seen:
                continue  # said once of a statement
            seen.add(place)
            yield Hit(
                node=node,
                severity=None if _is_rare(file, index) else Severity.NOTE,
                message=(
                    f"The mean of nothing is NaN: this is NaN for a batch in which `{shown(file, index)}` selects no "
                    "element. Divide a sum by `count.clamp(min=1)`, or leave the term out then."
                ),
                hypothesis={
                    "operand": normalised_source(index, file.text),
                    "singular_set": "selects nothing",
                    "operation": "mean",
                    "symbol": file.symbol(node),
                    "line": index.lineno,
                },
                related=tuple(
                    (binding.statement, f"`{binding.name}` is made here") for binding in file.values.definitions(index)
                ),
            )

    def _by_count(self, file: FileContext) -> Iterator[Hit]:
        """`loss.sum() / positives.sum()`: 0/0 in the gradient as well (measured)."""
        for singular in file.singularities.of(Form.DIVISION):
            total = core(file, singular.operand)
            operation = file.values.operation(total) if isinstance(total, ast.Call) else None
            if operation is None or operation.name != "sum" or operation.operand is None or singular.numerator is None:
                continue
            judgement = file.singularities.judge(singular)
            chosen = operation.operand
            counts = judgement.value.mask and judgement.value.zero is Zero.CERTAIN_ORIGIN
            if not counts or judgement.surroundings is not Surroundings.DIFFERENTIATED or judgement.guarded:
                continue
            above = file.values.value(singular.numerator)
            if above.gradient is Gradient.NO or above.is_number or above.is_discrete:
                continue
            if _is_rare(file, chosen) and not _never_empty(file, chosen):
                yield Hit(
                    node=singular.node,
                    message=(
                        f"A batch in which `{shown(file, chosen)}` holds nowhere is divided by zero: the loss is 0/0 = "
                        "NaN, and so are its gradients. Divide by `count.clamp(min=1)`."
                    ),
                    hypothesis={
                        "operand": normalised_source(singular.operand, file.text),
                        "singular_set": "== 0",
                        "operation": "mean",
                        "symbol": file.symbol(singular.node),
                        "line": singular.operand.lineno,
                    },
                    related=((operation.call, "the count is zero when nothing is selected"),),
                )


def _means(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Everything that averages over all elements, and what it averages."""
    for call in file.calls("mean"):
        operation = file.values.operation(call)
        if operation is None or operation.operand is None:
            continue
        dimension = operation.argument(0, "dim", "axis")
        if dimension is None or (isinstance(dimension, ast.Constant) and dimension.value == 0):
            yield call, operation.operand
    for loss in losses(file, *_LOSSES):
        if loss.keyword("reduction") is None and not (loss.is_layer and _reduces_otherwise(file, loss.call)):
            yield loss.call, loss.prediction


def _reduces_otherwise(file: FileContext, call: ast.Call) -> bool:
    """Whether the layer that is called was told how to reduce."""
    made = call.func
    if isinstance(made, ast.Attribute):
        return any(
            isinstance(value, ast.Call) and any(keyword.arg == "reduction" for keyword in value.keywords)
            for value in file.values.attribute_values(made)
        )
    source = core(file, made)
    return isinstance(source, ast.Call) and any(keyword.arg == "reduction" for keyword in source.keywords)


def _selection(file: FileContext, reduced: ast.expr) -> ast.expr | None:
    """The condition that chooses what is averaged, through element-wise operations and variables."""
    pending, steps = [reduced], 0
    while pending and steps < 20:
        expression, steps = pending.pop(), steps + 1
        if isinstance(expression, ast.Name):
            definition = file.values.single_definition(expression)
            if definition is not None:
                pending.append(definition)
        elif isinstance(expression, ast.Subscript):
            index = _condition(file, expression.slice)
            if index is not None:
                return index
        elif isinstance(expression, ast.BinOp):
            pending.extend((expression.left, expression.right))
        elif isinstance(expression, ast.UnaryOp):
            pending.append(expression.operand)
        elif isinstance(expression, ast.Call):
            operation = file.values.operation(expression)
            if operation is None or operation.operand is None:
                continue
            if operation.name == "masked_select":
                return operation.argument(0, "mask")
            if operation.name in _ELEMENTWISE:
                pending.append(operation.operand)
    return None


def _condition(file: FileContext, index: ast.expr) -> ast.expr | None:
    """The boolean part of an index."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    for part in parts:
        if isinstance(part, (ast.Slice, ast.Constant)):
            continue
        value = file.values.value(part)
        is_inverted = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Invert)
        if value.kind is Kind.BOOLEAN_TENSOR or value.mask or is_inverted:
            return part
    return None


def _is_rare(file: FileContext, index: ast.expr) -> bool:
    """Whether a mask asks for something that a batch may lack: a class, a positive, a measured pixel.

    What leaves padding out (`labels != -100`, an attention mask) keeps something of every sample.
    """
    if any(_RARE.search(name.lower()) for name in made_of(file, index)):
        return True
    source = core(file, index)
    while isinstance(source, (ast.UnaryOp, ast.Call)):
        operation = file.values.operation(source) if isinstance(source, ast.Call) else None
        inner = source.operand if isinstance(source, ast.UnaryOp) else operation.operand if operation else None
        if inner is None:
            return False
        source = core(file, inner)
    parts = [source.left, source.right] if isinstance(source, ast.BinOp) else [source]
    return any(_selects_few(part) for part in parts)


def _selects_few(part: ast.expr) -> bool:
    if not isinstance(part, ast.Compare) or isinstance(part.ops[0], (ast.NotEq, ast.Is, ast.IsNot)):
        return False
    return not any(_PADDING.search(name.lower()) for name, _ in value_names(part))


def _never_empty(file: FileContext, index: ast.expr) -> bool:
    """Whether a mask is made of positions: a diagonal, a triangle, a range, the best few."""
    words = {name.lower() for name in made_of(file, index)}
    pending, seen = [index], 0
    while pending and seen < 20:
        expression, seen = pending.pop(), seen + 1
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
                words.add(node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
            elif isinstance(node, ast.Name):
                definition = file.values.single_definition(node)
                if definition is not None:
                    pending.append(definition)
    return bool(words & {"eye", "triu", "tril", "arange", "topk", "diag", "ones", "ones_like", "rand", "rand_like"})
