"""Variances: as a difference of two moments (GP121), and of a dimension that may hold one element (GP120).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.formulas import core
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import terminal_name
from analyzer.values.domain import Precision
from analyzer.values.guards import guarded
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings

_CLAMPS = frozenset({"clamp", "clamp_", "clamp_min", "clip", "relu", "maximum", "abs"})
_POOLS = frozenset({"avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d"})


@dataclass(frozen=True, slots=True)
class _Mean:
    """A mean of `operand`; `call` is the call of `mean` (None for a sum divided by a count)."""

    operand: ast.expr
    call: ast.Call | None


class VarianceByMoments(Rule):
    id = "GP121"
    name = "variance-by-two-moments"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("mean", "sum", "avg_pool")
    documentation = Documentation(
        what_it_does="Finds the variance written as `mean(x ** 2) - mean(x) ** 2`.",
        why_is_this_bad=(
            "For values far from zero the two terms are large and nearly equal: of 10,000 numbers around 10,000 with a "
            "variance of 0.01, float32 gives 15 to 16 (measured, T03). The difference can be negative, and its root or "
            "logarithm NaN; a clamp hides that and leaves the wrong value. `torch.var` subtracts the mean first."
        ),
        faulty_example=(
            "import torch\n\n\ndef spread(x):\n    variance = (x ** 2).mean(dim=-1) - x.mean(dim=-1) ** 2\n"
            "    return torch.sqrt(variance + 1e-6)\n"
        ),
        right_example=(
            "import torch\n\n\ndef spread(x):\n    return torch.sqrt(x.var(dim=-1, unbiased=False) + 1e-6)\n"
        ),
        fix_safety="`var(unbiased=False)` is the same number, without the cancellation.",
    )
    valid = (
        "import torch\ndef f(x):\n    return x.var(dim=-1, unbiased=False)\n",
        "import torch\ndef f(x):\n    d = x - x.mean(-1, keepdim=True)\n    return (d ** 2).mean(-1)\n",
        # of two different things
        "import torch\ndef f(x, y):\n    return (x ** 2).mean(-1) - y.mean(-1) ** 2\n",
        "import torch\ndef f(x):\n    return (x ** 2).mean(-1) - x.mean(-1)\n",
        "import torch\ndef f(x):\n    return (x ** 3).mean(-1) - x.mean(-1) ** 3\n",
        "import torch\ndef f(x):\n    x = x.double()\n    return (x ** 2).mean(-1) - x.mean(-1) ** 2\n",
        "import numpy as np\nimport torch\ndef f(x):\n    x = np.asarray(x)\n"
        "    return (x ** 2).mean() - x.mean() ** 2\n",
        # factors apart: the square of a sum without the sum of squares
        "import torch\ndef f(x):\n    return x.sum() ** 2 - (x ** 2).sum()\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return (x ** 2).mean(-1) - x.mean(-1) ** 2\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.mean(x * x, dim=0) - torch.mean(x, dim=0).pow(2)\n", (3,)),
        Invalid(
            "import torch\ndef f(x):\n    m = x.mean(dim=(1, 2), keepdim=True)\n"
            "    s = x.square().mean(dim=(1, 2), keepdim=True)\n    v = s - m * m\n"
            "    return (x - m) / (v + 1e-5).sqrt()\n",
            (5,),
        ),
        Invalid("import torch\ndef f(x, n):\n    return x.pow(2).sum(0) / n - (x.sum(0) / n) ** 2\n", (3,)),
        # clamped: not NaN, but wrong: a note
        Invalid("import torch\ndef f(x):\n    return ((x ** 2).mean() - x.mean() ** 2).clamp(min=0)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for node in file.nodes(ast.BinOp):
            if not isinstance(node.op, ast.Sub):
                continue
            square, mean = self._moments(file, node)
            if square is None or mean is None or surroundings(file, node) is Surroundings.ASIDE:
                continue
            value = file.values.value(mean.operand)
            if value.is_number or value.is_discrete or value.precision is Precision.DOUBLE:
                continue
            quiet = _is_clamped(file, node) or _is_pooled(square)
            yield Hit(
                node=node,
                message=(
                    f"This is the variance of `{shown(file, mean.operand)}` as a difference of two large numbers: it "
                    "loses all digits where the mean is large against the deviation, and can be negative. Use `var`."
                ),
                severity=Severity.NOTE if quiet else None,
                hypothesis={
                    "operand": normalised_source(node, file.text),
                    "singular_set": "< 0",
                    "operation": "difference of moments",
                    "symbol": file.symbol(node),
                    "line": node.lineno,
                },
                fix=_variance(file, node, square, mean),
            )

    @staticmethod
    def _moments(file: FileContext, node: ast.BinOp) -> tuple[_Mean | None, _Mean | None]:
        """The mean of the squares and the mean that is squared, of one and the same tensor."""
        base = _squared(file, core(file, node.right))
        mean = _mean(file, base) if base is not None else None
        square = _mean(file, node.left) if mean is not None else None
        if mean is None or square is None:
            return None, None
        inner = _squared(file, core(file, square.operand))
        if inner is None or ast.dump(core(file, inner)) != ast.dump(core(file, mean.operand)):
            return None, None
        return square, mean


def _squared(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`x` of `x ** 2`, `x * x`, `x.pow(2)`, `x.square()`."""
    if isinstance(expression, ast.BinOp):
        if isinstance(expression.op, ast.Pow) and file.values.value(expression.right).constant == 2:
            return expression.left
        same = isinstance(expression.op, ast.Mult) and ast.dump(expression.left) == ast.dump(expression.right)
        return expression.left if same else None
    operation = file.values.operation(expression) if isinstance(expression, ast.Call) else None
    if operation is None or operation.name not in ("pow", "square"):
        return None
    exponent = operation.argument(0, "exponent")
    is_square = operation.name == "square" or (exponent is not None and file.values.value(exponent).constant == 2)
    return operation.operand if is_square else None


def _mean(file: FileContext, expression: ast.expr) -> _Mean | None:
    source = core(file, expression)
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Div):
        total = core(file, source.left)
        operation = file.values.operation(total) if isinstance(total, ast.Call) else None
        if operation is not None and operation.name == "sum" and operation.operand is not None:
            return _Mean(operation.operand, None)
        return None
    operation = file.values.operation(source) if isinstance(source, ast.Call) else None
    if operation is None or operation.operand is None or not (operation.name == "mean" or operation.name in _POOLS):
        return None
    return _Mean(operation.operand, operation.call)


def _is_pooled(square: _Mean) -> bool:
    return square.call is not None and terminal_name(square.call.func) in _POOLS


def _is_clamped(file: FileContext, node: ast.expr) -> bool:
    """Whether the difference is lifted to zero at once, so that nothing becomes NaN."""
    outer = file.parent(node)
    for _ in range(2):
        if (
            isinstance(outer, (ast.Attribute, ast.Call))
            and terminal_name(outer.func if isinstance(outer, ast.Call) else outer) in _CLAMPS
        ):
            return True
        outer = file.parent(outer) if outer is not None else None
    return False


def _variance(file: FileContext, node: ast.BinOp, square: _Mean, mean: _Mean) -> Rewrite | None:
    if square.call is None or mean.call is None or _is_pooled(square):
        return None
    over = _arguments(file, square.call)
    if over is None or over != _arguments(file, mean.call):
        return None
    text = f"{file.operand_source(mean.operand)}.var({', '.join([*over, 'unbiased=False'])})"
    return Rewrite(FixSafety.SAFE, (Replacement(node, text),))


def _arguments(file: FileContext, call: ast.Call) -> list[str] | None:
    """Over which dimensions a mean goes, as text; None when it does something else as well."""
    operation = file.values.operation(call)
    if operation is None or any(keyword.arg not in ("dim", "keepdim") for keyword in call.keywords):
        return None
    dimension, keep = operation.argument(0, "dim"), operation.argument(1, "keepdim")
    found = [f"dim={file.source(dimension)}"] if dimension is not None else []
    return [*found, f"keepdim={file.source(keep)}"] if keep is not None else found


class DeviationOfOne(Rule):
    id = "GP120"
    name = "deviation-of-one-element"
    severity = Severity.NOTE
    confidence = Confidence.LOW
    settled_by = ("batch_consistency", "nan_gradient")
    fix = FixSafety.UNSAFE
    triggers = ("std", "var")
    documentation = Documentation(
        what_it_does=(
            "Finds `std` and `var` over the first dimension, with the default correction, in code that is "
            "differentiated: over the batch, as a rule. Over the first dimension of a slice it is a note."
        ),
        why_is_this_bad=(
            "The default divides by n - 1: of a single element the deviation is 0/0 = NaN (measured on torch 2.13, "
            "which warns). The last batch of an epoch often holds one."
        ),
        faulty_example="import torch\n\n\ndef spread(x):\n    return x.std(dim=0).mean()\n",
        right_example="import torch\n\n\ndef spread(x):\n    return x.std(dim=0, correction=0).mean()\n",
        fix_safety="`correction=0` divides by n: the result is smaller by the root of (n - 1) / n.",
    )
    valid = (
        "import torch\ndef f(x):\n    return x.std(dim=0, unbiased=False)\n",
        "import torch\ndef f(x):\n    return torch.var(x, dim=0, correction=0)\n",
        "import torch\ndef f(x):\n    return x.std(dim=-1)\n",
        "import torch\ndef f(x):\n    if x.shape[0] > 1:\n        return x.std(dim=0)\n    return x * 0\n",
        "import torch\ndef f(x):\n    return x.var(0, False)\n",
        # another tensor, of the same shape
        "import torch\ndef f(x, y):\n    if x.shape != y.shape:\n        raise ValueError\n"
        "    if y.size(0) <= 1:\n        raise ValueError\n    return x.std(0)\n",
        "import torch\ndef f(x):\n    if x.shape[0] < 2:\n        return x * 0\n    return x.std(dim=0)\n",
        "import torch\n@torch.no_grad()\ndef f(x):\n    return x.std(dim=0)\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.asarray(x).std(0)\n",
        "import torch\nclass ToUnit:\n    def preprocess(self, x):\n        return x / x.std(dim=0)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return x.std(dim=0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.var(x, 0)\n", (3,)),
        # another tensor, whose shape nobody compared
        Invalid(
            "import torch\ndef f(x, y):\n    if y.size(0) <= 1:\n        raise ValueError\n    return x.std(0)\n", (5,)
        ),
        Invalid(
            "import torch\ndef f(x, y, z):\n    if z.shape != y.shape:\n        raise ValueError\n"
            "    if y.size(0) <= 1:\n        raise ValueError\n    return x.std(0)\n",
            (7,),
        ),
        # compared, and gone on with whatever the shape
        Invalid(
            "import torch\ndef f(x, y):\n    if x.shape != y.shape:\n        print(x.shape)\n"
            "    if y.size(0) <= 1:\n        raise ValueError\n    return x.std(0)\n",
            (7,),
        ),
        # the same shape, but nobody asked how long
        Invalid(
            "import torch\ndef f(x, y):\n    if x.shape != y.shape:\n        raise ValueError\n    return x.std(0)\n",
            (5,),
        ),
        # a slice: a note
        Invalid("import torch\ndef f(x, n):\n    return x[0, :n].std(dim=0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    s, m = torch.std_mean(x, dim=0, keepdim=True)\n    return x / s\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("std", "var", "std_mean", "var_mean"):
            operation = file.values.operation(call)
            if operation is None or operation.operand is None or not _goes_over_batch(operation):
                continue
            value = file.values.value(operation.operand)
            if value.is_number or value.parameter or value.gradient.value == "no":
                continue
            if surroundings(file, call) is not Surroundings.DIFFERENTIATED or _is_kept_apart(
                file, call, operation.operand
            ):
                continue
            # A slice has its own length; what has a name of its own has the batch in front.
            is_batch = isinstance(operation.operand, ast.Name)
            yield Hit(
                node=call,
                severity=Severity.WARNING if is_batch else None,
                confidence=Confidence.MEDIUM if is_batch else None,
                message=(
                    f"`{operation.name}` over the first dimension is NaN for a batch of one: it divides by n - 1. "
                    "Pass `correction=0`, or keep single samples out."
                ),
                hypothesis={
                    "operand": normalised_source(operation.operand, file.text),
                    "singular_set": "shape[0] == 1",
                    "operation": operation.name,
                    "symbol": file.symbol(call),
                    "line": operation.operand.lineno,
                },
                fix=_uncorrected(file, call),
            )


def _is_kept_apart(file: FileContext, call: ast.Call, operand: ast.expr) -> bool:
    """Whether small batches don't come here: of this tensor, or of one whose shape was checked to be the same."""
    if guarded(file, call, operand):
        return True
    function = file.enclosing_function(call)
    if function is None or not isinstance(operand, ast.Name):
        return False
    for branch in file.nodes_in(function, ast.If):
        test = branch.test
        if branch.lineno > call.lineno or not isinstance(branch.body[-1], (ast.Raise, ast.Return)):
            continue
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq):
            shaped = [_whose_shape(side) for side in (test.left, test.comparators[0])]
            for own, other in (shaped, shaped[::-1]):
                if own is not None and other is not None and own.id == operand.id and guarded(file, call, other):
                    return True
    return False


def _whose_shape(side: ast.expr) -> ast.Name | None:
    """`x` of `x.shape` and `x.size()`."""
    if isinstance(side, ast.Call) and terminal_name(side.func) == "size" and not side.args:
        side = side.func
    if isinstance(side, ast.Attribute) and side.attr in ("shape", "size") and isinstance(side.value, ast.Name):
        return side.value
    return None


def _goes_over_batch(operation: Operation) -> bool:
    dimension = operation.argument(0, "dim")
    first = isinstance(dimension, ast.Constant) and dimension.value == 0 and not isinstance(dimension.value, bool)
    told = {keyword.arg for keyword in operation.call.keywords} & {"unbiased", "correction"}
    return first and not told and len(operation.arguments) <= 1


def _uncorrected(file: FileContext, call: ast.Call) -> Rewrite | None:
    source = file.source(call)
    if not source.endswith(")") or source.rstrip(") \n").endswith(","):
        return None
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{source[:-1]}, correction=0)"),))
