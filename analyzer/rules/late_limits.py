"""Limits that come after an overflow (GP131), and logarithms of products (GP132).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import exponential_of, operation_behind
from analyzer.handed_over import receives_constants
from analyzer.repairs import arguments_text, has_plain_arguments
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.singularities import Form
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient
from analyzer.values.guards import guarded, value_names
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings

# The ratio of two policies: logarithms of probabilities that were close a moment ago.
_LOG_PROBABILITY = re.compile(r"log_?(p|pi|prob|probs|ratio)($|_|\d)|logprob")


class LimitAfterOverflow(Rule):
    id = "GP131"
    name = "limit-after-overflow"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("exp(",)
    documentation = Documentation(
        what_it_does=(
            "Finds `exp(x).clamp(max=c)`, `torch.minimum(exp(x), c)` and `torch.where(x > 0, x, exp(x) - 1)`: a limit "
            "on the result of an `exp`, or a choice after it."
        ),
        why_is_this_bad=(
            "Where `exp(x)` is inf the value is c, as meant, but the gradient is zero times inf, which is NaN "
            "(measured). A limit on x before the `exp` gives the same values and a gradient of zero."
        ),
        faulty_example="import torch\n\n\ndef scale(x):\n    return torch.exp(x).clamp(max=1e4)\n",
        right_example="import torch\n\n\ndef scale(x):\n    return torch.exp(x.clamp(max=9.21))\n",
        fix_safety="The logarithm of the limit before the `exp` gives the same values, rounding apart.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.exp(x.clamp(max=10)).clamp(min=1e-6)\n",
        "import torch\ndef f(x):\n    return torch.exp(-x.abs()).clamp(max=0.9)\n",
        "import torch\ndef f(x):\n    return torch.exp(x).clamp(min=1e-6)\n",
        # one learned number, which is never that large
        "import torch\nfrom torch import nn\nclass C(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.logit_scale = nn.Parameter(torch.zeros([]))\n    def forward(self, s):\n"
        "        return s * self.logit_scale.exp().clamp(max=100)\n",
        "import torch\ndef f(x):\n    return torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)\n",
        "import torch\ndef f(x, m):\n    return torch.where(m, x, torch.exp(x))\n",
        # the ratio of two policies
        "import torch\ndef f(new_logp, old_logp):\n    return (new_logp - old_logp).exp().clamp(max=2.0)\n",
        "import torch\ndef f(new, old):\n    return (new - old).exp().clamp(0.8, 1.2)\n",
        "import torch\n@torch.no_grad()\ndef f(x):\n    return torch.exp(x).clamp(max=1e4)\n",
        "import torch\ndef f(x):\n    return torch.exp(x.detach()).clamp(max=1e4)\n",
        "import torch\ndef f(x):\n    if x.max() > 80:\n        return x\n    return torch.exp(x).clamp(max=1e4)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.exp(x).clamp(max=1e4)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    e = x.exp()\n    return torch.clamp(e, 1e-4, 1e4)\n", (4,)),
        Invalid("import torch\ndef f(a, b):\n    return (a - b).exp().clamp_max(20.0)\n", (3,)),
        # chosen after the overflow
        Invalid("import torch\ndef f(x):\n    return torch.where(x > 0, x, torch.exp(x) - 1)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    e = 0.1 * x.exp()\n    return torch.where(x < 3, e, x)\n", (3,)),
        Invalid("import torch\ndef f(x, top):\n    return torch.minimum(torch.exp(x), top)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("where"):
            yield from _unchosen(file, call)
        for call in file.calls("clamp", "clip", "clamp_max", "minimum"):
            operation = file.values.operation(call)
            if operation is None or operation.operand is None:
                continue
            name = operation.name
            upper = operation.argument(0 if name in ("clamp_max", "minimum") else 1, "max", "other")
            exponential = exponential_of(file, operation.operand) if upper is not None else None
            if upper is None or exponential is None or exponential.operand is None:
                continue
            exponent = exponential.operand
            value = file.values.value(exponent)
            if value.parameter or value.gradient is Gradient.NO or guarded(file, call, exponent):
                continue
            if receives_constants(file, exponent):
                continue
            if any(_LOG_PROBABILITY.search(name.lower()) for name, _ in value_names(exponent)):
                continue
            if surroundings(file, call) is not Surroundings.DIFFERENTIATED or _is_ratio(file, operation):
                continue
            yield Hit(
                node=call,
                message=(
                    f"The limit comes after `exp({shown(file, exponent)})`, which is inf above 88: the value is right "
                    "there, the gradient is zero times inf, which is NaN. Limit the argument instead."
                ),
                hypothesis={
                    "operand": file.source(exponent),
                    "singular_set": "> 88",
                    "operation": "exponential",
                    "symbol": file.symbol(call),
                    "line": exponent.lineno,
                },
                related=((exponential.call, "this overflows: nothing bounds its argument from above"),),
                fix=_earlier(file, operation, exponential, upper),
            )


def _is_ratio(file: FileContext, clamp: Operation) -> bool:
    """`exp(new - old).clamp(0.8, 1.2)`: a ratio that is kept close to one was close to it before."""
    lower, upper = clamp.argument(0, "min"), clamp.argument(1, "max")
    if clamp.name == "minimum" or lower is None or upper is None:
        return False
    low, high = file.values.value(lower).constant, file.values.value(upper).constant
    return low is not None and high is not None and 0.3 < low < 1 < high < 3


def _unchosen(file: FileContext, call: ast.Call) -> Iterator[Hit]:
    """`where(x > 0, x, exp(x) - 1)`: the branch that is not chosen overflows, and zero times inf is NaN."""
    operation = file.values.operation(call)
    if operation is None or not operation.qualified or len(operation.arguments) != 2 or operation.operand is None:
        return
    condition = file.values.single_definition(operation.operand) or operation.operand
    tested = {name for name, _ in value_names(condition)}
    for branch in operation.arguments:
        computed = file.values.single_definition(branch) or branch
        for inner in ast.walk(computed):
            exponential = exponential_of(file, inner) if isinstance(inner, ast.Call) else None
            if exponential is None or exponential.call is not inner or exponential.operand is None:
                continue
            exponent = exponential.operand
            names = {name for name, node in value_names(exponent) if not file.values.value(node).is_number}
            if not names or not names <= tested or _is_in_formula(file, inner, computed):
                continue
            if file.values.value(exponent).gradient is Gradient.NO or guarded(file, call, exponent):
                continue
            if receives_constants(file, exponent):
                continue
            if surroundings(file, call) is not Surroundings.DIFFERENTIATED:
                continue
            yield Hit(
                node=inner,
                message=(
                    f"`torch.where` hides the result of `exp({shown(file, exponent)})` where it is inf, not its "
                    "gradient: the branch that is not chosen sends back zero times inf, which is NaN. Limit the "
                    "argument instead."
                ),
                hypothesis={
                    "operand": file.source(exponent),
                    "singular_set": "> 88",
                    "operation": "exponential",
                    "symbol": file.symbol(call),
                    "line": exponent.lineno,
                },
                related=((condition, "this condition masks the result, not the argument"),),
            )


def _is_in_formula(file: FileContext, exponential: ast.AST, outermost: ast.AST) -> bool:
    """Whether a logarithm or a division takes up the exponential: these have rules of their own."""
    for outer in file.ancestors(exponential):
        if isinstance(outer, ast.Call) and terminal_name(outer.func) in ("log", "log1p", "log2", "log10"):
            return True
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Div):
            return True
        if outer is outermost:
            return False
    return False


def _earlier(file: FileContext, operation: Operation, exponential: Operation, upper: ast.expr) -> Rewrite | None:
    """The logarithm of a constant limit on the argument, where the `exp` stands in the clamp itself."""
    limit = file.values.value(upper).constant
    exponent = exponential.operand
    if limit is None or limit <= 0 or exponent is None or operation.operand is not exponential.call:
        return None
    if operation.name == "minimum" or (operation.name != "clamp_max" and operation.argument(0, "min") is not None):
        return None
    text = f"{file.operand_source(exponent)}.clamp(max={math.log(limit):.9g}).exp()"
    return Rewrite(FixSafety.SAFE, (Replacement(operation.call, text),))


class LogOfProduct(Rule):
    id = "GP132"
    name = "log-of-product"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("prod", "det")
    documentation = Documentation(
        what_it_does="Finds the logarithm of a product of many factors: `log(x.prod(...))` and `log(torch.det(a))`.",
        why_is_this_bad=(
            "A product of fifty numbers of 0.1 is zero in float32, and of fifty numbers of 10 it is inf: the logarithm "
            "is infinite and the gradient NaN, while the sum of the logarithms is -115. `torch.logdet` and "
            "`torch.linalg.slogdet` do the same for determinants."
        ),
        faulty_example="import torch\n\n\ndef log_likelihood(p):\n    return torch.log(torch.prod(p, dim=-1))\n",
        right_example="import torch\n\n\ndef log_likelihood(p):\n    return torch.log(p).sum(dim=-1)\n",
        fix_safety=(
            "`logdet` gives the same values wherever the determinant was in range (safe), and so does the sum of the "
            "logarithms of factors that are never negative. Where factors may be negative, two of them make a product "
            "that is positive, while their logarithms are NaN (unsafe)."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    return x.log().sum(-1) + torch.logdet(x)\n",
        "import math\nimport torch\ndef f(x):\n    return x * math.log(math.prod(x.shape))\n",
        "import torch\ndef f(x):\n    return torch.log(x.prod(-1) + 1e-8)\n",
        "import torch\ndef f(x):\n    return torch.linalg.slogdet(x).logabsdet\n",
        "import torch\ndef f(x):\n    return torch.log(torch.tensor(x.shape).prod())\n",
        "import torch\nclass M:\n    def f(self, x):\n        self.log('p', x.prod())\n",
    )
    invalid = (
        Invalid("import torch\ndef f(p):\n    return torch.log(torch.prod(p, dim=-1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(torch.prod(x.abs() + 0.1, dim=-1))\n", (3,)),
        Invalid("import torch\ndef f(p):\n    return p.prod(-1, keepdim=True).log()\n", (3,)),
        Invalid("import torch\ndef f(p):\n    joint = p.prod(dim=1)\n    return -joint.log().mean()\n", (4,)),
        Invalid("import torch\ndef f(a):\n    return torch.log(torch.det(a))\n", (3,)),
        Invalid("import torch\ndef f(a):\n    return torch.log(torch.linalg.det(a))\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.LOGARITHM):
            operation = operation_behind(file, singular.operand, "prod", "det")
            if operation is None or operation.operand is None or not isinstance(singular.node, ast.Call):
                continue
            judgement = file.singularities.judge(singular)
            factors = file.values.value(operation.operand)
            if judgement.value.is_number or factors.is_number or factors.is_discrete or _is_shape(operation.operand):
                continue
            if judgement.surroundings is Surroundings.ASIDE:
                continue
            what = "determinant" if operation.name == "det" else "product"
            instead = "`torch.linalg.slogdet`" if operation.name == "det" else "the sum of the logarithms"
            unrecorded = judgement.surroundings is Surroundings.UNRECORDED
            yield Hit(
                node=singular.node,
                message=(
                    f"The {what} `{shown(file, operation.call)}` is zero or inf as soon as there are many factors, and "
                    f"its logarithm infinite: use {instead}."
                ),
                severity=Severity.NOTE if unrecorded else None,
                hypothesis={
                    "operand": file.source(operation.operand),
                    "singular_set": "small",
                    "operation": f"logarithm of a {what}",
                    "symbol": file.symbol(singular.node),
                    "line": singular.operand.lineno,
                },
                related=((operation.call, "the factors are multiplied here"),),
                fix=_as_sum(file, singular.node, operation, singular.operand),
            )


def _is_shape(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "shape" for node in ast.walk(expression))


def _as_sum(file: FileContext, node: ast.Call, operation: Operation, operand: ast.expr) -> Rewrite | None:
    factors = operation.operand
    if operand is not operation.call or factors is None or terminal_name(node.func) != "log":
        return None
    if operation.name == "det":
        spelled = file.spelling("torch.logdet")
        text = f"{spelled}({file.source(factors)})" if spelled is not None else None
    elif has_plain_arguments(operation):
        text = f"{file.operand_source(factors)}.log().sum({', '.join(arguments_text(file, operation))})"
    else:
        text = None
    same = operation.name == "det" or file.values.value(factors).low >= 0
    safety = FixSafety.SAFE if same else FixSafety.UNSAFE
    return Rewrite(safety, (Replacement(node, text),)) if text is not None else None
