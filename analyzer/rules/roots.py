"""Square roots of tensors that can be exactly zero (GP103), and eps outside the root (GP104).

The root of zero is zero, so nothing looks wrong until the backward pass, where its slope is infinite. This module must
not analyse values itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.apart import is_edge, is_quaternion
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import operation_behind, square_of, sum_of_squares
from analyzer.handed_over import comes_after_blocks, receives_model_outputs
from analyzer.radicands import vanishing_radicand
from analyzer.raw_inputs import made_of_raw_inputs
from analyzer.repairs import deviation, floored, substituted, vector_norm
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, path_of, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind, Zero

# An addend larger than this is part of the formula, no protection against zero.
_LARGEST_EPSILON = 0.1
# Statistics that are carried along with the data: no parameter stands before them.
_RUNNING = re.compile(r"(running|update).*_stat(istic)?s?$")


def _roots(file: FileContext) -> Iterator[tuple[Singular, Judgement]]:
    """Roots through which a gradient flows and whose operand nothing keeps from zero."""
    for singular in file.singularities.of(Form.ROOT):
        judgement = file.singularities.judge(singular)
        value = judgement.value
        if value.positive or value.is_number or value.zero is Zero.EXCLUDED:
            continue
        if not judgement.differentiable or judgement.guarded:
            continue
        speaks = value.non_negative or _added_epsilon(file, singular.node) is not None
        if speaks or vanishing_radicand(file, singular.operand) is not None:
            yield singular, judgement


def _added_epsilon(file: FileContext, root: ast.expr | ast.stmt) -> ast.BinOp | None:
    """The sum `root + eps` that a root stands in, if it does."""
    parent = file.parent(root)
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Add):
        return None
    other = file.values.value(parent.right if parent.left is root else parent.left)
    small = other.constant is None or other.constant <= _LARGEST_EPSILON
    return parent if small and other.kind is Kind.NUMBER and other.positive else None


class SquareRootAtZero(Rule):
    id = "GP103"
    name = "sqrt-at-zero"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("sqrt", "**", "pow")
    documentation = Documentation(
        what_it_does=(
            "Finds square roots (also `** 0.5`) of a tensor that can be exactly zero: a sum of squares, "
            "a variance, `clamp(min=0)`, an absolute value, one minus a square."
        ),
        why_is_this_bad=(
            "The value at zero is fine, but the slope is infinite, and the backward pass multiplies it with the zero "
            "slope of the square behind it: the gradient is NaN, silently. One row of zeros is enough. The built-in "
            "`torch.linalg.vector_norm`, `norm`, `std` and `cdist` have a gradient of zero there."
        ),
        faulty_example="import torch\n\n\ndef length(x):\n    return x.pow(2).sum(dim=-1).sqrt()\n",
        right_example="import torch\n\n\ndef length(x):\n    return torch.linalg.vector_norm(x, dim=-1)\n",
        fix_safety=(
            "`torch.linalg.vector_norm` for a sum of squares and `std` for a variance give the same values (safe). "
            "`clamp(min=1e-12)` under any other root changes values below 1e-6 (unsafe)."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.linalg.vector_norm(x, dim=-1)\n",
        "import torch\ndef f(x):\n    return x.std() + x.norm()\n",
        "import torch\ndef f(x):\n    return torch.cdist(x, x)\n",
        "import torch\ndef f(x, eps=1e-12):\n    return torch.sqrt(x.pow(2).sum(-1) + eps)\n",
        "import torch\ndef f(x):\n    return (x.pow(2).sum(-1) + 1e-12).sqrt()\n",
        "import torch\ndef f(x):\n    return x.var().clamp(min=1e-12).sqrt()\n",
        "import torch\ndef f(x):\n    v = x.var()\n    v = v + 1e-6\n    return v ** 0.5\n",
        # relu's own gradient at zero is zero, so its root has gradient zero (measured)
        "import torch\ndef f(x):\n    return torch.relu(x).sqrt()\n",
        "import torch\ndef f(x):\n    return x.sqrt()\n",
        # zero only where the shifted value happens to be exactly minus eps
        "import torch\ndef f(a, b, eps=1e-8):\n    return (a * b - b + eps).abs().sqrt()\n",
        "import math\nimport torch\ndef f(q):\n    return q / math.sqrt(q.shape[-1]) + q.shape[-1] ** 0.5\n",
        "import torch\n@torch.no_grad()\ndef f(x):\n    return x.pow(2).sum(-1).sqrt()\n",
        "import torch\ndef f(x):\n    return x.detach().pow(2).sum(-1).sqrt()\n",
        "import torch\ndef f(x):\n    with torch.inference_mode():\n        return x.pow(2).sum(-1).sqrt()\n",
        "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x.pow(2).sum(-1).sqrt()\n    @staticmethod\n    def backward(ctx, g):\n        return g\n",
        "import torch\nclass EulerScheduler:\n    def step(self, x):\n        return (x ** 2).sum().sqrt()\n",
        "import torch\ndef f(x):\n    d = x.pow(2).sum(-1)\n    safe = torch.where(d > 0, d, torch.ones_like(d))\n"
        "    return torch.where(d > 0, safe.sqrt(), 0.0)\n",
        "import torch\ndef f(x):\n    d = x.pow(2).sum(-1)\n    return d[d > 0].sqrt()\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.sqrt(np.sum(np.asarray(x) ** 2))\n",
        "import torch\ndef f(x):\n    return (1 + x ** 2).sqrt()\n",
        "import torch\ndef f(x, y):\n    return torch.sqrt(torch.mul(x, y).sum(-1) + torch.dot(x, y))\n",
        "import torch\ndef f(x):\n    return torch.einsum('id,jd->ij', x, x).sqrt()\n",
        "import torch\ndef f(x):\n    return torch.bmm(x.unsqueeze(2), x.unsqueeze(1)).sqrt()\n",
        "import torch\nimport torch.nn.functional as F\ndef f(x):\n    return F.threshold(x, 0.1, 0.1) ** 0.5\n",
        "import torch\ndef f(x):\n    return x.exp().sum().sqrt()\n",
        "import torch\ndef f(a, b):\n    d = a.pow(2).sum(1, keepdim=True) + b.pow(2).sum(1) - 2 * a @ b.t()\n"
        "    return d.clamp(min=1e-12).sqrt()\n",
        "import torch\ndef f(x):\n    return torch.sqrt(1 - x ** 2)\n",
        "import torch\ndef f(a, b, c):\n    return torch.sqrt(b ** 2 - 4 * a * c)\n",
        "import torch\ndef f(mask):\n    return mask.sum(-1).sqrt()\n",
        "import torch\ndef f(x, y):\n    d = ((x - y) ** 2).sum(-1)\n    zero = (d == 0).float()\n"
        "    return torch.sqrt(d + zero * 1e-16) * (1 - zero)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return x.pow(2).sum(-1).sqrt()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.sqrt((x * x).sum(-1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.sqrt(torch.mul(x, x).sum(-1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.sqrt(torch.dot(x, x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.einsum('bd,bd->b', x, x).sqrt()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.bmm(x.unsqueeze(1), x.unsqueeze(2)).sqrt()\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x):\n    return F.threshold(x, 0.0, 0.0) ** 0.5\n",
            (4,),
        ),
        Invalid("import torch\ndef f(a, b):\n    return ((a - b) ** 2).sum(-1) ** 0.5\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.pow(x.square().mean(), 0.5)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    v = x.var(dim=0)\n    return v.sqrt()\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return x.clamp(min=0).sqrt()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.sqrt(torch.maximum(torch.zeros_like(x), x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.abs().sqrt()\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return torch.sqrt(x.softmax(-1) * y.softmax(-1)).sum(-1)\n", (3,)),
        Invalid("import torch\ndef f(c):\n    return torch.sqrt(1 - torch.cos(c) ** 2)\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(a, b):\n    return torch.sqrt(F.mse_loss(a, b))\n",
            (4,),
        ),
        # formulas that are zero on purpose
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x, w):\n"
            "    cosine = F.linear(F.normalize(x), F.normalize(w))\n"
            "    return torch.sqrt(1.0 - torch.pow(cosine, 2))\n",
            (5,),
        ),
        Invalid("import torch\ndef f(cos_theta):\n    return (1 - cos_theta ** 2).sqrt()\n", (3,)),
        Invalid(
            "import torch\ndef f(a, b):\n    aa = a.pow(2).sum(1, keepdim=True)\n    bb = b.pow(2).sum(1)\n"
            "    return torch.sqrt(aa + bb - 2 * a @ b.t())\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef f(a, b):\n    d = a.pow(2).sum(1, keepdim=True) + b.pow(2).sum(1)\n"
            "    d = d.addmm(a, b.t(), beta=1, alpha=-2)\n    return d.sqrt()\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef f(p, q, dp, dq):\n"
            "    h = torch.sin(dp / 2) ** 2 + torch.cos(p) * torch.cos(q) * torch.sin(dq / 2) ** 2\n"
            "    return 2 * torch.asin(torch.sqrt(h))\n",
            (4,),
        ),
        # what is done to the root afterwards is too late
        Invalid("import torch\ndef f(x):\n    d = x.pow(2).sum(-1)\n    return d.sqrt().clamp(min=1e-6)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    d = x.pow(2).sum(-1)\n    return torch.nan_to_num(d.sqrt())\n", (4,)),
        Invalid("import torch\ndef f(x, m):\n    return x.pow(2).sum(-1).sqrt() * m\n", (3,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass RMSE(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.mse = nn.MSELoss()\n    def forward(self, x, y):\n"
            "        return torch.sqrt(self.mse(x, y))\n",
            (8,),
        ),
        # a helper that squares
        Invalid(
            "import torch\ndef energy(x):\n    return x.pow(2).sum(-1)\ndef f(x):\n    return energy(x).sqrt()\n", (5,)
        ),
        # the gradient is on again
        Invalid(
            "import torch\n@torch.no_grad()\ndef f(x):\n    with torch.enable_grad():\n"
            "        return x.pow(2).sum(-1).sqrt()\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular, judgement in _roots(file):
            value = judgement.value
            formula = vanishing_radicand(file, singular.operand) if not value.non_negative else None
            comes_to_zero = value.zero in (Zero.CERTAIN_ORIGIN, Zero.CONCEIVABLE, Zero.ROUNDED)
            if formula is None and not (value.non_negative and comes_to_zero):
                continue
            if _is_rectified(file, singular.operand) or _added_epsilon(file, singular.node) is not None:
                continue
            if _is_reported_as_division(file, singular) or sum_of_squares(file, singular.operand):
                continue
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, singular.operand)}` is exactly zero {formula or value.zero_because}; the slope of "
                    f"its {singular.form.value} there is infinite, and the gradient becomes NaN."
                ),
                severity=_severity_where(file, singular),
                confidence=None if value.zero is Zero.CERTAIN_ORIGIN else Confidence.MEDIUM,
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement)
                or ((singular.operand, "nothing keeps this above zero: no clamp and no eps under the root"),),
                fix=(
                    vector_norm(file, singular)
                    or deviation(file, singular)
                    or floored(file, singular.operand, FixSafety.UNSAFE)
                ),
            )


def _severity_where(file: FileContext, singular: Singular) -> Severity | None:
    """NOTE for what is hardly ever zero (running statistics, outputs of a whole model, edges), and for data."""
    function = file.enclosing_function(singular.node)
    if function is None:
        return None
    summed = operation_behind(file, singular.operand, "sum", "mean")
    squared = square_of(file, summed.operand) if summed is not None and summed.operand is not None else None
    quiet = _RUNNING.search(function.name) is not None or receives_model_outputs(file, function)
    if squared is not None:
        quiet = quiet or comes_after_blocks(file, squared) or is_quaternion(squared) or is_edge(file, squared)
    quiet = quiet or made_of_raw_inputs(file, singular.operand)
    return Severity.NOTE if quiet else None


def _is_rectified(file: FileContext, operand: ast.expr) -> bool:
    """Whether the operand comes straight out of a ReLU, whose zero slope at zero wins (measured: gradient 0)."""
    definition = file.values.single_definition(operand)
    call = definition if definition is not None else operand
    return isinstance(call, ast.Call) and terminal_name(call.func) in ("relu", "relu_", "relu6")


def _is_reported_as_division(file: FileContext, singular: Singular) -> bool:
    """Whether the root is the whole divisor of a division: that is reported, and mending it mends the root."""
    parent = file.parent(singular.node)
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult):
        parent = file.parent(parent)
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Div):
        return False
    return any(outer is parent.right for outer in (singular.node, *file.ancestors(singular.node)))


class EpsilonOutsideRoot(Rule):
    id = "GP104"
    name = "epsilon-outside-root"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.UNSAFE
    triggers = ("sqrt", "**", "pow")
    documentation = Documentation(
        what_it_does="Finds `sqrt(v) + eps`: an eps that is added after the root instead of before it.",
        why_is_this_bad=(
            "It protects the division that follows, not the root: at `v = 0` the slope of the root is infinite and the "
            "gradient NaN, while the value looks right. Adding the eps shows that the author expects `v` to be zero."
        ),
        faulty_example=(
            "import torch\n\n\ndef normalise(x, eps=1e-5):\n    v = x.var(dim=-1, keepdim=True)\n"
            "    return (x - x.mean(dim=-1, keepdim=True)) / (torch.sqrt(v) + eps)\n"
        ),
        right_example=(
            "import torch\n\n\ndef normalise(x, eps=1e-5):\n    v = x.var(dim=-1, keepdim=True)\n"
            "    return (x - x.mean(dim=-1, keepdim=True)) / torch.sqrt(v + eps)\n"
        ),
        fix_safety=(
            "Moving eps inside changes values slightly (by eps/2 relative to the old divisor where v is 1), and by "
            "design where v is small: use eps squared to keep the same floor."
        ),
    )
    valid = (
        "import torch\ndef f(x, eps=1e-5):\n    return x / torch.sqrt(x.var() + eps)\n",
        # the built-in deviations and norms have a gradient of zero at zero (measured)
        "import torch\ndef f(x, eps=1e-5):\n    return x / (x.std() + eps)\n",
        "import torch\ndef f(x, eps=1e-5):\n    return x / (x.norm() + eps)\n",
        # both are protected
        "import torch\ndef f(x, eps=1e-5):\n    return x / (torch.sqrt(x.var() + eps) + eps)\n",
        "import torch\ndef f(x, eps=1e-5):\n    v = x.var().clamp(min=eps)\n    return x / (v.sqrt() + eps)\n",
        # an optimizer's state is not differentiated
        "import torch\nclass Adam(torch.optim.Optimizer):\n    def step(self, p, v, eps=1e-8):\n"
        "        return p / (v.sqrt() + eps)\n",
        "import torch\n@torch.no_grad()\ndef step(p, v, eps=1e-8):\n    return p / (v.sqrt() + eps)\n",
        "import torch\ndef f(p, v, eps=1e-8):\n    return p / (v.detach().sqrt() + eps)\n",
        # part of the formula, no protection
        "import torch\ndef f(v):\n    return torch.sqrt(v) + 1\n",
        "import math\nimport torch\ndef f(x, eps=1e-8):\n    return x / (math.sqrt(x.size(-1)) + eps)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x, eps=1e-5):\n    return x / (x.var().sqrt() + eps)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x / (1e-8 + torch.sqrt((x ** 2).sum()))\n", (3,)),
        Invalid("import torch\ndef f(x, v, eps):\n    return x / (v ** 0.5 + eps)\n", (3,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self, eps=1e-6):\n"
            "        super().__init__()\n        self.eps = eps\n    def forward(self, x):\n"
            "        v = x.var(-1, keepdim=True)\n        return x / (torch.sqrt(v) + self.eps)\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular, judgement in _roots(file):
            value = judgement.value
            total = _added_epsilon(file, singular.node)
            if singular.form is not Form.ROOT or total is None or value.positive or value.zero is Zero.EXCLUDED:
                continue
            known = value.zero >= Zero.CONCEIVABLE
            because = f" It is zero {value.zero_because}." if value.zero_because else ""
            yield Hit(
                node=total,
                message=(
                    f"The eps stands outside the root: it protects the division, not the gradient of "
                    f"`{shown(file, singular.node)}`, which is NaN where `{shown(file, singular.operand)}` is zero."
                    f"{because}"
                ),
                severity=Severity.NOTE if made_of_raw_inputs(file, singular.operand) else None,
                confidence=None if known else Confidence.MEDIUM,
                hypothesis=hypothesis(file, singular),
                related=(*path_of(file, singular, judgement), (singular.node, "the root is taken before eps is added")),
                fix=_inside(file, singular, total),
            )


def _inside(file: FileContext, singular: Singular, total: ast.BinOp) -> Rewrite | None:
    """The root of the operand plus eps."""
    root = singular.node
    if not isinstance(root, ast.expr):
        return None
    eps = total.right if total.left is root else total.left
    operand = singular.operand
    text = f"{file.source(operand)} + {file.operand_source(eps)}"
    parent = file.parent(operand)
    if not (isinstance(parent, ast.Call) and operand in parent.args) and not file.is_parenthesised(operand):
        text = f"({text})"
    return Rewrite(FixSafety.UNSAFE, (Replacement(total, substituted(file, root, {operand: text})),))
