"""Sums and quotients of exponentials that are written out by hand and overflow (GP110, GP128).

`softplus`, `logsumexp`, `softmax` and `sigmoid` compute the same without ever leaving the range of floats. This module
must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import (
    can_overflow,
    core,
    exponential_of,
    growing_exponential,
    is_bounded,
    maximum_subtracted,
    one_plus,
    operation_behind,
    same,
    still_means,
    summed_exponential,
    terms,
)
from analyzer.repairs import has_plain_arguments, reduced_dimension
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.singularities import Form, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Zero
from analyzer.values.guards import guarded
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings


def _hypothesis(file: FileContext, node: ast.expr, exponent: ast.expr, singular_set: str) -> dict[str, object]:
    return {
        "operand": file.source(exponent),
        "singular_set": singular_set,
        "operation": "exponential",
        "symbol": file.symbol(node),
        "line": exponent.lineno,
    }


def _severity(file: FileContext, node: ast.AST, exponent: ast.expr) -> Severity | None:
    """Where no gradient flows only the value is at stake: worth a note."""
    unrecorded = surroundings(file, node) is Surroundings.UNRECORDED
    return Severity.NOTE if unrecorded or file.values.value(exponent).gradient is Gradient.NO else None


def _is_safe_place(file: FileContext, node: ast.AST, exponent: ast.expr) -> bool:
    return surroundings(file, node) is Surroundings.ASIDE or guarded(file, node, exponent)


class OverflowingExponentials(Rule):
    id = "GP110"
    name = "overflowing-exponentials"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("exp(", "cosh(")
    documentation = Documentation(
        what_it_does=(
            "Finds `log(1 + exp(x))`, `log(exp(x).sum())`, `log(exp(a) + exp(b))`, `log(cosh(x))` and "
            "`exp(x) / exp(x).sum()` that are written out by hand, with nothing that bounds x; also a `logsumexp` by "
            "hand that subtracts the maximum of the whole tensor instead of that of each row."
        ),
        why_is_this_bad=(
            "`exp` is inf above 88.7 in float32 and bfloat16, and above 11 in float16; below -104 it is zero, and the "
            "logarithm of the sum -inf. Value and gradient become inf or NaN for inputs that the function itself is "
            "harmless at. `softplus`, `logsumexp` and `softmax` shift by the maximum of each row."
        ),
        faulty_example="import torch\n\n\ndef log_partition(x):\n    return torch.log(torch.exp(x).sum(dim=-1))\n",
        right_example="import torch\n\n\ndef log_partition(x):\n    return torch.logsumexp(x, dim=-1)\n",
        fix_safety="The named functions give the same values wherever the old code was finite, rounding apart.",
    )
    valid = (
        "import torch\nimport torch.nn.functional as F\ndef f(x):\n"
        "    return F.softplus(x) + x.logsumexp(-1) + x.softmax(-1)\n",
        # shifted by the maximum
        "import torch\ndef f(x):\n    m = x.amax(dim=-1, keepdim=True)\n"
        "    return (torch.exp(x - m).sum(-1, keepdim=True)).log() + m\n",
        "import torch\ndef f(x):\n    m, _ = x.max(dim=1, keepdim=True)\n    e = torch.exp(x - m.detach())\n"
        "    return e / e.sum(1, keepdim=True)\n",
        "import torch\ndef f(x):\n    x = x - torch.max(x, dim=-1, keepdim=True).values\n    e = x.exp()\n"
        "    return e / e.sum(-1, keepdim=True)\n",
        # bounded above
        "import torch\ndef f(x):\n    return torch.log(1 + torch.exp(-x.abs()))\n",
        "import torch\ndef f(x):\n    return torch.log(1 + torch.exp(x.clamp(max=50)))\n",
        "import torch\ndef f(x):\n    w = torch.exp(-x ** 2)\n    return w / w.sum(-1, keepdim=True)\n",
        "import torch\ndef f(x):\n    return torch.log(torch.exp(torch.tanh(x)).sum(-1))\n",
        "import torch\nimport torch.nn.functional as F\ndef f(a, b, t):\n"
        "    s = F.cosine_similarity(a, b, dim=-1) / t\n    return torch.log(torch.exp(s).sum(-1))\n",
        "import torch\nimport torch.nn.functional as F\ndef f(a, t=0.1):\n    a = F.normalize(a, dim=-1)\n"
        "    s = torch.exp(a @ a.t() / t)\n    return s / s.sum(-1, keepdim=True)\n",
        # numbers and arrays
        "import math\nimport torch\ndef f(x, k: float):\n    return x * math.log(1 + math.exp(k))\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.log(np.sum(np.exp(x)))\n",
        # tested before
        "import torch\ndef f(x):\n    if x.max() > 80:\n        return x\n    return torch.log(1 + torch.exp(x))\n",
        "import torch\nclass PerplexityMetric:\n    def update(self, x):\n        return torch.log(x.exp().sum(-1))\n",
        "import torch\ndef f(x, y):\n    return torch.exp(x) / y.sum(-1)\n",
        "import torch\ndef f(x):\n    return torch.log(torch.cosh(x.clamp(-20, 20)))\n",
        "import torch\ndef f(a, b):\n    return torch.logaddexp(a, b)\n",
        "import torch\ndef evaluate(x):\n    return torch.log(torch.cosh(x))\n",
        # other rules' formulas
        "import torch\ndef f(d, mask):\n    return torch.log((torch.exp(-d ** 2) * mask).sum(-1))\n",
        "import torch\ndef f(x):\n    return torch.exp(x) / (1 + torch.exp(x))\n",
        "import torch\ndef f(a, b):\n    return torch.exp(a) / torch.exp(b)\n",
        "import torch\ndef f(x, m):\n    e = torch.exp(x - x.amax(-1, keepdim=True).detach()) * m\n"
        "    return x - torch.log(e.sum(-1, keepdim=True) + 1e-8)\n",
    )
    invalid = (
        Invalid("import torch\nimport torch.nn.functional as F\ndef f(x):\n    return torch.log(1 + x.exp())\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.log1p(torch.exp(-x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    e = torch.exp(x)\n    return (e + 1).log()\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(torch.sum(torch.exp(x), dim=1, keepdim=True))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.exp().sum(-1).log()\n", (3,)),
        Invalid(
            "import torch\ndef f(a, w):\n    total = torch.exp(a + w).sum(dim=1)\n    return torch.log(total)\n", (4,)
        ),
        Invalid("import torch\ndef f(x):\n    return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    e = x.exp()\n    return e / e.sum(dim=-1, keepdim=True)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    e = x.exp()\n    s = torch.sum(e, dim=0)\n    return e / s\n", (5,)),
        Invalid("import torch\ndef f(p, n):\n    return torch.exp(p) / torch.exp(n).sum(-1)\n", (3,)),
        Invalid(
            "import torch\ndef f(a, b, m):\n    pos = torch.exp(a)\n    neg = (torch.exp(b) * m).sum(-1)\n"
            "    return pos / (pos + neg)\n",
            (5,),
        ),
        # the maximum of everything: rows far below it vanish
        Invalid(
            "import torch\ndef f(x):\n    peak = x.detach().max()\n"
            "    return torch.log(torch.sum(torch.exp(x - peak), dim=1, keepdim=True)) + peak\n",
            (4,),
        ),
        Invalid("import torch\ndef f(x):\n    y = x - x.max()\n    return y.exp().sum(-1).log()\n", (4,)),
        # never above zero, but all of a row can vanish
        Invalid("import torch\ndef f(x):\n    d = x.pow(2)\n    return -torch.log(torch.exp(-d).sum(-1))\n", (4,)),
        # sums of any kind
        Invalid("import torch\ndef f(a, b):\n    return torch.log(torch.exp(a) + torch.exp(b))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(torch.exp(x) - 1)\n", (3,)),
        Invalid("import torch\ndef f(x, m):\n    return ((x.exp() * m).sum(-1) + 1e-8).log()\n", (3,)),
        Invalid("import torch\ndef f(a, b):\n    return torch.log(torch.cosh(a - b)).mean()\n", (3,)),
        Invalid("import torch\ndef f(x, w):\n    return torch.log((w * torch.exp(-0.5 * x ** 2)).sum(-1))\n", (3,)),
        Invalid("import torch\ndef f(s):\n    e = torch.exp(s)\n    return torch.diag(e) / e.sum(1)\n", (4,)),
        # repaired too late
        Invalid("import torch\ndef f(x):\n    return torch.log(1 + torch.exp(x)).clamp(max=100)\n", (3,)),
        # half the range
        Invalid("import torch\ndef f(x):\n    return torch.log1p(torch.exp(x.half().clamp(max=50)))\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.LOGARITHM):
            if isinstance(singular.node, ast.Call):
                found = [
                    *_softplus(file, singular.node, one_plus(file, singular.operand)),
                    *_logsumexp(file, singular),
                    *_log_cosh(file, singular.node, singular.operand),
                ]
                yield from found or _growing(file, singular.node, singular.operand)
        for call in file.calls("log1p"):
            operation = file.values.operation(call)
            if operation is not None:
                yield from _softplus(file, call, operation.operand)
        for singular in file.singularities.of(Form.DIVISION):
            yield from _softmax(file, singular)


def _softplus(file: FileContext, node: ast.Call, inner: ast.expr | None) -> Iterator[Hit]:
    """`log(1 + exp(x))`."""
    exponential = exponential_of(file, inner) if inner is not None else None
    if exponential is None or exponential.operand is None or _is_safe_place(file, node, exponential.operand):
        return
    exponent = exponential.operand
    spelled = file.spelling("torch.nn.functional.softplus")
    is_natural = terminal_name(node.func) in ("log", "log1p")
    fix = None
    if spelled is not None and is_natural and _is_whole(file, inner, exponential) and still_means(file, exponent, node):
        fix = Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({file.source(exponent)})"),))
    yield Hit(
        node=node,
        message=(
            f"`exp({shown(file, exponent)})` is inf above 88, and the gradient of this logarithm NaN there. "
            "`softplus` computes the same for every input."
        ),
        severity=_severity(file, node, exponent),
        hypothesis=_hypothesis(file, node, exponent, "> 88"),
        related=((exponential.call, "this overflows: nothing bounds its argument from above"),),
        fix=fix,
    )


def _is_whole(file: FileContext, expression: ast.expr | None, exponential: Operation) -> bool:
    """Whether an expression is the exponential itself, or a variable that holds nothing but it."""
    if expression is None:
        return False
    return expression is exponential.call or file.values.single_definition(expression) is exponential.call


def _logsumexp(file: FileContext, singular: Singular) -> Iterator[Hit]:
    """`log(exp(x).sum(dim))`."""
    found = summed_exponential(file, singular.operand)
    node = singular.node
    if found is None or not isinstance(node, ast.Call):
        return
    total, exponential = found
    exponent = exponential.operand
    if exponent is None or file.values.value(exponent).is_number or _is_safe_place(file, node, exponent):
        return
    if file.values.value(singular.operand).zero >= Zero.ROUNDED:
        return  # a masked sum is zero for more than one reason: GP107
    said = _why_not(file, total, exponent)
    if said is None:
        return
    because, confidence, singular_set = said
    yield Hit(
        node=node,
        message=f"{because} `torch.logsumexp` shifts by the maximum of each row.",
        severity=_severity(file, node, exponent),
        confidence=confidence,
        hypothesis=_hypothesis(file, node, exponent, singular_set),
        related=((exponential.call, "the exponentials are taken here, and summed before the logarithm"),),
        fix=_as_logsumexp(file, node, singular.operand, total, exponential),
    )


def _why_not(file: FileContext, total: Operation, exponent: ast.expr) -> tuple[str, Confidence | None, str] | None:
    """What goes wrong with the logarithm of a sum of these exponentials; None if nothing does."""
    text = shown(file, exponent)
    largest = maximum_subtracted(file, exponent)
    if largest is not None:
        is_global = largest.name == "max" and not largest.arguments and not largest.call.keywords
        if not is_global or total.argument(0, "dim", "axis") is None:
            return None
        because = f"`{shown(file, largest.call)}` is the maximum of all rows: in a row far below it every term is zero,"
        return f"{because} and the logarithm -inf.", None, "< -104 in a whole row"
    if can_overflow(file, exponent):
        return f"`exp({text})` is inf above 88, and this logarithm inf or NaN there.", None, "> 88"
    if is_bounded(file, exponent):
        return None
    because = f"`exp({text})` is zero below -104: where that holds for all terms, this logarithm is -inf."
    return because, Confidence.MEDIUM, "< -104 in a whole row"


def _log_cosh(file: FileContext, node: ast.Call, operand: ast.expr) -> Iterator[Hit]:
    """`log(cosh(x))`, which is |x| - log(2) for a large x."""
    operation = operation_behind(file, operand, "cosh")
    if operation is None or operation.operand is None or not can_overflow(file, operation.operand):
        return
    argument = operation.operand
    if _is_safe_place(file, node, argument):
        return
    spelled = file.spelling("torch.nn.functional.softplus")
    is_whole = operand is operation.call and terminal_name(node.func) == "log"
    fix = None
    if spelled is not None and is_whole:
        text = file.operand_source(argument)
        fix = Rewrite(FixSafety.SAFE, (Replacement(node, f"{text} + {spelled}(-2 * {text}) - 0.6931471805599453"),))
    yield Hit(
        node=node,
        message=(
            f"`cosh({shown(file, argument)})` is inf beyond 89 on either side, and the gradient of its logarithm NaN "
            "there. `x + softplus(-2 * x) - log(2)` is the same for every input."
        ),
        severity=_severity(file, node, argument),
        hypothesis=_hypothesis(file, node, argument, "abs(operand) > 89"),
        related=((operation.call, "this overflows: nothing bounds its argument"),),
        fix=fix,
    )


def _growing(file: FileContext, node: ast.Call, operand: ast.expr) -> Iterator[Hit]:
    """`log(exp(a) + exp(b))`, `log(exp(x) - 1)`, `log((exp(x) * mask).sum() + eps)`."""
    exponential = growing_exponential(file, operand)
    if exponential is None or exponential.operand is None or _is_safe_place(file, node, exponential.operand):
        return
    exponent = exponential.operand
    if maximum_subtracted(file, exponent) is not None or core(file, operand) is exponential.call:
        return
    yield Hit(
        node=node,
        message=(
            f"`exp({shown(file, exponent)})` is inf above 88, and this logarithm inf or NaN there. "
            "`torch.logaddexp`, `torch.logsumexp` and `softplus` work on the exponents instead."
        ),
        severity=_severity(file, node, exponent),
        confidence=Confidence.MEDIUM,
        hypothesis=_hypothesis(file, node, exponent, "> 88"),
        related=((exponential.call, "this overflows: nothing bounds its argument from above"),),
        fix=_as_logaddexp(file, node, operand),
    )


def _as_logaddexp(file: FileContext, node: ast.Call, operand: ast.expr) -> Rewrite | None:
    """`torch.logaddexp(a, b)`, where both exponentials stand in the logarithm."""
    both, spelled = terms(operand), file.spelling("torch.logaddexp")
    if both is None or spelled is None or terminal_name(node.func) != "log":
        return None
    exponents = []
    for term in both:
        operation = file.values.operation(term) if isinstance(term, ast.Call) else None
        if operation is None or operation.name != "exp" or operation.operand is None:
            return None
        exponents.append(file.source(operation.operand))
    return Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({', '.join(exponents)})"),))


def _as_logsumexp(
    file: FileContext, node: ast.Call, operand: ast.expr, total: Operation, exponential: Operation
) -> Rewrite | None:
    dimension, keeps = reduced_dimension(total)
    exponent, spelled = exponential.operand, file.spelling("torch.logsumexp")
    if dimension is None or exponent is None or spelled is None or total.operand is None:
        return None
    direct = operand is total.call or file.values.single_definition(operand) is total.call
    if not direct or not _is_whole(file, total.operand, exponential) or total.name == "mean":
        return None
    if terminal_name(node.func) != "log" or not has_plain_arguments(total):
        return None
    if not still_means(file, exponent, node) or not still_means(file, dimension, node):
        return None
    keep = ", keepdim=True" if keeps else ""
    text = f"{spelled}({file.source(exponent)}, dim={file.source(dimension)}{keep})"
    return Rewrite(FixSafety.SAFE, (Replacement(node, text),))


def _softmax(file: FileContext, singular: Singular) -> Iterator[Hit]:
    """`exp(x) / exp(x).sum(dim)`, and other quotients of exponentials by sums that hold one."""
    node = singular.node
    if singular.numerator is None or not isinstance(node, ast.expr):
        return
    exponential = growing_exponential(file, singular.operand)
    numerator = growing_exponential(file, singular.numerator) if exponential is not None else None
    if numerator is None or exponential is None or exponential.operand is None or numerator.operand is None:
        return
    # `exp(a) / exp(b)` alone is a matter of taste, and sigmoids are GP128's.
    if core(file, singular.operand) is exponential.call or _in_sum(file, singular.operand) is not None:
        return
    exponent = exponential.operand
    shifted = maximum_subtracted(file, exponent) or maximum_subtracted(file, numerator.operand)
    if shifted is not None or _is_safe_place(file, node, exponent) or file.enclosing_autograd_function(node):
        return
    own = numerator.call is exponential.call or same(file, numerator.call, exponential.call)
    found = summed_exponential(file, singular.operand)
    is_softmax = own and found is not None and found[0].name != "mean"
    advice = "`softmax` computes" if is_softmax else "Subtracting the `logsumexp` before one `exp` computes"
    yield Hit(
        node=node,
        message=(
            f"`exp({shown(file, exponent)})` is inf above 88, and inf divided by inf is NaN. {advice} the same for "
            "every input."
        ),
        severity=_severity(file, node, exponent),
        hypothesis=_hypothesis(file, node, exponent, "> 88"),
        related=((exponential.call, "this overflows: nothing bounds its argument from above"),),
        fix=_as_softmax(file, singular, *found) if is_softmax and found is not None else None,
    )


def _as_softmax(file: FileContext, singular: Singular, total: Operation, exponential: Operation) -> Rewrite | None:
    dimension, keeps = reduced_dimension(total)
    exponent, spelled = exponential.operand, file.spelling("torch.softmax")
    node, numerator = singular.node, singular.numerator
    if dimension is None or not keeps or exponent is None or spelled is None or numerator is None:
        return None
    inner = dimension.operand if isinstance(dimension, ast.UnaryOp) else dimension
    if not isinstance(inner, ast.Constant) or not isinstance(node, ast.expr):
        return None
    is_whole = operation_behind(file, numerator, "exp") is not None and isinstance(numerator, (ast.Call, ast.Name))
    if not is_whole or not still_means(file, exponent, node):
        return None
    text = f"{spelled}({file.source(exponent)}, dim={file.source(dimension)})"
    return Rewrite(FixSafety.SAFE, (Replacement(node, text),))


class HandWrittenSigmoid(Rule):
    id = "GP128"
    name = "hand-written-sigmoid"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("exp(",)
    documentation = Documentation(
        what_it_does=(
            "Finds the logistic function and its relatives written out with `exp`: `1 / (1 + exp(-x))`, "
            "`exp(x) / (1 + exp(x))`, `e / (1 + e) ** 2`, `x / (1 + exp(-x))` and "
            "`(exp(x) - exp(-x)) / (exp(x) + exp(-x))`, with nothing that bounds x."
        ),
        why_is_this_bad=(
            "`exp` is inf above 88 in float32. `1 / (1 + inf)` is 0, which is right, but its gradient is 0 times inf, "
            "which is NaN (measured); where an exponential stands above the line as well, the value is inf / inf = NaN "
            "already. `torch.sigmoid` and `torch.tanh` have neither. (In a custom Function: GP325.)"
        ),
        faulty_example="import torch\n\n\ndef gate(x, y):\n    return y * (1 / (1 + torch.exp(-x)))\n",
        right_example="import torch\n\n\ndef gate(x, y):\n    return y * torch.sigmoid(x)\n",
        fix_safety="`torch.sigmoid` gives the same values wherever the old code was finite, rounding apart.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.sigmoid(x)\n",
        "import torch\ndef f(x):\n    return 1 / (1 + torch.exp(-x.clamp(-30, 30)))\n",
        "import torch\ndef f(x):\n    return 1 / (1 + torch.exp(-x.abs()))\n",
        "import torch\ndef f(x):\n    return 1 / (1 + torch.exp(-torch.tanh(x)))\n",
        "import math\nimport torch\ndef f(x, k: float):\n    return x / (1 + math.exp(-k))\n",
        # a variance in logarithms: nobody has one of exp(88)
        "import torch\ndef f(x, log_var):\n    return x ** 2 / torch.exp(log_var)\n",
        # the value is right, and no gradient is taken
        "import torch\n@torch.no_grad()\ndef f(x):\n    return 1 / (1 + torch.exp(-x))\n",
        # inside a custom Function the ratio is GP325's
        "import torch\nclass S(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n        return 1 / (1 + torch.exp(-x))\n    @staticmethod\n"
        "    def backward(ctx, g):\n        (x,) = ctx.saved_tensors\n        e = torch.exp(-x)\n"
        "        return g * e / (1 + e) ** 2\n",
        "import torch\ndef f(x):\n    if x.min() < -80:\n        return x\n    return 1 / (1 + torch.exp(-x))\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return 1 / (1 + np.exp(-x))\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return 1 / (1 + torch.exp(-x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return 1.0 / (torch.exp(-x) + 1.0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x / (1 + (-1.702 * x).exp())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return (1 + torch.exp(-x)).reciprocal()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return (1 + torch.exp(-x)) ** -1\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.exp(x) / (1 + torch.exp(x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    e = torch.exp(x)\n    return e / (e + 1)\n", (4,)),
        Invalid("import torch\ndef f(x, k):\n    e = torch.exp(-k * x)\n    return k * e / (1 + e) ** 2\n", (4,)),
        Invalid(
            "import torch\ndef f(x):\n    return (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))\n",
            (3,),
        ),
        Invalid("import torch\ndef f(x):\n    a, b = x.exp(), (-x).exp()\n    return (a - b) / (a + b)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(torch.exp(x) / (1 + torch.exp(x)))\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.DIVISION):
            node = singular.node
            exponential = _in_sum(file, singular.operand) if isinstance(node, ast.expr) else None
            if exponential is None or exponential.operand is None or not isinstance(node, ast.expr):
                continue
            if file.enclosing_autograd_function(node) is not None:
                continue
            exponent = exponential.operand
            around = surroundings(file, node)
            both = singular.numerator is not None and growing_exponential(file, singular.numerator) is not None
            if around is Surroundings.ASIDE or guarded(file, node, exponent):
                continue
            if not both and (around is Surroundings.UNRECORDED or file.values.value(exponent).gradient is Gradient.NO):
                continue
            what = "inf divided by inf is NaN" if both else "its gradient is zero times inf, which is NaN"
            yield Hit(
                node=node,
                message=(
                    f"`exp({shown(file, exponent)})` is inf above 88, and {what}. `torch.sigmoid` (or `torch.tanh`) "
                    "computes the same for every input."
                ),
                hypothesis=_hypothesis(file, node, exponent, "> 88"),
                related=((exponential.call, "this overflows: nothing bounds its argument from above"),),
                fix=_as_sigmoid(file, singular, exponential),
            )


def _in_sum(file: FileContext, divisor: ast.expr) -> Operation | None:
    """The exponential in `1 + exp(x)`, `(1 + exp(x)) ** 2` or `exp(x) + exp(-x)`."""
    found = core(file, divisor)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Pow):
        found = core(file, found.left)
    squared = operation_behind(file, found, "square", "pow")
    if squared is not None and squared.operand is not None:
        found = squared.operand
    inner = one_plus(file, found)
    if inner is not None:
        return exponential_of(file, inner)
    both = terms(core(file, found))
    if both is None or not all(operation_behind(file, term, "exp") is not None for term in both):
        return None
    return exponential_of(file, both[0]) or exponential_of(file, both[1])


def _as_sigmoid(file: FileContext, singular: Singular, exponential: Operation) -> Rewrite | None:
    """`torch.sigmoid(x)` for `1 / (1 + exp(-x))`, where all of it stands in one expression."""
    spelled, exponent, node = file.spelling("torch.sigmoid"), exponential.operand, singular.node
    both = terms(singular.operand)
    if spelled is None or exponent is None or both is None or not isinstance(node, ast.BinOp):
        return None
    if exponential.call not in both or singular.numerator is None or one_plus(file, singular.operand) is None:
        return None
    argument = _negated(file, exponent)
    if file.values.value(singular.numerator).constant == 1:
        return Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({argument})"),))
    own = operation_behind(file, singular.numerator, "exp")
    if own is not None and same(file, own.call, exponential.call):
        return Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({file.source(exponent)})"),))
    if isinstance(singular.numerator, (ast.Name, ast.Attribute)):
        text = f"{file.source(singular.numerator)} * {spelled}({argument})"
        return Rewrite(FixSafety.SAFE, (Replacement(node, text),))
    return None


def _negated(file: FileContext, expression: ast.expr) -> str:
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        return file.source(expression.operand)
    return f"-{file.operand_source(expression)}"
