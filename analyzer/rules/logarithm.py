"""Logarithms of tensors that can be zero (GP107). This module must not analyse values itself."""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import hypothesis, path_of, shown
from analyzer.singularities import Form, Judgement
from analyzer.values.domain import Gradient, Zero
from analyzer.values.surroundings import Surroundings


class LogarithmAtZero(Rule):
    id = "GP107"
    name = "log-at-zero"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    triggers = ("log",)
    documentation = Documentation(
        what_it_does=(
            "Finds logarithms of a tensor that is zero for inputs that occur in practice: the output of a softmax or "
            "sigmoid (which underflows to 0, and rounds to 1 so that one minus it is 0), a masked sum, a count, a "
            "norm, a clamp at zero."
        ),
        why_is_this_bad=(
            "The logarithm is -inf and its slope infinite; the next product with a zero makes both NaN. Clamping the "
            "result repairs the value, not the gradient."
        ),
        faulty_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef entropy(logits):\n"
            "    p = F.softmax(logits, dim=-1)\n    return -(p * torch.log(p)).sum(-1)\n"
        ),
        right_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef entropy(logits):\n"
            "    log_p = F.log_softmax(logits, dim=-1)\n    return -(log_p.exp() * log_p).sum(-1)\n"
        ),
        fix_safety=(
            "`log_softmax` and `logsigmoid` give the same values wherever the old code was finite. "
            "`clamp(min=eps)` before the logarithm changes values below eps."
        ),
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
        "import logging\nimport torch\nlogger = logging.getLogger()\ndef f(x):\n    logger.log(10, x.softmax(-1))\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.log(torch.softmax(x, -1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.softmax(-1).log()\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x):\n    p = F.softmax(x, dim=1)\n"
            "    return torch.log(p)\n",
            (5,),
        ),
        Invalid("import torch\ndef f(x):\n    return torch.log(x.sigmoid())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log(1 - x.sigmoid())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    p = x.sigmoid()\n    return -(1 - p).log()\n", (4,)),
        Invalid("import torch\ndef f(x, mask):\n    return torch.log((x.exp() * mask).sum(-1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.norm(dim=-1).log()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log2(x.relu())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.clamp(min=0).log10()\n", (3,)),
        # an upper bound of 1 - 1e-8 is 1 in float32
        Invalid("import torch\ndef f(p):\n    p = p.clamp(1e-8, 1 - 1e-8)\n    return torch.log(1 - p)\n", (4,)),
        # too late: the gradient is NaN whatever is done to the result
        Invalid("import torch\ndef f(x):\n    return x.softmax(-1).log().clamp(min=-100)\n", (3,)),
        Invalid("import torch\ndef f(x, m):\n    return x.softmax(-1).log() * m\n", (3,)),
        Invalid("import torch\ndef f(x, m):\n    return x.softmax(-1).log().masked_fill(m, 0.0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.where(p > 0, p.log(), 0.0)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x.softmax(-1).log())\n", (3,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.act = nn.Sigmoid()\n    def forward(self, x):\n"
            "        return torch.log(self.act(x))\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.LOGARITHM):
            judgement = file.singularities.judge(singular)
            value = judgement.value
            if value.zero < Zero.ROUNDED or judgement.guarded or judgement.surroundings is Surroundings.ASIDE:
                continue
            yield Hit(
                node=singular.node,
                message=(
                    f"`{shown(file, singular.operand)}` is zero {value.zero_because}: the logarithm is -inf there, "
                    "and its gradient inf or NaN."
                ),
                severity=_severity(judgement),
                hypothesis=hypothesis(file, singular),
                related=path_of(file, singular, judgement),
            )


def _severity(judgement: Judgement) -> Severity | None:
    """Without a gradient only the value is at stake: worth a note."""
    unrecorded = judgement.surroundings is Surroundings.UNRECORDED
    return Severity.NOTE if unrecorded or judgement.value.gradient is Gradient.NO else None
