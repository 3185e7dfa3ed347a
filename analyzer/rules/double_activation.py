"""A softmax of a softmax, a sigmoid of a sigmoid (GP141).

This module must not follow values itself: `analyzer.losses` tells what a tensor went through.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.layer_calls import called_layer, names_given
from analyzer.losses import Activation, activated
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import shown
from analyzer.values.surroundings import Surroundings, surroundings

_APPLIED = {
    "softmax": Activation.SOFTMAX,
    "log_softmax": Activation.LOG_SOFTMAX,
    "sigmoid": Activation.SIGMOID,
    "logsigmoid": Activation.SIGMOID,
    "torch.nn.Softmax": Activation.SOFTMAX,
    "torch.nn.LogSoftmax": Activation.LOG_SOFTMAX,
    "torch.nn.Sigmoid": Activation.SIGMOID,
    "torch.nn.LogSigmoid": Activation.SIGMOID,
}
# What must not come before. A softmax of a log_softmax is the softmax again, and no fault.
_NOT_AFTER = {
    Activation.SOFTMAX: Activation.SOFTMAX,
    Activation.LOG_SOFTMAX: Activation.SOFTMAX,
    Activation.SIGMOID: Activation.SIGMOID,
}


class ActivationAppliedTwice(Rule):
    id = "GP141"
    name = "activation-applied-twice"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search",)
    fix = FixSafety.NONE
    triggers = ("softmax", "Softmax", "sigmoid", "Sigmoid")
    documentation = Documentation(
        what_it_does=(
            "Finds a softmax (or log_softmax) of something that has gone through a softmax, and a sigmoid of something "
            "that has gone through a sigmoid; also as layers, over variables, and over modules of the same file."
        ),
        why_is_this_bad=(
            "The second one squeezes probabilities once more: of two classes none gets above 0.73, a sigmoid of a "
            "sigmoid lies between 0.5 and 0.73. Nothing fails, the gradient is small, and the model never becomes sure."
        ),
        faulty_example=(
            "import torch\nfrom torch import nn\n\nnet = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))\n\n\n"
            "def probabilities(x):\n    return torch.softmax(net(x), dim=1)\n"
        ),
        right_example=(
            "import torch\nfrom torch import nn\n\nnet = nn.Linear(4, 3)\n\n\n"
            "def probabilities(x):\n    return torch.softmax(net(x), dim=1)\n"
        ),
        fix_safety="Nothing is rewritten: which of the two is one too many depends on who else uses the first.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.softmax(x, dim=-1)\n",
        "import torch\ndef f(x):\n    return x.log_softmax(-1).softmax(-1)\n",
        "import torch\ndef f(x):\n    p = x.softmax(-1)\n    return (p / 0.1).softmax(-1)\n",
        "import torch\ndef f(x):\n    return torch.softmax(torch.sigmoid(x), dim=-1)\n",
        "import torch\ndef f(q, k, v):\n    w = torch.softmax(q @ k.T, -1)\n    return torch.softmax(w @ v, -1)\n",
        "import torch\ndef f(x):\n    return x.sigmoid().log()\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    p = x.softmax(-1)\n    return torch.softmax(p, dim=-1)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.sigmoid(x.sigmoid().view(-1))\n", (3,)),
        Invalid(
            "import torch.nn.functional as F\ndef f(x):\n    return F.log_softmax(F.softmax(x, dim=1), dim=1)\n", (3,)
        ),
        Invalid(
            "from torch import nn\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.net = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())\n        self.out = nn.Sigmoid()\n"
            "    def forward(self, x):\n        return self.out(self.net(x))\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call, operand, applied in _activations(file):
            found = activated(file, operand)
            if found is None or found.activation is not _NOT_AFTER[applied] or found.node is call:
                continue
            if surroundings(file, call) is Surroundings.ASIDE:
                continue
            yield Hit(
                node=call,
                message=(
                    f"`{shown(file, operand)}` has gone through a {found.activation.value} already: the second one "
                    "flattens it, and its gradient. Take one of them away."
                ),
                hypothesis={
                    "operand": shown(file, operand),
                    "singular_set": "probabilities in the place of logits",
                    "operation": applied.value,
                    "symbol": file.symbol(call),
                    "line": operand.lineno,
                },
                related=((found.node, f"{found.activation.value} is applied here"),),
            )


def _activations(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr, Activation]]:
    """Every activation, what it is applied to, and which it is."""
    for call in file.calls("softmax", "log_softmax", "sigmoid", "logsigmoid"):
        operation = file.values.operation(call)
        if operation is not None and operation.operand is not None and _APPLIED.get(operation.name) is not None:
            if isinstance(operation.operand, ast.Name) and operation.operand.id == "self":
                continue  # `self.softmax(x)`: a layer
            yield call, operation.operand, _APPLIED[operation.name]
    for name in sorted(names_given(file, ("Softmax", "LogSoftmax", "Sigmoid", "LogSigmoid"))):
        for call in file.calls(name):
            layer = called_layer(file, call)
            if layer is not None and layer.name in _APPLIED and call.args:
                yield call, call.args[0], _APPLIED[layer.name]
