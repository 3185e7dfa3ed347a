"""Inverse functions at the edge of their domain, where the slope is infinite (GP112).

A clamp to the closed interval makes the value right and leaves the gradient infinite. This module must not analyse
values itself.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import core, is_cosine, is_number, minus_one, one_plus, operation_behind
from analyzer.repairs import clamped_between
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, path_of, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.values.domain import Precision

# A product summed up, or a trace: how cosines are written out by hand.
_COSINES = ("sum", "einsum", "matmul", "mm", "bmm", "dot", "inner", "cosine_similarity", "vecdot")
# The largest float32 below one is 1 - 6e-8; the slope of acos at 1 - 1e-6 is 707. float16 has nothing between
# 0.9995 and 1.
_MARGIN = "1e-6"
_MARGIN_OF_LOW_PRECISION = "1e-2"


class InverseFunctionAtEdge(Rule):
    id = "GP112"
    name = "inverse-function-at-edge"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.UNSAFE
    triggers = ("acos", "asin", "arccos", "arcsin", "atanh", "arctanh", "acosh", "arccosh", "erfinv", "logit")
    documentation = Documentation(
        what_it_does=(
            "Finds `acos`, `asin`, `acosh`, `atanh`, `erfinv` and `logit` of a tensor that can lie on the edge of "
            "their domain: clamped to exactly `[-1, 1]`, a cosine, a probability, or a clamp whose bound rounds to 1."
        ),
        why_is_this_bad=(
            "At the edge the slope is infinite. `acos(x.clamp(-1, 1))` of two equal directions gives the right angle, "
            "0, and a gradient of -inf; the next product with a zero makes it NaN. `1 - 1e-8` is 1 in float32."
        ),
        faulty_example=(
            "import torch\n\n\ndef angle(u, v):\n    return torch.acos((u * v).sum(-1).clamp(-1.0, 1.0))\n"
        ),
        right_example=(
            "import torch\n\n\ndef angle(u, v):\n"
            "    cross = torch.linalg.vector_norm(torch.linalg.cross(u, v), dim=-1)\n"
            "    return torch.atan2(cross, (u * v).sum(-1))\n"
        ),
        fix_safety=(
            "Clamping to `[-1 + 1e-6, 1 - 1e-6]` moves values at the edge (an angle of 0 becomes 0.0014) and takes "
            "their gradient away, so the fix is unsafe. `atan2(|u x v|, u . v)` is exact everywhere, but needs both "
            "vectors. In float16 the margin has to be 1e-2."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6))\n",
        "import torch\ndef f(x):\n    return torch.acos(x.clamp(-0.999, 0.999))\n",
        "import torch\ndef f(x, eps=1e-6):\n    return torch.acos(torch.clamp(x, -1 + eps, 1 - eps))\n",
        "import torch\ndef f(x, eps):\n    return torch.acos(torch.clamp(x, -1 + eps, 1 - eps))\n",
        "import torch\ndef f(x, eps=1e-5):\n    limit = 1.0 - eps\n    return x.clamp(-limit, limit).asin()\n",
        # measured by the quadrant instead: the gradient is finite everywhere
        "import torch\ndef f(y, x):\n    return torch.atan2(y, x)\n",
        "import torch\ndef f(x):\n    return torch.atan(x)\n",
        # no gradient flows
        "import torch\n@torch.no_grad()\ndef f(x):\n    return torch.acos(x.clamp(-1, 1))\n",
        "import torch\ndef f(x):\n    return torch.acos(x.detach().clamp(-1, 1))\n",
        "import torch\ndef f(x):\n    return torch.rad2deg(torch.acos(x.clamp(-1, 1))).item()\n",
        # numbers and arrays
        "import math\nimport torch\ndef f(x):\n    return x * math.acos(0.5)\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.arccos(np.clip(x, -1, 1))\n",
        # nothing says that the operand reaches the edge
        "import torch\ndef f(x):\n    return torch.atanh(x)\n",
        "import torch\ndef f(x):\n    return torch.asin(x)\n",
        "import torch\ndef f(x):\n    return torch.asin(0.9 * torch.tanh(x))\n",
        "import torch\ndef f(x):\n    return torch.acosh(1 + 1e-6 + x ** 2)\n",
        "import torch\ndef f(x):\n    return torch.acosh(1 + x.exp())\n",
        "import torch\ndef f(x):\n    return torch.acos(2 * x) + torch.acos((x - 3) / 2)\n",
        # the function's own guard
        "import torch\ndef f(x):\n    return torch.logit(x.sigmoid(), eps=1e-6)\n",
        "import torch\ndef f(x):\n    return torch.logit(x.sigmoid(), 1e-6)\n",
        "import torch\ndef f(x):\n    return torch.logit(x)\n",
        # masked on the input side, tested
        "import torch\ndef f(x):\n    c = x.clamp(-1, 1)\n    inside = c[c.abs() < 1]\n    return torch.acos(inside)\n",
        "import torch\ndef f(x):\n    c = x.clamp(-1, 1)\n    assert (c.abs() < 1).all()\n    return torch.acos(c)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.acos(x.clamp(-1, 1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.acos(torch.clamp(x, min=-1.0, max=1.0))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.clip(-1, 1).arccos()\n", (3,)),
        Invalid(
            "import torch\ndef f(x):\n    c = (x * x.roll(1)).sum(-1).clamp(-1.0, 1.0)\n    return c.acos()\n", (4,)
        ),
        Invalid("import torch\ndef f(x):\n    return torch.asin(x.clamp(max=1.0))\n", (3,)),
        # rounds to one in float32
        Invalid("import torch\ndef f(x):\n    return torch.acos(x.clamp(-1 + 1e-8, 1 - 1e-8))\n", (3,)),
        Invalid("import torch\ndef f(x, eps=1e-9):\n    return x.clamp(-1 + eps, 1 - eps).atanh()\n", (3,)),
        # one side only
        Invalid("import torch\ndef f(x):\n    return torch.acos(x.clamp(-1.0, 0.999))\n", (3,)),
        # a cosine, never clamped: rounding alone puts it at or beyond one
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(a, b):\n"
            "    return torch.acos(F.cosine_similarity(a, b, dim=-1))\n",
            (4,),
        ),
        Invalid("import torch\ndef f(a, b):\n    return torch.acos((a * b).sum(-1))\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(a, b):\n    a = F.normalize(a, dim=-1)\n"
            "    return torch.acos(a @ F.normalize(b, dim=-1).t())\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef f(a, b):\n    lengths = a.norm(dim=-1) * b.norm(dim=-1) + 1e-8\n"
            "    return torch.acos((a * b).sum(-1) / lengths)\n",
            (4,),
        ),
        # angles of rotations
        Invalid(
            "import torch\ndef f(r):\n    trace = r[..., 0, 0] + r[..., 1, 1] + r[..., 2, 2]\n"
            "    return torch.acos((trace - 1) / 2)\n",
            (4,),
        ),
        Invalid("import torch\ndef f(r):\n    return torch.acos(0.5 * (torch.trace(r) - 1.0))\n", (3,)),
        Invalid("import torch\ndef f(w, x, y, z):\n    return torch.asin(2 * (w * y - z * x))\n", (3,)),
        # distances in hyperbolic space
        Invalid("import torch\ndef f(d, a, b):\n    return torch.acosh(1 + 2 * d / ((1 - a) * (1 - b)))\n", (3,)),
        Invalid("import torch\ndef f(u, v):\n    return torch.acosh(-(u * v).sum(-1))\n", (3,)),
        # the other functions
        Invalid("import torch\ndef f(x):\n    return torch.acosh(x.clamp(min=1.0))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.atanh(torch.tanh(x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.erfinv(x.clamp(-1, 1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.special.erfinv(2 * x.sigmoid() - 1)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.logit(x.clamp(0, 1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.sigmoid().logit()\n", (3,)),
        # too late
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(torch.acos(x.clamp(-1, 1)))\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.INVERSE):
            judgement = file.singularities.judge(singular)
            evidence = _evidence(file, singular, judgement)
            if evidence is None or judgement.guarded or not judgement.differentiable:
                continue
            reached, confidence = evidence
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, singular.operand)}` {reached}, where the slope of `{singular.name}` is infinite: "
                    "the gradient there is inf, and NaN after the next product with zero. Keep it strictly inside."
                ),
                confidence=confidence,
                hypothesis=hypothesis(file, singular),
                related=_path(file, singular, judgement),
                fix=_fix(file, singular, judgement),
            )


def _evidence(file: FileContext, singular: Singular, judgement: Judgement) -> tuple[str, Confidence | None] | None:
    """How the operand is known to come to the edge, and how sure that is."""
    domain, value = singular.domain, judgement.value
    edges = []
    # Bounds beyond the domain come from adding up bounds, and say nothing about what occurs.
    if value.low == domain.low and not value.low_open:
        edges.append(f"{domain.low:g}")
    if not math.isinf(value.high) and (value.high == domain.high or (value.high > domain.high and value.reaches_high)):
        edges.append(f"{domain.high:g}")
    if edges:
        return f"can be exactly {' or '.join(edges)}", None
    if singular.name in ("acos", "asin", "arccos", "arcsin"):
        if _is_cosine(file, singular.operand):
            return "is a cosine that rounding can bring to 1 or beyond", Confidence.MEDIUM
        if _is_rotation(file, singular.operand):
            return "is an entry of a rotation that rounding can bring to 1 or beyond", Confidence.MEDIUM
    if singular.name in ("acosh", "arccosh") and _starts_at_one(file, singular.operand):
        return "is exactly 1 for two equal points, or below by rounding", Confidence.MEDIUM
    return None


def _is_rotation(file: FileContext, operand: ast.expr) -> bool:
    """`(trace - 1) / 2` of a rotation matrix, `2 * (w * y - x * z)` of a quaternion."""
    found = core(file, operand)
    if not isinstance(found, ast.BinOp):
        return False
    if isinstance(found.op, ast.Div):
        return is_number(file, found.right, 2.0) and _is_trace_less_one(file, found.left)
    if not isinstance(found.op, ast.Mult):
        return False
    return any(
        (is_number(file, scale, 0.5) and _is_trace_less_one(file, scaled))
        or (is_number(file, scale, 2.0) and _is_difference_of_products(file, core(file, scaled)))
        for scale, scaled in ((found.left, found.right), (found.right, found.left))
    )


def _is_trace_less_one(file: FileContext, expression: ast.expr) -> bool:
    trace = minus_one(file, expression)
    return trace is not None and not file.values.value(trace).is_number


def _is_difference_of_products(file: FileContext, expression: ast.expr) -> bool:
    if not isinstance(expression, ast.BinOp) or not isinstance(expression.op, (ast.Add, ast.Sub)):
        return False
    sides = [core(file, side) for side in (expression.left, expression.right)]
    return all(isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult) for side in sides)


def _starts_at_one(file: FileContext, operand: ast.expr) -> bool:
    """`1 + x` of a distance x, and minus the inner product of a hyperboloid."""
    more = one_plus(file, operand)
    if more is not None:
        value = file.values.value(more)
        return not value.is_number and not value.positive
    found = core(file, operand)
    if not isinstance(found, ast.UnaryOp) or not isinstance(found.op, ast.USub):
        return False
    return operation_behind(file, found.operand, *_COSINES) is not None


def _is_cosine(file: FileContext, operand: ast.expr) -> bool:
    if is_cosine(file, operand):
        return True
    quotient = core(file, operand)
    if isinstance(quotient, ast.BinOp) and isinstance(quotient.op, ast.Div):
        # `(a * b).sum(-1) / (|a| * |b|)`
        return not file.values.value(quotient.right).is_number and _is_cosine(file, quotient.left)
    operation = operation_behind(file, operand, *_COSINES)
    if operation is None or operation.operand is None:
        return isinstance(found := core(file, operand), ast.BinOp) and isinstance(found.op, ast.MatMult)
    if operation.name != "sum":
        return True
    summed = core(file, operation.operand)
    return isinstance(summed, ast.BinOp) and isinstance(summed.op, ast.Mult)


def _path(file: FileContext, singular: Singular, judgement: Judgement) -> tuple[tuple[ast.AST, str], ...]:
    clamp = operation_behind(file, singular.operand, "clamp", "clip", "clamp_min", "clamp_max")
    if clamp is None or file.enclosing_function(clamp.call) is not file.enclosing_function(singular.node):
        return path_of(file, singular, judgement)
    return ((clamp.call, "this clamp stops exactly at the edge, and lets the gradient through there"),)


def _fix(file: FileContext, singular: Singular, judgement: Judgement) -> Rewrite | None:
    """Move the bounds of the clamp that is there inwards, or put one around the operand."""
    domain = singular.domain
    low = judgement.value.precision in (Precision.HALF, Precision.BFLOAT16)
    margin = _MARGIN_OF_LOW_PRECISION if low else _MARGIN
    clamp = operation_behind(file, singular.operand, "clamp", "clip")
    if clamp is not None and file.enclosing_function(clamp.call) is file.enclosing_function(singular.node):
        bounds = (clamp.argument(0, "min"), clamp.argument(1, "max"))
        moved = [
            Replacement(bound, f"{edge:g} {sign} {margin}" if edge else margin)
            for bound, edge, sign in zip(bounds, (domain.low, domain.high), "+-", strict=True)
            if bound is not None and file.values.value(bound).constant is not None and not math.isinf(edge)
            and not _is_inside(file.values.value(bound).constant, edge, sign)
        ]  # fmt: skip
        missing = any(
            bound is None and not math.isinf(edge)
            for bound, edge in zip(bounds, (domain.low, domain.high), strict=True)
        )
        if moved and not missing:
            return Rewrite(FixSafety.UNSAFE, tuple(moved))
    text = clamped_between(file, singular.operand, domain.low, domain.high, margin)
    return Rewrite(FixSafety.UNSAFE, (Replacement(singular.operand, text),))


def _is_inside(bound: float | None, edge: float, sign: str) -> bool:
    """Whether a bound already keeps a margin that a float32 can tell from the edge."""
    if bound is None:
        return False
    return bound >= edge + 1e-7 if sign == "+" else bound <= edge - 1e-7
