"""Logarithms of tensors that can be zero (GP107). This module must not analyse values itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import blended_probability, is_logarithm_formula, one_minus, probability_behind
from analyzer.repairs import floored
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import hypothesis, note_without_gradient, path_of, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Zero
from analyzer.values.guards import guarded
from analyzer.values.surroundings import Surroundings


class LogarithmAtZero(Rule):
    id = "GP107"
    name = "log-at-zero"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.UNSAFE
    triggers = ("log",)
    documentation = Documentation(
        what_it_does=(
            "Finds logarithms of a tensor that is zero for inputs that occur in practice: a masked sum, a count, a "
            "norm, a clamp at zero, one minus a probability, a product of probabilities. The logarithm of a softmax or "
            "a sigmoid itself has rules of its own (GP108, GP109)."
        ),
        why_is_this_bad=(
            "The logarithm is -inf and its slope infinite; the next product with a zero makes both NaN. Clamping the "
            "result repairs the value, not the gradient."
        ),
        faulty_example=(
            "import torch\n\n\ndef mass(logits, mask):\n    return torch.log((logits.exp() * mask).sum(-1))\n"
        ),
        right_example=(
            "import torch\n\n\ndef mass(logits, mask):\n"
            "    lowest = torch.finfo(logits.dtype).min\n"
            "    return torch.logsumexp(logits.masked_fill(mask == 0, lowest), dim=-1)\n"
        ),
        fix_safety="`clamp(min=1e-12)` before the logarithm changes values below the floor, and ends their gradient.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.log_softmax(x, -1)\n",
        "import torch\ndef f(x):\n    return torch.log(x.softmax(-1) + 1e-8)\n",
        "import torch\ndef f(x, eps=1e-8):\n    return (x.softmax(-1) + eps).log()\n",
        "import torch\ndef f(x):\n    p = x.sigmoid().clamp(min=1e-6)\n    return p.log()\n",
        "import torch\ndef f(x):\n    p = x.sigmoid()\n    p = torch.clamp(p, 1e-4, 1 - 1e-4)\n"
        "    return p.log() + (1 - p).log()\n",
        "import torch\ndef f(x):\n    return torch.log(x.exp().sum(-1))\n",
        "import torch\ndef f(x):\n    return torch.log1p(x.relu())\n",
        "import torch\ndef f(x):\n    return torch.log(1 + x.abs())\n",
        "import torch\ndef f(x):\n    return torch.log(1 + torch.exp(-x.abs()))\n",
        "import math\nimport torch\ndef f(x):\n    return x * math.log(x.shape[0])\n",
        "import torch\ndef f(x):\n    return torch.log(x)\n",
        "import torch\ndef log(t, eps=1e-20):\n    return torch.log(t.clamp(min=eps))\ndef f(x):\n"
        "    return log(x.softmax(-1))\n",
        "import torch\ndef f(x):\n    n = x.norm()\n    if n > 0:\n        return n.log()\n    return n\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.where(p > 0, p, torch.ones_like(p)).log()\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return p[p > 0].log()\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.special.xlogy(p, p + 1e-9)\n",
        "import torch\ndef f(x):\n    return torch.log(1 - torch.tanh(x) ** 2 + 1e-6) + torch.log1p(x)\n",
        "import torch\ndef f(x):\n    u = torch.rand_like(x).clamp(min=1e-9)\n"
        "    return x - torch.log(-torch.log(u))\n",
        "import torch\ndef f(p, y):\n    p = p.clamp(1e-6, 1 - 1e-6)\n"
        "    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()\n",
        "import torch\ndef f(p):\n    return (1 - p).log()\n",
        "import logging\nimport torch\nlogger = logging.getLogger()\ndef f(x):\n    logger.log(10, x.softmax(-1))\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x, mask):\n    return torch.log((x.exp() * mask).sum(-1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.norm(dim=-1).log()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log2(x.relu())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.clamp(min=0).log10()\n", (3,)),
        # an upper bound of 1 - 1e-8 is 1 in float32
        Invalid("import torch\ndef f(p):\n    p = p.clamp(1e-8, 1 - 1e-8)\n    return torch.log(1 - p)\n", (4,)),
        # too late: the gradient is NaN whatever is done to the result
        Invalid("import torch\ndef f(x):\n    return x.norm().log().clamp(min=-100)\n", (3,)),
        Invalid("import torch\ndef f(x, m):\n    return x.norm(dim=-1).log() * m\n", (3,)),
        Invalid("import torch\ndef f(x, m):\n    return x.norm(dim=-1).log().masked_fill(m, 0.0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    n = x.norm()\n    return torch.where(n > 0, n.log(), 0.0)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x.norm().log())\n", (3,)),
        # a squashed action, a spectrum of silence
        Invalid("import torch\ndef f(x):\n    a = torch.tanh(x)\n    return torch.log(1 - a.pow(2)).sum(-1)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.log1p(-torch.tanh(x) ** 2)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log1p(-torch.softmax(x, -1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(1 - torch.exp(-x.abs()))\n", (3,)),
        Invalid("import torch\ndef f(x, w):\n    return torch.log(torch.stft(x, 64, window=w).abs())\n", (3,)),
        # noise: one draw of zero is enough
        Invalid("import torch\ndef f(x):\n    return x - torch.log(-torch.log(torch.rand_like(x)))\n", (3,)),
        # a cross entropy by hand
        Invalid("import torch\ndef f(p, y):\n    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()\n", (3,)),
        # the probability of what is true
        Invalid(
            "import torch\ndef f(x, y):\n    p = torch.sigmoid(x)\n    pt = y * p + (1 - y) * (1 - p)\n"
            "    return -((1 - pt) ** 2 * torch.log(pt)).mean()\n",
            (5,),
        ),
        # a probability out of a helper, or times a mask
        Invalid(
            "import torch\ndef probabilities(x):\n    return x.softmax(-1)\ndef f(x):\n"
            "    return probabilities(x).log()\n",
            (5,),
        ),
        Invalid("import torch\ndef f(x, mask):\n    return torch.log(x.softmax(-1) * mask)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.log(1 - p)\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.LOGARITHM):
            judgement = file.singularities.judge(singular)
            value = judgement.value
            if judgement.surroundings is Surroundings.ASIDE or is_logarithm_formula(file, singular.operand):
                continue
            paired = value.zero < Zero.ROUNDED and _is_paired_complement(file, singular)
            blended = value.zero < Zero.ROUNDED and blended_probability(file, singular.operand) is not None
            if (value.zero < Zero.ROUNDED and not paired and not blended) or judgement.guarded:
                continue
            because = "where the probability is one" if paired else value.zero_because
            if blended:
                because = "where the sigmoid rounds to zero or one on the wrong side"
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, singular.operand)}` is zero {because}: the logarithm is -inf there, and its "
                    "gradient inf or NaN."
                ),
                severity=None if _is_noise(file, singular) else note_without_gradient(judgement),
                confidence=Confidence.MEDIUM if paired else None,
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement),
                fix=(
                    floored(file, singular.operand, FixSafety.UNSAFE)
                    if value.non_negative or paired or blended
                    else None
                ),
            )
        for call in file.calls("log1p"):
            yield from self._of_log1p(file, call)

    def _of_log1p(self, file: FileContext, call: ast.Call) -> Iterator[Hit]:
        """`log1p(-e)` of an e that rounds to one."""
        operation = file.values.operation(call)
        operand = operation.operand if operation is not None else None
        if not isinstance(operand, ast.UnaryOp) or not isinstance(operand.op, ast.USub):
            return
        value = file.values.value(operand.operand)
        if value.is_number or value.high != 1 or value.high_open or not value.reaches_high or value.low < 0:
            return
        if (probability_behind(file, operand.operand) or ("",))[0] == "sigmoid":
            return  # GP109
        singular = Singular(Form.LOGARITHM, call, operand)
        judgement = Judgement(file, singular)
        if judgement.surroundings is Surroundings.ASIDE or guarded(file, call, operand):
            return
        yield Hit(
            node=call,
            message=(
                f"`{shown(file, operand.operand)}` reaches one, also by rounding: `log1p` of minus one is -inf, and "
                "its gradient inf or NaN."
            ),
            severity=note_without_gradient(judgement),
            hypothesis={**hypothesis(file, singular), "singular_set": "<= -1"},
            related=((operand, "nothing keeps this above -1"),),
        )


def _is_noise(file: FileContext, singular: Singular) -> bool:
    """Whether it is the inner logarithm of `-log(-log(u))`: one u of zero makes the noise -inf, and the loss NaN."""
    origin = file.values.value(singular.operand).origin
    drawn = isinstance(origin, ast.Call) and (terminal_name(origin.func) or "").startswith(("rand", "uniform"))
    if not drawn:
        return False
    for outer in file.ancestors(singular.node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Call) and terminal_name(outer.func) == "log":
            return True
    return False


def _is_paired_complement(file: FileContext, singular: Singular) -> bool:
    """Whether this is `log(1 - p)` beside a `log(p)` in one statement: a cross entropy written out by hand.

    Nothing is known of p then but that it is a probability, which is one for a confident prediction.
    """
    probability = one_minus(file, singular.operand)
    statement = file.statement(singular.node)
    if probability is None or statement is None or file.values.value(probability).is_number:
        return False
    if file.values.value(singular.operand).zero is Zero.EXCLUDED:
        return False
    text = ast.dump(probability)
    return any(
        ast.dump(other.operand) == text and file.statement(other.node) is statement
        for other in file.singularities.of(Form.LOGARITHM)
    )
