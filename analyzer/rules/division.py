"""Divisions by tensors that are zero for inputs that occur in practice (GP101, GP102).

A tensor of which nothing is known is left alone: nearly every one could be zero, and of 12,288 divisions in ten real
packages next to none divides by an unguarded zero. This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.apart import is_quaternion
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import core, operation_behind, removable_singularity
from analyzer.lost_gradients import is_loss
from analyzer.overlaps import is_overlap, is_union_of_boxes
from analyzer.provenance import out_of_network
from analyzer.raw_inputs import made_of_raw_inputs
from analyzer.repairs import floored
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, path_of, place, shown
from analyzer.seldom_zero import seldom_zero, squared_in, sums_others
from analyzer.singularities import Form, Judgement, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Precision, Zero
from analyzer.values.guards import made_of, value_names
from analyzer.values.surroundings import Surroundings

_REDUCTIONS = frozenset({"norm", "vector_norm", "sum", "nansum", "std", "var", "mean", "max", "amax"})

# What a floor of 1e-12 does not change: nobody has vectors that short, or a spread that small, which is no noise.
_LENGTHS = ("norm", "vector_norm", "std", "cdist", "pairwise_distance")

_SAME_TENSOR = frozenset(
    {"pow", "square", "abs", "view", "reshape", "flatten", "unsqueeze", "squeeze", "float", "to", "clone", "detach"}
)


def _hazards(file: FileContext, *, normalising: bool) -> Iterator[tuple[Singular, Judgement]]:
    """Unprotected divisions: those of a tensor by a reduction of itself, or all others."""
    for singular in file.singularities.of(Form.DIVISION):
        judgement = file.singularities.judge(singular)
        value = judgement.value
        if value.zero not in (Zero.CERTAIN_ORIGIN, Zero.CONCEIVABLE) or value.parameter:
            continue
        own = _is_normalisation(file, singular, judgement)
        if own is not normalising or not (own or value.zero is Zero.CERTAIN_ORIGIN):
            continue
        if judgement.guarded or judgement.surroundings is Surroundings.ASIDE or sums_others(file, value.origin):
            continue
        # `sin(t) / t` is reported as what it is (GP129).
        if singular.numerator is None or removable_singularity(file, singular.numerator, singular.operand) is None:
            yield singular, judgement


def _is_normalisation(file: FileContext, singular: Singular, judgement: Judgement) -> bool:
    """Whether a tensor is divided by a norm, sum or deviation of itself."""
    origin = judgement.value.origin
    if singular.numerator is None or not isinstance(origin, ast.Call) or judgement.value.mask:
        return False
    operation = file.values.operation(origin)
    if operation is None or operation.operand is None or operation.name not in _REDUCTIONS:
        return False
    return _core(file, operation.operand) == _core(file, singular.numerator)


def _core(file: FileContext, expression: ast.expr) -> str:
    """The tensor that an expression is a shifted, squared or reshaped form of, as comparable text."""
    while True:
        inner: ast.expr | None = None
        if isinstance(expression, ast.BinOp):
            squares = isinstance(expression.op, ast.Mult) and ast.dump(expression.left) == ast.dump(expression.right)
            if squares or isinstance(expression.op, (ast.Sub, ast.Add, ast.Pow)):
                inner = expression.left
        elif isinstance(expression, ast.Call) and terminal_name(expression.func) in _SAME_TENSOR:
            operation = file.values.operation(expression)
            inner = operation.operand if operation is not None else None
        elif isinstance(expression, ast.Subscript):
            inner = expression.value
        if inner is None:
            return ast.unparse(expression)
        expression = inner


def _severity(file: FileContext, singular: Singular, judgement: Judgement) -> Severity | None:
    """A value without gradient (also a count that is zero for an empty selection) is worth a note.

    So is the length of what comes out of a network: forty of the 83 divisions that ten packages were warned of divide
    an embedding by its norm, and none of these is ever zero.
    """
    value = judgement.value
    unrecorded = judgement.surroundings is Surroundings.UNRECORDED or value.gradient is Gradient.NO
    # A sum of unknown sign is zero by accident only: kernels and weights are divided by theirs everywhere.
    by_accident = value.zero is not Zero.CERTAIN_ORIGIN
    quiet = unrecorded or by_accident or _is_output(file, singular) or _is_of_data(file, singular, judgement)
    return Severity.NOTE if quiet or seldom_zero(file, singular.operand, value.origin) else None


def _is_of_data(file: FileContext, singular: Singular, judgement: Judgement) -> bool:
    """Whether the divisor is made of nothing but data, or is the length of a quaternion."""
    squared = squared_in(file, judgement.value.origin)
    return (squared is not None and is_quaternion(squared)) or made_of_raw_inputs(file, singular.operand)


def _is_output(file: FileContext, singular: Singular) -> bool:
    """Whether something that comes out of a network is divided by a length of itself."""
    numerator = singular.numerator
    if numerator is None:
        return False
    own = {name for name, _ in value_names(numerator)}
    return bool(own) and own <= made_of(file, singular.operand) and out_of_network(file, numerator)


def _floor(file: FileContext, singular: Singular, judgement: Judgement) -> Rewrite | None:
    """A floor under a divisor that is never negative; of any other nobody can say where it should go."""
    value = judgement.value
    if not value.non_negative:
        return None
    if value.mask:
        # A count: an empty selection then yields zero. A mask of fractions may sum to less than one.
        safety = FixSafety.SAFE if value.is_discrete else FixSafety.UNSAFE
        return floored(file, singular.operand, safety, floor="1")
    operation = operation_behind(file, singular.operand, *_LENGTHS)
    is_length = operation is not None or isinstance(value.origin, ast.BinOp)
    return floored(file, singular.operand, FixSafety.SAFE if is_length else FixSafety.UNSAFE)


def _normalised(file: FileContext, singular: Singular) -> Rewrite | None:
    """`F.normalize(x, dim=...)` for `x / x.norm(dim=..., keepdim=True)`."""
    spelled = file.spelling("torch.nn.functional.normalize")
    dimension = _dimension_of_length(file, singular.operand)
    if spelled is None or dimension is None or singular.numerator is None or not isinstance(singular.node, ast.expr):
        return None
    operation = file.values.operation(singular.operand) if isinstance(singular.operand, ast.Call) else None
    length_of = operation.operand if operation is not None else None
    if length_of is None or ast.dump(length_of) != ast.dump(singular.numerator):
        return None
    text = f"{spelled}({file.source(singular.numerator)}, dim={file.source(dimension)})"
    return Rewrite(FixSafety.SAFE, (Replacement(singular.node, text),))


def _dimension_of_length(file: FileContext, norm: ast.expr) -> ast.expr | None:
    """The dimension of a Euclidean norm that keeps it; None for any other norm, and where float16 is known.

    In float16 the default eps of `normalize`, 1e-12, is zero.
    """
    operation = file.values.operation(norm) if isinstance(norm, ast.Call) else None
    if operation is None or operation.name not in ("norm", "vector_norm"):
        return None
    power, keeps = operation.argument(0, "p", "ord"), operation.argument(2, "keepdim")
    dimension = operation.argument(1, "dim", "axis")
    known = {keyword.arg for keyword in operation.call.keywords} <= {"p", "ord", "dim", "axis", "keepdim"}
    is_two = power is None or (isinstance(power, ast.Constant) and power.value in (2, "fro"))
    is_kept = isinstance(keeps, ast.Constant) and keeps.value is True
    if not (known and is_two and is_kept and _is_index(dimension)):
        return None
    return dimension if file.values.value(norm).precision is not Precision.HALF else None


def _is_index(dimension: ast.expr | None) -> bool:
    """Whether a dimension is one number: `normalize` takes no tuple."""
    inner = dimension.operand if isinstance(dimension, ast.UnaryOp) else dimension
    return isinstance(inner, ast.Constant) and isinstance(inner.value, int)


class UnprotectedDivision(Rule):
    id = "GP101"
    name = "unprotected-division"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    documentation = Documentation(
        what_it_does=(
            "Finds divisions (also `div`, `reciprocal` and negative powers) by a tensor that is exactly zero "
            "for inputs that occur in practice - the norm of a padding row, the spread of a constant input, a clamp "
            "at zero - with nothing before the division that keeps it away from zero. Also overlap scores (Dice, "
            "intersection over union) of masks that can both be empty, without a smoothing term."
        ),
        why_is_this_bad=(
            "The quotient is inf or NaN, and so is every gradient behind it. Repairing the result afterwards "
            "(`torch.where`, `nan_to_num`, `masked_fill`, `clamp`, a product with a mask) repairs the value only: in "
            "the backward pass zero times inf is NaN."
        ),
        faulty_example=(
            "import torch\n\n\ndef cosine(a, b):\n    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))\n"
        ),
        right_example=(
            "import torch\n\n\ndef cosine(a, b, eps=1e-8):\n"
            "    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp(min=eps)\n"
        ),
        fix_safety=(
            "`clamp(min=1e-12)` on a norm, a deviation or a spread, and `clamp(min=1)` on a count, give the same "
            "values wherever the old ones were meant (safe). On any other divisor that is never negative, and inside "
            "a root, the floor can be above true values (unsafe). A divisor that can be negative gets no fix: it needs "
            "`torch.where` on the divisor itself."
        ),
    )
    valid = (
        # eps on something that is never negative
        "import torch\ndef f(x, y):\n    return y / (x.norm(dim=-1) + 1e-6)\n",
        # clamped, directly and by an earlier assignment
        "import torch\ndef f(x, y):\n    return y / x.norm(dim=-1).clamp(min=1e-6)\n",
        "import torch\ndef f(x, y):\n    n = x.norm(dim=-1)\n    n = n.clamp_min(1e-6)\n    return y / n\n",
        "import torch\ndef f(x, y):\n    n = x.norm(dim=-1)\n    n.clamp_(min=1e-6)\n    return y / n\n",
        "import torch\ndef f(x, y, eps):\n    return y / torch.maximum(x.norm(dim=-1), eps)\n",
        # positive by construction
        "import torch\ndef f(x, y):\n    return y / x.exp()\n",
        "import torch\ndef f(x, y):\n    return y / (1 + x ** 2)\n",
        "import torch.nn.functional as F\ndef f(x, y):\n    return y / F.softplus(x)\n",
        "import torch\ndef f(x, y):\n    e = torch.exp(x - x.max())\n    return e / e.sum(-1, keepdim=True)\n",
        "import torch\ndef f(x, k):\n    w = x.softmax(-1)\n    top, _ = w.topk(k)\n"
        "    top /= top.sum(-1, keepdim=True)\n"
        "    return top\n",
        # double where: the input of the division is masked
        "import torch\ndef f(x, y):\n    n = x.norm(dim=-1)\n    safe = torch.where(n > 0, n, torch.ones_like(n))\n"
        "    return torch.where(n > 0, y / safe, 0.0)\n",
        # repaired before
        "import torch\ndef f(x, y):\n    n = x.norm()\n    if n == 0:\n        n = n + y.abs().max()\n"
        "    return y / n\n",
        # what the norm is taken of was selected before
        "import torch\ndef f(x, y, m, d):\n    return y / torch.where(m, x, d).norm(dim=-1)\n",
        "import torch\ndef f(x, y, m):\n    return y / torch.where(m, x, 1.0).norm(dim=-1)\n",
        # selected by its own value before the division
        "import torch\ndef f(x):\n    n = x.norm(dim=-1)\n    return 1 / n[n > 0]\n",
        "import torch\ndef f(x, y):\n    n = x.norm(dim=-1)\n    n[n == 0] = 1.0\n    return y / n\n",
        # smoothed, or of probabilities, which are never all zero
        "import torch\ndef dice(p, t, smooth=1.0):\n    inter = (p * t).sum()\n"
        "    return 1 - (2 * inter + smooth) / (p.sum() + t.sum() + smooth)\n",
        "import torch\ndef dice(x, t):\n    p = x.sigmoid()\n"
        "    return 2 * (p * t).sum() / (p.sum() + t.abs().sum())\n",
        # boxes that are only compared, or kept from being empty
        "import torch\ndef iou(inter, a, b):\n    return inter / (a + b - inter)\n",
        "import torch\ndef iou_loss(inter, a, b, eps=1e-7):\n    return 1 - inter / (a + b - inter + eps)\n",
        "import torch\ndef iou_loss(inter, a, b):\n    return 1 - inter / (a - b - inter)\n",
        "import torch\ndef iou_loss(inter, a, b):\n    return 1 - inter / (a + b + inter)\n",
        # tested before
        "import torch\ndef f(x, y):\n    n = x.norm()\n    if n == 0:\n        return y\n    return y / n\n",
        "import torch\ndef f(x, y):\n    n = x.norm()\n    assert (n > 0).all()\n    return y / n\n",
        "import torch\ndef f(x, y):\n    n = x.norm()\n    return y / n if n > 0 else y\n",
        "import torch\ndef f(l, mask):\n    if mask.any():\n        return (l * mask).sum() / mask.sum()\n"
        "    return l.sum() * 0\n",
        # numbers, shapes, arrays
        "import math\nimport torch\ndef f(q, k):\n    return q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))\n",
        "import torch\ndef f(x):\n    return x.sum() / x.shape[0]\n",
        "import numpy as np\nimport torch\ndef f(x: np.ndarray):\n    return x / np.linalg.norm(x)\n",
        "import torch\ndef f(x, temperature=0.0):\n    return x / temperature\n",
        "import torch\ndef f(x, y):\n    return x / y\n",
        "import torch\nclass N:\n    def __init__(self, eps=1e-6):\n        self.eps = eps\n    def f(self, x, y):\n"
        "        return y / (x.norm() + self.eps)\n",
        # an optimizer's or a metric's business
        "import torch\nclass Lamb(torch.optim.Optimizer):\n    def step(self, p):\n        return p / p.abs().max()\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x, y):\n    return y / x.norm(dim=-1)\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return y / torch.linalg.vector_norm(x)\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    n = x.norm()\n    z = n * 2\n    return y / z\n", (5,)),
        Invalid("import torch\ndef f(x, y):\n    y /= x.std()\n    return y\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return torch.div(y, x.std())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.norm(dim=-1).reciprocal()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.pow(2).sum(-1) ** -1\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return y / (x.max() - x.min())\n", (3,)),
        # clamped at zero, which is where it is singular
        Invalid("import torch\ndef f(x, y):\n    return y / x.clamp(min=0)\n", (3,)),
        # the guard comes after the division: the gradient is NaN already
        Invalid("import torch\ndef f(x, y):\n    n = x.norm()\n    return torch.nan_to_num(y / n)\n", (4,)),
        Invalid("import torch\ndef f(x, y, m):\n    n = x.norm()\n    return (y / n).masked_fill(m, 0.0)\n", (4,)),
        Invalid("import torch\ndef f(x, y, m):\n    n = x.norm()\n    return (y / n) * m\n", (4,)),
        Invalid("import torch\ndef f(x, y):\n    n = x.norm()\n    return (y / n).clamp(max=1e6)\n", (4,)),
        # eps in the wrong place: a / b + eps
        Invalid("import torch\ndef f(x, y, eps=1e-8):\n    return y / x.norm() + eps\n", (3,)),
        # a test of something else is no guard
        Invalid("import torch\ndef f(x, y):\n    if y is None:\n        return x\n    return y / x.norm()\n", (5,)),
        Invalid("import torch\ndef f(x, y):\n    if x.dim() == 2:\n        return y / x.norm()\n    return y\n", (4,)),
        # overlaps of two empty masks
        Invalid(
            "import torch\ndef dice(p, t):\n    inter = (p * t).sum()\n"
            "    return 1 - 2 * inter / (p.sum() + t.sum())\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef iou(p, t):\n    inter = (p * t).sum(dim=1)\n"
            "    union = p.sum(dim=1) + t.sum(dim=1) - inter\n    return inter / union\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef iou(p, t):\n    return (p * t).sum() / (p + t - p * t).sum()\n",
            (3,),
        ),
        Invalid(
            "import torch\ndef tversky(p, t, alpha=0.3):\n    hit = (p * t).sum()\n"
            "    return hit / (hit + alpha * (p * (1 - t)).sum() + 0.7 * ((1 - p) * t).sum())\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef f1(p, t):\n    hit = p * t\n    found = hit.sum()\n"
            "    return 2 * found / (t.sum() + hit.sum())\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef iou_loss(inter, a, b):\n    union = a + b - inter\n    return 1 - inter / union\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef giou(inter, a, b):\n    union = a + b - inter\n    iou = inter / union\n"
            "    return 1 - iou\n",
            (4,),
        ),
        # an empty selection
        Invalid("import torch\ndef f(l, mask):\n    return (l * mask).sum() / mask.sum()\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        yield from _overlaps(file)
        for singular, judgement in _hazards(file, normalising=False):
            value = judgement.value
            origin = f" `{shown(file, value.origin)}` is zero {value.zero_because}:" if value.origin else ""
            yield Hit(
                node=singular.node,
                message=(
                    f"Division by `{shown(file, singular.operand)}`, which nothing keeps from zero."
                    f"{origin or ' There'} {place(judgement)}."
                ),
                severity=_severity(file, singular, judgement),
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement),
                fix=_floor(file, singular, judgement),
            )


def _overlaps(file: FileContext) -> Iterator[Hit]:
    """Dice scores and intersections over unions: nothing is known of the masks but that both can be empty."""
    for singular in file.singularities.of(Form.DIVISION):
        if singular.numerator is None:
            continue
        of_masks = is_overlap(file, singular.numerator, singular.operand)
        if not of_masks and not _is_box_loss(file, singular.node, singular.numerator, singular.operand):
            continue
        judgement = file.singularities.judge(singular)
        if judgement.value.zero is Zero.CERTAIN_ORIGIN or judgement.guarded:
            continue
        if judgement.surroundings is not Surroundings.DIFFERENTIATED:
            continue
        yield Hit(
            node=singular.node,
            message=(
                f"`{shown(file, singular.operand)}` is zero where both {'masks' if of_masks else 'boxes'} are empty: "
                "the score is 0 / 0 = NaN there, and so is every gradient. Add the same small number above and below "
                "the line."
            ),
            confidence=Confidence.MEDIUM,
            hypothesis=hypothesis(file, singular),
            related=((singular.operand, "nothing is added here for two empty masks"),),
            fix=floored(file, singular.operand, FixSafety.UNSAFE),
        )


def _is_box_loss(file: FileContext, quotient: ast.AST, numerator: ast.expr, divisor: ast.expr) -> bool:
    """Whether a loss is made of an intersection over a union: boxes that are matched or drawn are never empty."""
    function = file.enclosing_function(quotient)
    if function is None or not is_union_of_boxes(file, numerator, divisor):
        return False
    return is_loss(file, function) or any(
        isinstance(operation.op, ast.Sub)
        and isinstance(operation.left, ast.Constant)
        and operation.left.value == 1
        and core(file, operation.right) is quotient
        for operation in file.nodes_in(function, ast.BinOp)
    )


class HandNormalisation(Rule):
    id = "GP102"
    name = "hand-normalisation"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    documentation = Documentation(
        what_it_does=(
            "Finds a tensor divided by its own norm, sum or standard deviation without anything that keeps the "
            "divisor away from zero."
        ),
        why_is_this_bad=(
            "For a row of zeros (padding, a dead unit, a constant input) the result is 0/0 = NaN, and the gradient of "
            "every parameter behind it becomes NaN. `torch.nn.functional.normalize` has the guard built in."
        ),
        faulty_example="import torch\n\n\ndef unit(x):\n    return x / x.norm(dim=-1, keepdim=True)\n",
        right_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef unit(x):\n    return F.normalize(x, dim=-1)\n"
        ),
        fix_safety=(
            "`F.normalize(x, dim=-1)` gives the same values wherever the norm is above 1e-12. In float16 its default "
            "eps rounds to zero: pass a larger one."
        ),
    )
    valid = (
        "import torch.nn.functional as F\ndef f(x):\n    return F.normalize(x, dim=-1)\n",
        "import torch\ndef f(x):\n    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)\n",
        "import torch\ndef f(x):\n    return x / (x.norm(dim=-1, keepdim=True) + 1e-12)\n",
        "import torch\ndef f(x):\n    return (x - x.mean()) / (x.std() + 1e-8)\n",
        "import torch\ndef f(x):\n    n = x.norm(dim=-1, keepdim=True)\n    n = torch.clamp(n, min=1e-12)\n"
        "    return x / n\n",
        "import torch\ndef f(x):\n    a = torch.softmax(x, -1)\n    return a / a.sum(-1, keepdim=True)\n",
        "import torch\ndef f(x):\n    a = torch.exp(x)\n    return a / a.sum(-1, keepdim=True)\n",
        "import torch\ndef f(x):\n    a = torch.softmax(x, -1)\n    return a / a.norm(dim=-1, keepdim=True)\n",
        "import torch\ndef f(x, eps=1e-5):\n    a = x.abs() + eps\n    return a / a.sum(-1, keepdim=True)\n",
        "import torch\ndef f(x):\n    with torch.no_grad():\n        s = x.sum()\n        if s > 0:\n"
        "            return x / s\n    return x\n",
        # a parameter is divided by its own norm: it is zero only if somebody makes it so
        "import torch\nfrom torch import nn\nclass W(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.v = nn.Parameter(torch.randn(3))\n    def forward(self, x):\n"
        "        return x @ (self.v / self.v.norm())\n",
        # how many of them there are is a number
        "import torch\ndef f(x):\n    return x.sum() / x.numel()\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return x / x.norm(dim=-1, keepdim=True)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x / torch.norm(x, dim=-1, keepdim=True)\n", (3,)),
        Invalid(
            "import torch\ndef f(x):\n    n = torch.linalg.vector_norm(x, dim=-1)\n    return x / n[..., None]\n", (4,)
        ),
        Invalid("import torch\ndef f(x):\n    return x / x.sum(-1, keepdim=True)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x / (x * x).sum(-1, keepdim=True).sqrt()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return (x - x.mean()) / x.std()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.div(x.norm(dim=-1, keepdim=True))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x / x.norm() + 1e-8\n", (3,)),
        Invalid("import torch\ndef f(x, m):\n    return torch.where(m, x / x.norm(), 0.0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x / x.norm())\n", (3,)),
        # x can be negative, so eps does not keep the sum away from zero; abs() does not either
        Invalid("import torch\ndef f(x):\n    a = x.abs()\n    return a / a.sum(-1, keepdim=True)\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular, judgement in _hazards(file, normalising=True):
            value = judgement.value
            numerator = singular.numerator if singular.numerator is not None else singular.node
            certain = value.zero is Zero.CERTAIN_ORIGIN
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, numerator)}` is divided by `{shown(file, singular.operand)}`, which is zero "
                    f"{value.zero_because}: there {place(judgement)}."
                ),
                severity=_severity(file, singular, judgement),
                confidence=None if certain else Confidence.MEDIUM,
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement),
                fix=_normalised(file, singular) or _floor(file, singular, judgement),
            )
