"""Losses that are given the wrong thing: probabilities for logits, or logits for probabilities (GP123, GP124).

This module must not follow values itself: `analyzer.losses` tells what a prediction went through.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.losses import Activated, Activation, Loss, activated, losses
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import terminal_name
from analyzer.values.surroundings import Surroundings, surroundings

_BINARY = "binary_cross_entropy"
_BINARY_LOGITS = "binary_cross_entropy_with_logits"


def _calls_activation(loss: Loss, found: Activated) -> bool:
    """Whether the activation is applied in the call of the loss itself, so that it can be taken out there."""
    return found.node is loss.prediction and found.operand is not None and isinstance(found.node, ast.Call)


def _without_activation(file: FileContext, loss: Loss, found: Activated) -> tuple[Replacement, ...]:
    operand = found.operand
    assert operand is not None
    return (Replacement(loss.prediction, file.source(operand)),)


class BinaryLossInput(Rule):
    id = "GP123"
    name = "binary-loss-of-wrong-input"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient", "autocast", "finding_search")
    fix = FixSafety.SAFE
    triggers = ("binary_cross_entropy", "BCE")
    documentation = Documentation(
        what_it_does=(
            "Finds a sigmoid in front of `binary_cross_entropy`, a sigmoid in front of "
            "`binary_cross_entropy_with_logits`, and the output of a linear layer in front of `binary_cross_entropy`; "
            "also as layers, over variables, and over modules of the same file."
        ),
        why_is_this_bad=(
            "A sigmoid is exactly 0 or 1 in float32 for logits beyond about ±17 (±104 on the small side): a wrong "
            "prediction that confident gets the gradient zero and is never corrected, where the loss on logits gives "
            "one (measured on torch 2.13), and under float16 autocast on CUDA `binary_cross_entropy` raises. Two "
            "sigmoids squeeze every prediction into [0.5, 0.73]. Logits are no probabilities: `binary_cross_entropy` "
            "raises for the first one outside [0, 1]."
        ),
        faulty_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef loss(logits, y):\n"
            "    return F.binary_cross_entropy(torch.sigmoid(logits), y)\n"
        ),
        right_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef loss(logits, y):\n"
            "    return F.binary_cross_entropy_with_logits(logits, y)\n"
        ),
        fix_safety=(
            "`binary_cross_entropy_with_logits(x, y)` is the same value as `binary_cross_entropy(sigmoid(x), y)` until "
            "the latter saturates at 100. Taking one of two sigmoids away changes the loss."
        ),
    )
    valid = (
        "import torch\nimport torch.nn.functional as F\ndef f(x, y):\n"
        "    return F.binary_cross_entropy_with_logits(x, y)\n",
        "import torch\nimport torch.nn.functional as F\ndef f(p, y):\n    return F.binary_cross_entropy(p, y)\n",
        # not the prediction
        "import torch\nimport torch.nn.functional as F\ndef f(x, t):\n"
        "    return F.binary_cross_entropy_with_logits(x, torch.sigmoid(t))\n",
        # the result of a sigmoid, changed
        "import torch\nimport torch.nn.functional as F\ndef f(x, y):\n"
        "    return F.binary_cross_entropy(torch.sigmoid(x).clamp(1e-6, 1 - 1e-6).mean(-1), y)\n",
        # a module that gives probabilities in evaluation only
        "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.l = nn.Linear(4, 1)\n    def forward(self, x):\n        x = self.l(x)\n"
        "        if self.training:\n            return x\n        return x.sigmoid()\n"
        "net = N()\nloss = nn.BCEWithLogitsLoss()\ndef step(x, y):\n    return loss(net(x), y)\n",
        "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.loss = nn.BCEWithLogitsLoss()\n        self.l = nn.Linear(4, 1)\n"
        "    def forward(self, x, y):\n        return self.loss(self.l(x), y), self.l(x).sigmoid()\n",
        "from torch import nn\nclass N(nn.Module):\n    def forward(self, x):\n        if self.training:\n"
        "            return x\n        return x.sigmoid()\nnet = N()\nloss = nn.BCEWithLogitsLoss()\n"
        "def step(x, y):\n    return loss(net(x), y)\n",
        # a loss of somebody else's
        "import torch\nfrom mine import binary_cross_entropy\ndef f(x, y):\n"
        "    return binary_cross_entropy(torch.sigmoid(x), y)\n",
        "import torch\nimport torch.nn.functional as F\nclass AucMetric:\n    def update(self, x, y):\n"
        "        return F.binary_cross_entropy(torch.sigmoid(x), y)\n",
    )
    invalid = (
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x, y):\n"
            "    return F.binary_cross_entropy(torch.sigmoid(x), y)\n",
            (4,),
        ),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x, y):\n    p = x.sigmoid().view(-1)\n"
            "    return F.binary_cross_entropy(p, y.float())\n",
            (5,),
        ),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x, y, w):\n"
            "    return F.binary_cross_entropy_with_logits(x.sigmoid(), y, w)\n",
            (4,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.l = nn.Linear(4, 1)\n        self.act = nn.Sigmoid()\n"
            "        self.loss = nn.BCELoss()\n    def forward(self, x, y):\n"
            "        return self.loss(self.act(self.l(x)), y)\n",
            (10,),
        ),
        Invalid("from torch import nn\ndef f(x, y):\n    return nn.BCEWithLogitsLoss()(x.sigmoid(), y)\n", (3,)),
        # over a chain of layers and a module of the file
        Invalid(
            "from torch import nn\nnet = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())\n"
            "criterion = nn.BCEWithLogitsLoss()\ndef step(x, y):\n    return criterion(net(x), y)\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.l = nn.Linear(4, 1)\n    def forward(self, x):\n"
            "        return torch.sigmoid(self.l(x))\ndef train(x, y):\n    net = N()\n"
            "    loss = nn.BCEWithLogitsLoss()(net(x), y)\n    loss.backward()\n",
            (11,),
        ),
        # no sigmoid at all
        Invalid(
            "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.l = nn.Linear(4, 1)\n        self.loss = nn.BCELoss()\n"
            "    def forward(self, x, y):\n        return self.loss(self.l(x), y)\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for loss in losses(file, _BINARY, _BINARY_LOGITS):
            found = activated(file, loss.prediction)
            if found is None or surroundings(file, loss.call) is Surroundings.ASIDE:
                continue
            if loss.name == _BINARY_LOGITS and found.activation is Activation.SIGMOID:
                message = (
                    "The loss takes logits and applies a sigmoid itself: with this one there are two, and every "
                    "prediction lies between 0.5 and 0.73. Pass the logits."
                )
            elif loss.name == _BINARY and found.activation is Activation.SIGMOID:
                message = (
                    "A saturated sigmoid gets no gradient, however wrong it is: compute the loss from the logits, "
                    "with `binary_cross_entropy_with_logits`."
                )
            elif loss.name == _BINARY and found.activation is Activation.LOGITS:
                message = (
                    f"`{shown(file, loss.prediction)}` comes out of a linear layer: it is no probability, and "
                    "`binary_cross_entropy` raises beyond [0, 1]. Use `binary_cross_entropy_with_logits`."
                )
            else:
                continue
            yield Hit(
                node=loss.call,
                message=message,
                confidence=Confidence.MEDIUM if loss.name == _BINARY else None,
                hypothesis=_hypothesis(file, loss, "saturated or out of range"),
                related=((found.node, f"{found.activation.value} is applied here"),),
                fix=self._fix(file, loss, found),
            )

    def _fix(self, file: FileContext, loss: Loss, found: Activated) -> Rewrite | None:
        with_logits = file.spelling(f"torch.nn.functional.{_BINARY_LOGITS}")
        if loss.is_layer or with_logits is None:
            return None
        if loss.name == _BINARY and found.activation is Activation.LOGITS:
            return Rewrite(FixSafety.UNSAFE, (Replacement(loss.call.func, with_logits),))
        if not _calls_activation(loss, found):
            return None
        plain = _without_activation(file, loss, found)
        if loss.name == _BINARY_LOGITS:
            return Rewrite(FixSafety.UNSAFE, plain)
        return Rewrite(FixSafety.SAFE, (Replacement(loss.call.func, with_logits), *plain))


class ClassLossInput(Rule):
    id = "GP124"
    name = "class-loss-of-wrong-input"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search",)
    fix = FixSafety.UNSAFE
    triggers = ("cross_entropy", "CrossEntropy", "nll_loss", "NLLLoss", "kl_div", "KLDiv")
    documentation = Documentation(
        what_it_does=(
            "Finds a softmax in front of `cross_entropy`, a softmax or raw logits in front of `nll_loss`, and a "
            "softmax or sigmoid as the first argument of `kl_div`; also as layers, over variables, and over modules of "
            "the same file."
        ),
        why_is_this_bad=(
            "`cross_entropy` takes logits: of probabilities it makes a loss that can't fall below 0.55 for two "
            "classes "
            "and whose gradient is flat, so training is slow and silently worse. `nll_loss` and `kl_div` take "
            "log-probabilities: of probabilities they make a loss that is negative, or minimal in the wrong place."
        ),
        faulty_example=(
            "import torch.nn.functional as F\n\n\ndef loss(logits, y):\n"
            "    return F.cross_entropy(F.softmax(logits, dim=1), y)\n"
        ),
        right_example=(
            "import torch.nn.functional as F\n\n\ndef loss(logits, y):\n    return F.cross_entropy(logits, y)\n"
        ),
        fix_safety="The loss changes, which is the point: it is another function of the logits.",
    )
    valid = (
        "import torch.nn.functional as F\ndef f(x, y):\n    return F.cross_entropy(x, y)\n",
        "import torch.nn.functional as F\ndef f(x, y):\n    return F.nll_loss(F.log_softmax(x, dim=1), y)\n",
        # log_softmax twice is log_softmax: the same value
        "import torch.nn.functional as F\ndef f(x, y):\n    return F.cross_entropy(F.log_softmax(x, dim=1), y)\n",
        "import torch.nn.functional as F\ndef f(x, t):\n    return F.cross_entropy(x, F.softmax(t, dim=1))\n",
        "import torch.nn.functional as F\ndef f(x, t):\n    return F.kl_div(x.log_softmax(-1), t.softmax(-1))\n",
        # attention, gates and other uses of a softmax
        "import torch.nn.functional as F\ndef f(q, k, v, y):\n    w = F.softmax(q @ k.T, dim=-1)\n"
        "    return F.cross_entropy(w @ v, y)\n",
        "import torch.nn.functional as F\ndef f(x, g, y):\n    return F.cross_entropy(x * F.softmax(g, dim=-1), y)\n",
        "import torch\nimport torch.nn.functional as F\ndef f(x, y):\n"
        "    return F.nll_loss(torch.log(F.softmax(x, 1) + 1e-8), y)\n",
        # probabilities for the caller, logits for the loss
        "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.l = nn.Linear(4, 3)\n        self.loss = nn.CrossEntropyLoss()\n"
        "    def forward(self, x, y):\n        z = self.l(x)\n        return self.loss(z, y), z.softmax(-1)\n",
        # which of two models is passed in nobody knows
        "import torch.nn.functional as F\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x):\n"
        "        return x.softmax(1)\nclass B(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
        "def step(model, x, y):\n    return F.cross_entropy(model(x), y)\n",
        "import torch.nn.functional as F\nfrom torch import nn\nclass B(nn.Module):\n    def forward(self, x):\n"
        "        return x * 2\nclass A(nn.Module):\n    def forward(self, x):\n        return x.softmax(1)\n"
        "def step(model, x, y):\n    return F.cross_entropy(model(x), y)\n",
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return x.softmax(1)\n"
        "net = nn.Linear(2, 2)\ndef f(x, y):\n    return nn.CrossEntropyLoss()(net(x), y)\n",
    )
    invalid = (
        Invalid(
            "import torch.nn.functional as F\ndef f(x, y):\n    return F.cross_entropy(F.softmax(x, dim=1), y)\n", (3,)
        ),
        Invalid(
            "import torch.nn.functional as F\ndef f(x, y):\n    p = x.softmax(-1)\n"
            "    return F.cross_entropy(p.view(-1, 3), y)\n",
            (4,),
        ),
        Invalid("import torch.nn.functional as F\ndef f(x, y):\n    return F.nll_loss(F.softmax(x, dim=1), y)\n", (3,)),
        Invalid(
            "from torch import nn\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(dim=1))\n"
            "        self.criterion = nn.CrossEntropyLoss()\n    def forward(self, x, y):\n"
            "        return self.criterion(self.net(x), y)\n",
            (8,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.l = nn.Linear(4, 3)\n    def forward(self, x):\n"
            "        return torch.softmax(self.l(x), dim=1)\nnet = Net()\ncriterion = nn.CrossEntropyLoss()\n"
            "def step(x, y):\n    loss = criterion(net(x), y)\n    loss.backward()\n",
            (12,),
        ),
        # the one model of the file, passed in
        Invalid(
            "import torch.nn.functional as F\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"
            "        return F.softmax(x, dim=1)\ndef step(model, x, y):\n    return F.cross_entropy(model(x), y)\n",
            (7,),
        ),
        Invalid(
            "from torch import nn\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.l = nn.Linear(4, 3)\n        self.loss = nn.NLLLoss()\n    def forward(self, x, y):\n"
            "        return self.loss(self.l(x), y)\n",
            (8,),
        ),
        Invalid(
            "import torch.nn.functional as F\ndef f(x, t):\n"
            "    return F.kl_div(F.softmax(x, dim=-1), F.softmax(t, dim=-1), reduction='batchmean')\n",
            (3,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for loss in losses(file, "cross_entropy", "nll_loss", "kl_div"):
            found = activated(file, loss.prediction)
            if found is None or surroundings(file, loss.call) is Surroundings.ASIDE:
                continue
            message = self._message(file, loss, found.activation)
            if message is None:
                continue
            yield Hit(
                node=loss.call,
                message=message,
                hypothesis=_hypothesis(file, loss, "probabilities in the place of logits"),
                related=((found.node, f"{found.activation.value} is applied here"),),
                fix=self._fix(file, loss, found),
            )

    def _message(self, file: FileContext, loss: Loss, activation: Activation) -> str | None:
        given = shown(file, loss.prediction)
        if loss.name == "cross_entropy":
            if activation is not Activation.SOFTMAX:
                return None
            return (
                f"`cross_entropy` applies a softmax itself, and `{given}` has gone through one: the loss can't get "
                "near zero and its gradient is flat. Pass the logits."
            )
        if activation is Activation.LOG_SOFTMAX or (loss.name == "kl_div" and activation is Activation.LOGITS):
            return None
        kind = "logits" if activation is Activation.LOGITS else "probabilities"
        return f"`{loss.name}` takes log-probabilities, but `{given}` are {kind}: apply `log_softmax`."

    def _fix(self, file: FileContext, loss: Loss, found: Activated) -> Rewrite | None:
        if not _calls_activation(loss, found) or found.activation is not Activation.SOFTMAX:
            return None
        if loss.name == "cross_entropy":
            return Rewrite(FixSafety.UNSAFE, _without_activation(file, loss, found))
        call = found.node
        assert isinstance(call, ast.Call)
        if terminal_name(call.func) != "softmax":
            return None
        qualified = file.qualified_name(call.func)
        if qualified is None and isinstance(call.func, ast.Attribute):
            text: str | None = f"{file.operand_source(call.func.value)}.log_softmax"
        else:
            text = file.spelling(f"{(qualified or '').rpartition('.')[0]}.log_softmax")
        return Rewrite(FixSafety.UNSAFE, (Replacement(call.func, text),)) if text is not None else None


def _hypothesis(file: FileContext, loss: Loss, singular_set: str) -> dict[str, object]:
    return {
        "operand": shown(file, loss.prediction),
        "singular_set": singular_set,
        "operation": loss.name,
        "symbol": file.symbol(loss.call),
        "line": loss.prediction.lineno,
    }
