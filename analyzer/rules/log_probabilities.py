"""Logarithms of a softmax (GP108) and of a sigmoid (GP109), which underflow before the logarithm is taken.

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import complement_behind, odds_behind, probability_behind, still_means
from analyzer.repairs import has_plain_arguments, renamed
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, note_without_gradient, path_of, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Zero
from analyzer.values.surroundings import Surroundings


def _logarithms(file: FileContext) -> Iterator[tuple[Singular, Judgement]]:
    """Logarithms whose operand nothing keeps from zero, in code whose results matter."""
    for singular in file.singularities.of(Form.LOGARITHM):
        judgement = file.singularities.judge(singular)
        if judgement.value.is_number or judgement.surroundings is Surroundings.ASIDE:
            continue
        yield singular, judgement


def _moved(file: FileContext, call: ast.Call, place: ast.AST) -> bool:
    """Whether the arguments of a call can be written at another place and mean the same there."""
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Attribute) and file.qualified_name(call.func) is None:
        parts.append(call.func.value)
    return all(still_means(file, part, place) for part in parts)


def _stands_for(file: FileContext, operand: ast.expr, call: ast.Call) -> bool:
    """Whether the operand is the call itself, or a variable that holds nothing but its result."""
    return operand is call or file.values.single_definition(operand) is call


class LogOfSoftmax(Rule):
    id = "GP108"
    name = "log-of-softmax"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("softm", "Softm")
    documentation = Documentation(
        what_it_does="Finds the logarithm of a softmax, directly or through a variable, an index or a layer.",
        why_is_this_bad=(
            "The softmax of a class that lies 104 below the largest is 0 in float32 (17 in float16), its logarithm is "
            "-inf, and the gradient of the whole row NaN. `log_softmax` computes the same from the logits without "
            "leaving the logarithm."
        ),
        faulty_example=(
            "import torch\n\n\ndef loss(logits, target):\n"
            "    return -torch.log(torch.softmax(logits, dim=-1)).gather(-1, target)\n"
        ),
        right_example=(
            "import torch\n\n\ndef loss(logits, target):\n"
            "    return -torch.log_softmax(logits, dim=-1).gather(-1, target)\n"
        ),
        fix_safety="`log_softmax` gives the same values wherever the old code was finite, rounding apart.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.log_softmax(x, -1)\n",
        "import torch.nn.functional as F\ndef f(x):\n    return F.log_softmax(x, dim=-1)\n",
        "import torch\ndef f(x):\n    return torch.log(torch.softmax(x, -1) + 1e-8)\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1).clamp(min=1e-9)\n    return p.log()\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.where(p > 0, p, torch.ones_like(p)).log()\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return p[p > 0].log()\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    if (p > 0).all():\n        return p.log()\n    return p\n",
        "import torch\ndef f(x):\n    return x.softmax(-1).exp()\n",
        # evaluation
        "import torch\nclass PerplexityMetric:\n    def update(self, x):\n        return x.softmax(-1).log()\n",
        # a logger and a number have a `log` as well
        "import torch\nclass M:\n    def f(self, x):\n        self.log('p', x.softmax(-1))\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.log(torch.softmax(x, -1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.softmax(dim=-1).log()\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x):\n    p = F.softmax(x, dim=1)\n"
            "    return torch.log(p)\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch.nn.functional import softmax\ndef f(x, t):\n    p = softmax(x, dim=1)\n"
            "    picked = p.gather(1, t)\n    return -(1 - picked) ** 2 * torch.log(picked)\n",
            (6,),
        ),
        Invalid("import torch\ndef f(x):\n    p = torch.softmax(x, 0)\n    return torch.log2(p[0])\n", (4,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.act = nn.Softmax(dim=-1)\n    def forward(self, x):\n"
            "        return torch.log(self.act(x))\n",
            (8,),
        ),
        # the logits have changed since: found, but not rewritten
        Invalid("import torch\ndef f(x):\n    p = x.softmax(-1)\n    x = x * 2\n    return x * p.log()\n", (5,)),
        # repaired too late
        Invalid("import torch\ndef f(x):\n    return x.softmax(-1).log().clamp(min=-100)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.where(p > 0, p.log(), 0.0)\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular, judgement in _logarithms(file):
            found = probability_behind(file, singular.operand)
            if found is None or found[0] != "softmax" or judgement.guarded:
                continue
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, singular.operand)}` comes out of a softmax, which is zero for a class far below "
                    "the largest: the logarithm is -inf there and the gradient NaN. `log_softmax` has no such limit."
                ),
                severity=note_without_gradient(judgement),
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement),
                fix=_log_softmax(file, singular, found[1]),
            )


def _log_softmax(file: FileContext, singular: Singular, call: ast.Call) -> Rewrite | None:
    operation = file.values.operation(call)
    if operation is None or operation.name != "softmax" or not has_plain_arguments(operation):
        return None
    is_natural = isinstance(singular.node, ast.Call) and terminal_name(singular.node.func) == "log"
    if not is_natural or not _stands_for(file, singular.operand, call) or not _moved(file, call, singular.node):
        return None
    text = renamed(file, call, "log_softmax")
    if text is None:
        spelled = file.spelling("torch.nn.functional.log_softmax")
        text = spelled + file.source(call)[len(file.source(call.func)) :] if spelled is not None else None
    return Rewrite(FixSafety.SAFE, (Replacement(singular.node, text),)) if text is not None else None


class LogOfSigmoid(Rule):
    id = "GP109"
    name = "log-of-sigmoid"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("log",)
    documentation = Documentation(
        what_it_does=(
            "Finds `log(sigmoid(x))`, `log(1 - sigmoid(x))`, `log1p(-sigmoid(x))` and `log(p / (1 - p))`, directly or "
            "through variables."
        ),
        why_is_this_bad=(
            "A sigmoid is exactly 0 below -104 and exactly 1 above 17 in float32, so that its logarithm, or that of "
            "one minus it, is -inf and the gradient NaN for a confident prediction. `logsigmoid` works on the logits."
        ),
        faulty_example=(
            "import torch\n\n\ndef preference_loss(chosen, rejected):\n"
            "    return -torch.log(torch.sigmoid(chosen - rejected)).mean()\n"
        ),
        right_example=(
            "import torch.nn.functional as F\n\n\ndef preference_loss(chosen, rejected):\n"
            "    return -F.logsigmoid(chosen - rejected).mean()\n"
        ),
        fix_safety=(
            "`logsigmoid(x)` and `logsigmoid(-x)` give the same values wherever the old code was finite (safe). "
            "`torch.logit(p, eps=1e-6)` clamps p, which changes values at the edge (unsafe)."
        ),
    )
    valid = (
        "import torch.nn.functional as F\ndef f(x):\n    return F.logsigmoid(x) + F.logsigmoid(-x)\n",
        "import torch\ndef f(x):\n    return torch.log(x.sigmoid() + 1e-8)\n",
        "import torch\ndef f(x):\n    return torch.log(1 - x.sigmoid() + 1e-8)\n",
        "import torch\ndef f(x):\n    p = x.sigmoid().clamp(1e-6, 1 - 1e-6)\n    return p.log() + (1 - p).log()\n",
        "import torch\ndef f(x):\n    p = x.sigmoid().clamp(1e-6, 1 - 1e-6)\n    return torch.log(p / (1 - p))\n",
        "import torch\ndef f(x, eps=1e-5):\n    x = x.clamp(min=0, max=1)\n    x1 = x.clamp(min=eps)\n"
        "    x2 = (1 - x).clamp(min=eps)\n    return torch.log(x1 / x2)\n",
        "import torch\ndef f(p):\n    return torch.logit(p, eps=1e-6)\n",
        # numbers and data
        "import math\nimport torch\ndef f(prior: float):\n    return -math.log((1 - prior) / prior)\n",
        "import torch\ndef f(x, p: float):\n    return x + torch.log(torch.tensor(p / (1 - p)))\n",
        "import torch\ndef f(x):\n    return torch.log1p(x.sigmoid())\n",
        "import torch\nclass NLLMetric:\n    def update(self, x):\n        return x.sigmoid().log()\n",
    )
    invalid = (
        Invalid("import torch\nimport torch.nn.functional as F\ndef f(x):\n    return torch.log(x.sigmoid())\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(torch.sigmoid(x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(1 - x.sigmoid())\n", (3,)),
        Invalid("import torch\ndef f(a, b):\n    p = torch.sigmoid(a - b)\n    return -(1 - p).log()\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.log1p(-torch.sigmoid(x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    p = x.sigmoid()\n    return torch.log(p / (1.0 - p))\n", (4,)),
        Invalid("import torch\ndef f(p):\n    p = p.clamp(0, 1)\n    return torch.log(p / (1 - p))\n", (4,)),
        Invalid("import torch\ndef f(p):\n    return torch.log(p / (1 - p))\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    p = x.sigmoid()\n    return y * p.log2()\n", (4,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.act = nn.Sigmoid()\n    def forward(self, x):\n"
            "        return torch.log(self.act(x))\n",
            (8,),
        ),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x.sigmoid().log())\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular, judgement in _logarithms(file):
            hit = self._of_logarithm(file, singular, judgement)
            if hit is not None and not judgement.guarded:
                yield hit
        for call in file.calls("log1p"):
            yield from self._of_log1p(file, call)

    def _of_logarithm(self, file: FileContext, singular: Singular, judgement: Judgement) -> Hit | None:
        odds = odds_behind(file, singular.operand)
        if odds is not None:
            return _of_odds(file, singular, judgement, odds)
        found, sign = probability_behind(file, singular.operand), ""
        if found is None:
            found, sign = complement_behind(file, singular.operand), "-"
        if found is None or found[0] != "sigmoid" or not isinstance(singular.node, ast.expr):
            return None
        reached = "exactly one above 17" if sign else "zero below -104"
        return Hit(
            node=singular.node,
            message=(
                f"The sigmoid in `{shown(file, singular.operand)}` is {reached} (float32): the logarithm is -inf there "
                f"and the gradient NaN. `logsigmoid({sign}x)` has no such limit."
            ),
            severity=note_without_gradient(judgement),
            hypothesis=hypothesis(file, singular),
            related=path_of(file, singular, judgement),
            fix=_logsigmoid(file, singular.node, found[1], sign),
        )

    def _of_log1p(self, file: FileContext, call: ast.Call) -> Iterator[Hit]:
        operation = file.values.operation(call)
        operand = operation.operand if operation is not None else None
        if not isinstance(operand, ast.UnaryOp) or not isinstance(operand.op, ast.USub):
            return
        found = probability_behind(file, operand.operand)
        if found is None or found[0] != "sigmoid":
            return
        singular = Singular(Form.LOGARITHM, call, operand)
        judgement = Judgement(file, singular)
        if judgement.surroundings is Surroundings.ASIDE or judgement.guarded:
            return
        yield Hit(
            node=call,
            message=(
                f"The sigmoid in `{shown(file, operand)}` is exactly one above 17 (float32): the logarithm is -inf "
                "there and the gradient NaN. `logsigmoid(-x)` has no such limit."
            ),
            severity=note_without_gradient(judgement),
            hypothesis={**hypothesis(file, singular), "singular_set": "<= -1"},
            related=((found[1], "the sigmoid rounds to one here"),),
            fix=_logsigmoid(file, call, found[1], "-"),
        )


def _of_odds(file: FileContext, singular: Singular, judgement: Judgement, probability: ast.expr) -> Hit | None:
    """`log(p / (1 - p))`, where p is known to reach 0 or 1."""
    value = file.values.value(probability)
    inside = value.low > 0 and (value.high < 1 or value.high_open)
    is_kept = value.zero is Zero.EXCLUDED and (value.high < 1 or value.high_open)
    if value.is_number or inside or is_kept or value.parameter or not isinstance(singular.node, ast.expr):
        return None
    known = not math.isinf(value.high) or not math.isinf(value.low)
    if not known and (not isinstance(probability, ast.Name) or file.values.definitions(probability)):
        return None  # grids of anchors are made inside, and their edges masked
    return Hit(
        node=singular.node,
        message=(
            f"`{shown(file, probability)}` can be exactly 0 or 1, where its log-odds are infinite and their gradient "
            "NaN. Keep the logits, or use `torch.logit(p, eps=...)`."
        ),
        severity=note_without_gradient(judgement),
        confidence=None if known else Confidence.MEDIUM,
        hypothesis={**hypothesis(file, singular), "operand": file.source(probability), "singular_set": "<= 0 or >= 1"},
        related=path_of(file, singular, judgement),
        fix=_logit(file, singular.node, probability),
    )


def _logit(file: FileContext, node: ast.expr, probability: ast.expr) -> Rewrite | None:
    spelled = file.spelling("torch.logit")
    is_natural = isinstance(node, ast.Call) and terminal_name(node.func) == "log"
    if spelled is None or not is_natural or not still_means(file, probability, node):
        return None
    text = f"{spelled}({file.source(probability)}, eps=1e-6)"
    return Rewrite(FixSafety.UNSAFE, (Replacement(node, text),))


def _logsigmoid(file: FileContext, node: ast.expr, call: ast.Call, sign: str) -> Rewrite | None:
    spelled = file.spelling("torch.nn.functional.logsigmoid")
    operation = file.values.operation(call)
    is_natural = isinstance(node, ast.Call) and terminal_name(node.func) in ("log", "log1p")
    if spelled is None or not is_natural or operation is None or operation.name != "sigmoid":
        return None
    logits = operation.operand
    if logits is None or not _is_whole(file, node, call) or not still_means(file, logits, node):
        return None
    text = f"-{file.operand_source(logits)}" if sign else file.source(logits)
    return Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({text})"),))


def _is_whole(file: FileContext, node: ast.expr, call: ast.Call) -> bool:
    """Whether the logarithm is of all that the sigmoid gives, with no selection or reshaping in between."""
    operation = file.values.operation(node) if isinstance(node, ast.Call) else None
    operand = operation.operand if operation is not None else None
    for _ in range(4):
        if operand is None or operand is call:
            return operand is call
        if isinstance(operand, ast.UnaryOp):
            operand = operand.operand
        elif isinstance(operand, ast.BinOp):
            operand = operand.right
        else:
            operand = file.values.single_definition(operand)
    return operand is call
