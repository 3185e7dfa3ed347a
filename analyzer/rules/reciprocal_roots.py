"""Reciprocal square roots of tensors that can be exactly zero (GP105). This module must not analyse values itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.repairs import floored
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import hypothesis, path_of, place, shown
from analyzer.singularities import Form, Judgement
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Zero
from analyzer.values.surroundings import Surroundings

_REPAIRS = frozenset({"masked_fill", "masked_fill_", "where", "nan_to_num", "nan_to_num_", "isinf"})


class ReciprocalRootAtZero(Rule):
    id = "GP105"
    name = "rsqrt-at-zero"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.UNSAFE
    triggers = ("rsqrt", "**", "pow")
    documentation = Documentation(
        what_it_does=(
            "Finds `rsqrt(v)`, `v ** -0.5` and `v.pow(-0.5)` of a tensor that is exactly zero for inputs that occur in "
            "practice - a mean of squares, a variance, the degree of a node without neighbours - with no eps in it."
        ),
        why_is_this_bad=(
            "At zero the value is inf and the slope -inf. Filling the infinities of the result afterwards "
            "(`masked_fill(r == inf, 0)`, as graph convolutions do with degrees) repairs the value; the gradient of "
            "whatever the operand was computed from is NaN."
        ),
        faulty_example=(
            "import torch\n\n\ndef rms_norm(x, scale):\n"
            "    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * scale\n"
        ),
        right_example=(
            "import torch\n\n\ndef rms_norm(x, scale, eps=1e-6):\n"
            "    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale\n"
        ),
        fix_safety=(
            "`clamp(min=1e-12)` under the root changes values only below the floor, where the old result was above a "
            "million; it is marked unsafe because those values were finite."
        ),
    )
    valid = (
        "import torch\ndef f(x, eps=1e-6):\n    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)\n",
        "import torch\ndef f(x):\n    return x.var(-1).clamp(min=1e-8).rsqrt()\n",
        "import torch\ndef f(x):\n    v = x.var(-1)\n    v = v + 1e-5\n    return v ** -0.5\n",
        "import torch\ndef f(x):\n    return torch.rsqrt(1 + x ** 2)\n",
        # nothing is known of it
        "import torch\ndef f(x):\n    return torch.rsqrt(x)\n",
        "import torch\ndef f(head_dim: int):\n    return head_dim ** -0.5\n",
        "import torch\nclass A:\n    def __init__(self, dim):\n        self.scale = dim ** -0.5\n",
        "import torch\ndef f(q):\n    return q * q.shape[-1] ** -0.5\n",
        # a degree that counts edges carries no gradient, and its infinities are filled
        "import torch\ndef f(index, n):\n    d = torch.bincount(index, minlength=n)\n    r = d.float().pow(-0.5)\n"
        "    return r.masked_fill(r == float('inf'), 0.0)\n",
        "import torch\ndef f(index, n):\n    r = torch.nan_to_num(torch.bincount(index).float().pow(-0.5), posinf=0)\n"
        "    return r\n",
        # a trained parameter
        "import torch\nfrom torch import nn\nclass W(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.v = nn.Parameter(torch.ones(3))\n    def forward(self, x):\n"
        "        return x * self.v.norm() ** -0.5\n",
        # masked on the input side
        "import torch\ndef f(x):\n    d = x.pow(2).sum(-1)\n    safe = torch.where(d > 0, d, torch.ones_like(d))\n"
        "    return torch.where(d > 0, safe.rsqrt(), 0.0)\n",
        "import torch\ndef f(x):\n    d = x.pow(2).sum(-1)\n    return d[d > 0].rsqrt()\n",
        "import torch\ndef f(x):\n    d = x.pow(2).sum()\n    if d == 0:\n        return x\n    return x * d.rsqrt()\n",
        "import torch\nclass Adafactor(torch.optim.Optimizer):\n    def step(self, v):\n"
        "        return v.pow(2).mean().rsqrt()\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.rsqrt((x * x).mean(-1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x * x.pow(2).sum(-1, keepdim=True) ** -0.5\n", (3,)),
        Invalid("import torch\ndef f(x):\n    v = x.var(dim=0)\n    return x * v.rsqrt()\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.pow(x.square().mean(-1), -0.5)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.clamp(min=0).rsqrt()\n", (3,)),
        # a degree out of learned edge weights: the repair comes too late for their gradient
        Invalid(
            "import torch\ndef f(x, dst, weight):\n    d = torch.zeros(len(x)).index_add(0, dst, weight)\n"
            "    r = d.pow(-0.5)\n    return r.masked_fill(r == float('inf'), 0.0)\n",
            (4,),
        ),
        # a count whose infinities nobody fills
        Invalid("import torch\ndef f(x, i, n):\n    return x * torch.bincount(i, minlength=n).float() ** -0.5\n", (3,)),
        Invalid("import torch\ndef f(a):\n    d = a.relu().sum(-1)\n    return d ** -0.5\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x.pow(2).mean(-1).rsqrt())\n", (3,)),
        # below what float16 can hold
        Invalid("import torch\ndef f(x):\n    return x.half().pow(2).mean(-1).clamp(min=1e-8).rsqrt()\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.RECIPROCAL_ROOT):
            judgement = file.singularities.judge(singular)
            value = judgement.value
            comes_to_zero = value.zero is Zero.CERTAIN_ORIGIN or (value.zero is Zero.ROUNDED and value.low <= 1e-7)
            if not comes_to_zero or value.parameter or judgement.guarded:
                continue
            if judgement.surroundings is Surroundings.ASIDE:
                continue
            without_gradient = _is_without_gradient(judgement)
            if without_gradient and _is_repaired(file, singular.node):
                continue
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, singular.operand)}` is zero {value.zero_because}, and nothing is added to it: "
                    f"{place(judgement)} there."
                ),
                severity=Severity.NOTE if _is_value_only(file, singular.node, judgement) else None,
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement),
                fix=floored(file, singular.operand, FixSafety.UNSAFE),
            )


def _is_value_only(file: FileContext, node: ast.AST, judgement: Judgement) -> bool:
    """Whether no gradient is recorded, or the operand is a count from elsewhere, of which its own code knows more."""
    if judgement.surroundings is Surroundings.UNRECORDED:
        return True
    origin = judgement.value.origin
    is_own = origin is not None and file.enclosing_function(origin) is file.enclosing_function(node)
    return judgement.value.gradient is Gradient.NO and not is_own


def _is_without_gradient(judgement: Judgement) -> bool:
    return judgement.surroundings is Surroundings.UNRECORDED or judgement.value.gradient is Gradient.NO


def _is_repaired(file: FileContext, node: ast.AST) -> bool:
    """Whether the infinities of the result are filled: right, where no gradient flows."""
    scope, statement = file.enclosing_function(node), file.statement(node)
    if scope is None:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    if any(isinstance(outer, ast.Call) and terminal_name(outer.func) in _REPAIRS for outer in file.ancestors(node)):
        return True
    repairs = [call for call in file.nodes_in(scope, ast.Call) if terminal_name(call.func) in _REPAIRS]
    places: list[ast.expr] = [*repairs, *file.nodes_in(scope, ast.Compare)]
    return any(isinstance(name, ast.Name) and name.id in names for place in places for name in ast.walk(place))
