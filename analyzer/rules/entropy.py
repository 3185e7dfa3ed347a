"""Entropies and divergences of probabilities that can be zero (GP122).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.formulas import core
from analyzer.losses import Activation, activated, losses
from analyzer.repairs import clamped, floor_of
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Value, Zero
from analyzer.values.guards import guarded, value_names
from analyzer.values.surroundings import Surroundings, surroundings

# What a target of a divergence is called when it is meant to be fixed.
_FIXED = re.compile(r"teacher|target|label|truth|(^|_)(gt|ref|old|ema|prior|tgt|reference|anchor)($|_)|detach|frozen")
_PROBABILITY = re.compile(
    r"prob|(^|_)(p|q|pi|ps|py|px|usage|weights?|attn|attention|alpha|density|dist|gate|marginal)s?($|_)|avg|mean"
)


@dataclass(frozen=True, slots=True)
class _Entropy:
    """One `p log p`: `operand` is the p under the logarithm, `node` the whole.

    `bounded`: the factor of the logarithm is p too, and takes a floor under the logarithm out of the value.
    """

    node: ast.expr
    operand: ast.expr
    formula: str
    bounded: bool = True


class EntropyAtZero(Rule):
    id = "GP122"
    name = "entropy-at-zero-probability"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("entr", "xlogy", "kl_div", "KLDiv", "log")
    documentation = Documentation(
        what_it_does=(
            "Finds `p * log(p)`, `torch.xlogy(p, p)`, `torch.special.entr(p)` and `kl_div` with a target that is "
            "trained, when nothing keeps `p` from being exactly zero."
        ),
        why_is_this_bad=(
            "The value at zero is fine with `xlogy`, `entr` and `kl_div`, which is why they are used; the gradient is "
            "not: the slope of `p log p` at zero is infinite, and behind a softmax it becomes NaN (measured on torch "
            "2.13 for all three). Written by hand, `p * log(p)` is NaN already in the value. A softmax is exactly zero "
            "in float32 for logits 104 below the largest one, in float16 for 17."
        ),
        faulty_example=(
            "import torch\n\n\ndef entropy(logits):\n    p = logits.softmax(dim=-1)\n"
            "    return torch.special.entr(p).sum(dim=-1)\n"
        ),
        right_example=(
            "import torch\n\n\ndef entropy(logits):\n    log_p = logits.log_softmax(dim=-1)\n"
            "    return -(log_p.exp() * log_p).sum(dim=-1)\n"
        ),
        fix_safety=(
            "A floor of 1e-12 under the argument of the logarithm changes `p log p` by less than 3e-11 (safe). Of "
            "`xlogy(q, p)` with another factor it changes every value where p is below the floor (unsafe). Computing "
            "with `log_softmax` is better where the logits are at hand."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    lp = x.log_softmax(-1)\n    return -(lp.exp() * lp).sum(-1)\n",
        "import torch\ndef f(p):\n    return -(p * (p + 1e-9).log()).sum(-1)\n",
        "import torch\ndef f(prob):\n    return -(prob * prob.clamp(min=1e-9).log()).sum(-1)\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.xlogy(p, p.clamp(min=1e-9)).sum()\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1).clamp(min=1e-9)\n    return torch.special.entr(p)\n",
        # the factor without logarithm may be zero
        "import torch\ndef f(x, y):\n    return torch.xlogy(y, x.exp())\n",
        # nothing is trained
        "import torch\n@torch.no_grad()\ndef f(x):\n    return torch.special.entr(x.softmax(-1))\n",
        "import torch\ndef f(labels):\n    return torch.xlogy(labels, labels)\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1).detach()\n    return torch.special.entr(p)\n",
        "import torch.nn.functional as F\ndef f(x, teacher):\n"
        "    return F.kl_div(x.log_softmax(-1), teacher.softmax(-1))\n",
        "import torch.nn.functional as F\ndef f(x, y):\n"
        "    return F.kl_div(x.log_softmax(-1), y.softmax(-1).detach())\n",
        "import torch\nimport torch.nn.functional as F\ndef f(x, net):\n    with torch.no_grad():\n"
        "        t = net(x).softmax(-1)\n    return F.kl_div(x.log_softmax(-1), t)\n",
        "import torch.nn.functional as F\ndef f(x, y):\n"
        "    return F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True)\n",
        # no probability, no entropy
        "import torch\ndef f(n):\n    return n * torch.log(n)\n",
        "import torch\ndef f(x, scale):\n    return scale * torch.log(x)\n",
        "import torch\ndef f(prob):\n    assert (prob > 0).all()\n    return prob * prob.log()\n",
        "import math\ndef f(p):\n    import torch\n    return p * math.log(p)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.special.entr(x.softmax(-1)).sum()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    p = torch.sigmoid(x)\n    return -torch.xlogy(p, p)\n", (4,)),
        Invalid("import torch\ndef f(probs):\n    return -(probs * torch.log(probs)).sum(-1)\n", (3,)),
        Invalid("import torch\ndef f(p):\n    lp = p.log()\n    return -(p * lp).sum(-1)\n", (4,)),
        Invalid("import torch\ndef f(prob, q):\n    return (prob * (prob.log() - q.log())).sum()\n", (3,)),
        Invalid("import torch\ndef f(attn):\n    return (-attn * attn.log()).sum(-1).mean()\n", (3,)),
        Invalid(
            "import torch.nn.functional as F\ndef f(x, y):\n    q = y.softmax(-1)\n"
            "    return F.kl_div(x.log_softmax(-1), q, reduction='batchmean')\n",
            (4,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass L(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.kl = nn.KLDivLoss(reduction='batchmean')\n"
            "    def forward(self, a, b):\n        return self.kl(a.log_softmax(-1), b.softmax(-1))\n",
            (8,),
        ),
        Invalid("import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.xlogy(1 - p, p)\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for found in (*_written_out(file), *_built_in(file), *_divergences(file)):
            if surroundings(file, found.node) is not Surroundings.DIFFERENTIATED:
                continue
            value = file.values.value(found.operand)
            if (
                _is_safe(value)
                or file.grad_disabled(core(file, found.operand))
                or guarded(file, found.node, found.operand)
            ):
                continue
            because = f" {value.zero_because}" if value.zero_because else ""
            by_hand = found.formula == "p * log(p)"
            yield Hit(
                node=found.node,
                message=(
                    f"`{shown(file, found.operand)}` can be zero{because}: there the "
                    f"{'value and the gradient' if by_hand else 'gradient'} of `{found.formula}` "
                    f"{'are' if by_hand else 'is'} NaN. Put a floor under it, or compute with `log_softmax`."
                ),
                confidence=None if value.zero >= Zero.ROUNDED else Confidence.MEDIUM,
                hypothesis={
                    "operand": normalised_source(found.operand, file.text),
                    "singular_set": "== 0",
                    "operation": "entropy",
                    "symbol": file.symbol(found.node),
                    "line": found.operand.lineno,
                },
                related=tuple(
                    (binding.statement, f"`{binding.name}` is assigned here, and nothing keeps it from zero")
                    for binding in file.values.definitions(found.operand)
                ),
                fix=_floor(file, found, value),
            )


def _is_safe(value: Value) -> bool:
    return value.is_number or value.is_discrete or value.gradient is Gradient.NO or value.zero is Zero.EXCLUDED


def _written_out(file: FileContext) -> Iterator[_Entropy]:
    """`p * log(p)`; where a zero of `p` is known, the logarithm itself is reported by the rules about logarithms."""
    for product in file.nodes(ast.BinOp):
        if not isinstance(product.op, ast.Mult):
            continue
        for factor, logarithm in ((product.left, product.right), (product.right, product.left)):
            operand = _operand_of_logarithm(file, logarithm)
            if operand is None or not _is_same(factor, operand):
                continue
            names = [name for name, _ in value_names(operand)]
            unknown = file.values.value(operand).zero in (Zero.UNKNOWN, Zero.CONCEIVABLE)
            if unknown and any(_PROBABILITY.search(name.lower()) for name in names):
                yield _Entropy(product, operand, "p * log(p)")
                break


def _operand_of_logarithm(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """`p` of `log(p)`. Only calls and names that sound like a logarithm are looked at: products are everywhere."""
    if isinstance(expression, ast.Name) and "l" in expression.id:
        expression = file.values.single_definition(expression) or expression
    while isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.Add, ast.Sub)):
        expression = expression.left  # `p * (log(p) - log(q))`
    if not isinstance(expression, ast.Call) or terminal_name(expression.func) not in ("log", "log2"):
        return None
    operation = file.values.operation(expression)
    return operation.operand if operation is not None else None


def _is_same(factor: ast.expr, operand: ast.expr) -> bool:
    if isinstance(factor, ast.UnaryOp):
        factor = factor.operand
    return ast.dump(factor) == ast.dump(operand)


def _built_in(file: FileContext) -> Iterator[_Entropy]:
    for call in file.calls("entr", "xlogy"):
        operation = file.values.operation(call)
        if operation is None or operation.operand is None:
            continue
        operand = operation.operand if operation.name == "entr" else operation.argument(0, "other")
        if operand is None:
            continue
        value = file.values.value(operand)
        same = operation.name == "entr" or _is_same(operation.operand, operand)
        if same or value.zero in (Zero.ROUNDED, Zero.CERTAIN_ORIGIN):
            yield _Entropy(call, operand, operation.name, bounded=same)


def _divergences(file: FileContext) -> Iterator[_Entropy]:
    """`kl_div` towards a softmax that is trained as well."""
    for loss in losses(file, "kl_div"):
        target = loss.target
        if target is None:
            continue
        found = activated(file, target)
        if found is None or found.activation not in (Activation.SOFTMAX, Activation.SIGMOID):
            continue
        sources = [target, core(file, target), *([found.operand] if found.operand is not None else [])]
        names = {name for source in sources for name, _ in value_names(source)}
        if not any(_FIXED.search(name.lower()) for name in names):
            yield _Entropy(loss.call, target, "kl_div")


def _floor(file: FileContext, found: _Entropy, value: Value) -> Rewrite | None:
    floor = floor_of(value)
    if isinstance(found.node, ast.Call) and terminal_name(found.node.func) == "entr":
        product = file.spelling("torch.xlogy")
        if product is None:
            return None
        text = f"-{product}({file.source(found.operand)}, {clamped(file, found.operand, floor)})"
        return Rewrite(FixSafety.SAFE, (Replacement(found.node, text),))
    # Of a logarithm in another statement the value may be used elsewhere as well: a floor does not hurt there either.
    safety = FixSafety.SAFE if found.bounded else FixSafety.UNSAFE
    return Rewrite(safety, (Replacement(found.operand, clamped(file, found.operand, floor)),))
