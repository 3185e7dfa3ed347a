"""Inverse hyperbolic functions written out with a logarithm (GP130). This module must not analyse values itself."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import core, is_number, one_minus, one_plus, operation_behind, square_of, still_means, terms
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.singularities import Form, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Value
from analyzer.values.guards import guarded
from analyzer.values.surroundings import Surroundings

_LIMITS = ("clamp", "clip", "clamp_min", "relu", "abs", "maximum")


class HandWrittenInverseHyperbolic(Rule):
    id = "GP130"
    name = "hand-written-inverse-hyperbolic"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("log",)
    documentation = Documentation(
        what_it_does=(
            "Finds `log(x + sqrt(x ** 2 - 1))` of an x that nothing keeps above 1, `log(x + sqrt(x ** 2 + 1))` of an x "
            "that can be negative, and `log((1 + x) / (1 - x))` of an x that can be exactly 1 or -1."
        ),
        why_is_this_bad=(
            "The first is the logarithm of a negative number as soon as rounding puts x below 1 and x is negative, "
            "and clamping what stands under the root does not change that. The second cancels: for x = -10000 the sum "
            "is exactly 0 in float32, and its logarithm -inf where the right value is -9.9 (measured). The third is "
            "infinite at the edge. Points on a hyperboloid or in a ball drift there."
        ),
        faulty_example=(
            "import torch\n\n\ndef distance(x, tiny=1e-7):\n"
            "    return torch.log(x + torch.sqrt(torch.clamp(x * x - 1.0, min=tiny)))\n"
        ),
        right_example=(
            "import torch\n\n\ndef distance(x, tiny=1e-7):\n    x = x.clamp(min=1.0)\n"
            "    return torch.log(x + torch.sqrt(torch.clamp(x * x - 1.0, min=tiny)))\n"
        ),
        fix_safety=(
            "`torch.asinh(x)` gives the same values wherever the old code was finite (safe). "
            "`torch.acosh(x.clamp(min=1 + 1e-6))` and `torch.atanh` of a clamped x move values at the edge (unsafe)."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.asinh(x) + torch.acosh(x) + torch.atanh(x)\n",
        "import torch\ndef f(x):\n    x = x.clamp(min=1 + 1e-6)\n    return torch.log(x + torch.sqrt(x * x - 1))\n",
        "import torch\ndef f(x):\n    x = 1 + x ** 2\n    return torch.log(x + (x ** 2 - 1).clamp(min=1e-9).sqrt())\n",
        "import torch\ndef f(x):\n    x = x.abs()\n    return torch.log(x + torch.sqrt(x ** 2 + 1))\n",
        "import torch\ndef f(x):\n    x = x.clamp(-0.999, 0.999)\n    return 0.5 * torch.log((1 + x) / (1 - x))\n",
        # nothing says that x reaches the edge
        "import torch\ndef f(x):\n    return 0.5 * torch.log((1 + x) / (1 - x))\n",
        "import torch\ndef f(x, y):\n    return torch.log(x + torch.sqrt(y ** 2 + 1))\n",
        "import torch\ndef f(x, y):\n    x = x.clamp(-1, 1)\n    return torch.log((1 + x) / (1 - y))\n",
        "import torch\ndef f(x):\n    return torch.log(x + (x * x - 1) ** 2)\n",
        "import math\nimport torch\ndef f(w, x: float):\n    return w * math.log(x + math.sqrt(x * x - 1))\n",
        "import torch\ndef f(x):\n    if (x < 1).any():\n        raise ValueError\n"
        "    return torch.log(x + torch.sqrt(x * x - 1))\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.log(x + torch.sqrt(x * x - 1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log((x ** 2 - 1).clamp(min=1e-7).sqrt() + x)\n", (3,)),
        Invalid(
            "import torch\ndef f(u, v, tiny=1e-7):\n    x = (u * v).sum(-1)\n"
            "    root = torch.sqrt(torch.clamp(x * x - 1.0, min=tiny))\n    return torch.log(x + root)\n",
            (5,),
        ),
        Invalid("import torch\ndef f(x):\n    return torch.log(x + torch.sqrt(x ** 2 + 1))\n", (3,)),
        Invalid(
            "import torch\ndef f(x):\n    x = x.clamp(-1, 1)\n    return 0.5 * torch.log((1 + x) / (1 - x))\n", (4,)
        ),
        # one side is enough; a root may be a power
        Invalid(
            "import torch\ndef f(x):\n    x = x.clamp(max=1)\n    return 0.5 * torch.log((1 + x) / (1 - x))\n", (4,)
        ),
        Invalid("import torch\ndef f(x):\n    return torch.log(x + (x * x - 1) ** 0.5)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    y = torch.tanh(x)\n    return torch.log((1 + y) / (1 - y)) / 2\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.LOGARITHM):
            found = _of_root(file, singular) or _of_quotient(file, singular)
            if found is None:
                continue
            judgement = file.singularities.judge(singular)
            argument, name, because = found
            if judgement.surroundings is Surroundings.ASIDE or guarded(file, singular.node, argument):
                continue
            unrecorded = judgement.surroundings is Surroundings.UNRECORDED
            without_gradient = unrecorded or file.values.value(argument).gradient is Gradient.NO
            yield Hit(
                node=singular.node,
                message=f"{because} This is `{name}` written out by hand.",
                severity=Severity.NOTE if without_gradient else None,
                hypothesis={
                    "operand": file.source(argument),
                    "singular_set": {"acosh": "< 1", "asinh": "< -3000", "atanh": "abs(operand) >= 1"}[name],
                    "operation": name,
                    "symbol": file.symbol(singular.node),
                    "line": argument.lineno,
                },
                related=((argument, "nothing keeps this inside"),),
                fix=_fix(file, singular, argument, name),
            )


def _of_root(file: FileContext, singular: Singular) -> tuple[ast.expr, str, str] | None:
    """`x + sqrt(x ** 2 - 1)` and `x + sqrt(x ** 2 + 1)`, also with a clamp under the root."""
    both = terms(core(file, singular.operand))
    if both is None:
        return None
    for argument, root in (both, both[::-1]):
        radicand = _under_root(file, root)
        if (
            radicand is None
            or not isinstance(radicand.op, (ast.Add, ast.Sub))
            or not is_number(file, radicand.right, 1)
        ):
            continue
        squared = square_of(file, core(file, radicand.left))
        value = file.values.value(argument)
        if squared is None or ast.dump(squared) != ast.dump(argument) or value.is_number:
            continue
        text = shown(file, argument)
        if isinstance(radicand.op, ast.Sub) and value.low < 1:
            because = f"Nothing keeps `{text}` above 1: below -1 this is the logarithm of a negative number."
            return argument, "acosh", because
        if isinstance(radicand.op, ast.Add) and not value.non_negative:
            return (
                argument,
                "asinh",
                f"For `{text}` below -3000 the sum is exactly zero in float32, its logarithm -inf.",
            )
    return None


def _under_root(file: FileContext, root: ast.expr) -> ast.BinOp | None:
    operation = operation_behind(file, root, "sqrt")
    inner = operation.operand if operation is not None else None
    power = core(file, root)
    if inner is None and isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow):
        inner = power.left if is_number(file, power.right, 0.5) else None
    if inner is None:
        return None
    limited = operation_behind(file, inner, *_LIMITS)
    found = core(file, limited.operand if limited is not None and limited.operand is not None else inner)
    return found if isinstance(found, ast.BinOp) else None


def _of_quotient(file: FileContext, singular: Singular) -> tuple[ast.expr, str, str] | None:
    """`(1 + x) / (1 - x)` for an x that comes to the edge."""
    quotient = core(file, singular.operand)
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
        return None
    above, below = one_plus(file, quotient.left), one_minus(file, quotient.right)
    if above is None or below is None or ast.dump(above) != ast.dump(below):
        return None
    value = file.values.value(above)
    if value.is_number or not _comes_to_edge(value):
        return None
    return above, "atanh", f"`{shown(file, above)}` can be exactly 1 or -1, where this logarithm is infinite."


def _comes_to_edge(value: Value) -> bool:
    above = value.high >= 1 and not value.high_open and not math.isinf(value.high)
    below = value.low <= -1 and not value.low_open and not math.isinf(value.low)
    return above or below


def _fix(file: FileContext, singular: Singular, argument: ast.expr, name: str) -> Rewrite | None:
    node, spelled = singular.node, file.spelling(f"torch.{name}")
    is_natural = isinstance(node, ast.Call) and terminal_name(node.func) == "log"
    if spelled is None or not is_natural or not isinstance(node, ast.expr) or not still_means(file, argument, node):
        return None
    if name == "asinh":
        return Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({file.source(argument)})"),))
    if name == "acosh":
        text = f"{spelled}({file.operand_source(argument)}.clamp(min=1 + 1e-6))"
        return Rewrite(FixSafety.UNSAFE, (Replacement(node, text),))
    # The factor of one half may stand anywhere around it.
    text = f"2 * {spelled}({file.operand_source(argument)}.clamp(-1 + 1e-6, 1 - 1e-6))"
    return Rewrite(FixSafety.UNSAFE, (Replacement(node, text),))
