"""Writes to tensors that autograd has kept for backward, by what the generated facts say each operation keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.saved_values import Differentiable, Kept, Overwrite, overwrites

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.up = nn.Linear(4, 4)\n        self.norm = nn.BatchNorm1d(4)\n"
    "        self.act = nn.ReLU(inplace=True)\n        self.gain = nn.Parameter(torch.ones(4))\n\n"
    "    def forward(self, x):\n"
)


def _forward(body: str) -> str:
    return _HEAD + _BLOCK + "".join(f"        {line}\n" for line in body.splitlines())


# The first line of a body given to `_forward`.
_FIRST = 15


def _operation_name(name: str) -> str:
    """How a person writes the operation: `exp()`, `nn.Linear`, `*`."""
    for symbol, spelled in (("mul", "*"), ("truediv", "/"), ("pow", "**"), ("matmul", "@")):
        if name in {f"operator.{symbol}", f"operator.i{symbol}"}:
            return spelled
    if name.startswith("torch.nn.functional."):
        return f"F.{name.rpartition('.')[2]}()"
    if name.startswith("torch.nn."):
        return name.removeprefix("torch.")
    return f"{name.rpartition('.')[2]}()"


# Data preparation, optimizers, schedules and metrics run without gradients, mostly unmarked: of 45 findings on
# arguments of such functions in sixteen packages (2.7 million lines) not one was a fault.
_WITHOUT_GRADIENTS = re.compile(
    r"(optim|schedul|transforms?[/._]|image_process|video_process|feature_extract|preprocess|postprocess|metric|pipeline|"
    r"dataset|/data/|inits?\.py|initiali|augment|box_utils|ransac)"
)


# These run a trained model: codecs, beam search, sampling. A backward would raise there, but none is meant.
_INFERENCE_NAMES = re.compile(r"compress|decode|recogni[sz]e|beam|generat|infer|predict|sampl|evaluate|visuali[sz]e")


def _judged(file: FileContext, found: Overwrite) -> tuple[Severity | None, Confidence] | None:
    """(severity, None for the rule's own; confidence) by how sure it is that gradients flow; None to stay silent."""
    if _INFERENCE_NAMES.search(found.function.name.lower()):
        return Severity.NOTE, Confidence.LOW
    if found.keep.degree is Differentiable.CERTAIN:
        return None, Confidence.HIGH
    if found.keep.degree is Differentiable.LIKELY:
        return None, Confidence.MEDIUM
    if found.in_forward:
        return Severity.WARNING, Confidence.MEDIUM
    if _WITHOUT_GRADIENTS.search(file.path.lower()) or found.function.name.startswith(("init", "reset", "_init")):
        return None
    return Severity.NOTE, Confidence.LOW


def _hits(file: FileContext, found: Overwrite, message: str) -> Iterable[Hit]:
    judged = _judged(file, found)
    if judged is None:
        return
    severity, confidence = judged
    if found.keep.degree is Differentiable.POSSIBLE:
        message += f", when {found.name} requires gradients"
    yield Hit(
        found.write.node,
        message,
        severity=severity,
        confidence=confidence,
        hypothesis={
            "function": found.function.name,
            "tensor": found.name,
            "operation": found.keep.operation,
            "kept": found.keep.side.value,
            "kept_line": getattr(found.keep.node, "lineno", 0),
        },
        related=((found.keep.node, "kept for backward here"),),
    )


class DataWrite(Rule):
    """A write through `.data` to a tensor whose values autograd has kept."""

    id = "GP401"
    name = "data-write"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = (".data",)
    documentation = Documentation(
        what_it_does=(
            "Finds writes through `x.data` (`x.data.mul_(2)`, `x.data[0] = 1`, `x.data += y`) after an operation of "
            "the same function has kept `x` for backward. Initialisation, optimizers and updates of running averages "
            "write before any operation has kept the tensor, and are left alone."
        ),
        why_is_this_bad=(
            "`.data` has a version counter of its own, so autograd does not see the write: the gradient is computed "
            "from the new values without an error (`exp` of 1 then doubled through `.data`: 5.44 instead of 2.72). "
            "The same write under `torch.no_grad()` would at least raise."
        ),
        faulty_example=_forward("y = torch.exp(self.up(x))\ny.data.mul_(2)\nreturn y"),
        right_example=_forward("y = torch.exp(self.up(x))\nreturn y * 2"),
        fix_safety="No automatic fix: whether the change belongs to the graph only the author knows.",
    )
    valid = (
        _forward("self.gain.data.clamp_(0, 1)\nreturn self.up(x) * self.gain"),
        _forward("y = self.up(x) + 1\ny.data.mul_(2)\nreturn y"),
        _forward("with torch.no_grad():\n    y = torch.exp(self.up(x))\n    y.data.mul_(2)\nreturn y"),
        _HEAD + "def init(module):\n    module.weight.data.normal_(0, 0.02)\n    module.bias.data.zero_()\n",
        _HEAD + "def update(model, teacher, m):\n    for p, q in zip(model.parameters(), teacher.parameters()):\n"
        "        q.data.mul_(m).add_((1 - m) * p.detach().data)\n",
        _HEAD + "def step(p, lr):\n    p.data.add_(p.grad, alpha=-lr)\n    p.data -= lr * p.grad\n",
    )
    invalid = (
        Invalid(_forward("y = torch.exp(self.up(x))\ny.data.mul_(2)\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("y = torch.sigmoid(self.up(x))\ny.data[0] = 0\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("h = self.up(x)\ny = h ** 2\nh.data += 1\nreturn y"), (_FIRST + 2,)),
        Invalid(_forward("y = self.up(x) * self.gain\nself.gain.data.clamp_(0, 1)\nreturn y"), (_FIRST + 1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every hidden write to a kept tensor."""
        for found in overwrites(file):
            if found.hidden:
                operation = _operation_name(found.keep.operation)
                yield from _hits(
                    file,
                    found,
                    f"{found.name} is written through .data ({found.write.how}) after {operation} kept it "
                    f"{_as_what(found)} for backward: the gradient is silently computed from the new values",
                )


def _as_what(found: Overwrite) -> str:
    return "as its result" if found.keep.side is Kept.RESULT else "as its input"


class InplaceOnSavedOutput(Rule):
    """An in-place change of the result of an operation that needs that result in backward."""

    id = "GP404"
    name = "inplace-on-saved-output"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    documentation = Documentation(
        what_it_does=(
            "Finds an in-place change (`+=`, `mul_`, `y[…] =`, `inplace=True`) of a tensor that came out of an "
            "operation which keeps its result for backward: sigmoid, tanh, exp, softmax, sqrt, relu and so on, as "
            "torch's own table of derivatives and observed calls say. Results that nothing needs (add, a "
            "multiplication by a number, a convolution, a batch norm, a view) can be changed freely and are left alone."
        ),
        why_is_this_bad=(
            "Backward raises `one of the variables needed for gradient computation has been modified by an inplace "
            "operation`, far from the line at fault, and only when gradients are asked for."
        ),
        faulty_example=_forward("y = torch.sigmoid(self.up(x))\ny += 1\nreturn y"),
        right_example=_forward("y = torch.sigmoid(self.up(x))\ny = y + 1\nreturn y"),
        fix_safety="No automatic fix yet; the operation that makes a new tensor gives the same values.",
    )
    valid = (
        _forward("y = self.norm(self.up(x))\ny += x\nreturn self.act(y)"),
        _forward("y = self.up(x) * 2\ny.mul_(2)\ny[0] = 5\nreturn y"),
        _forward("with torch.no_grad():\n    y = torch.exp(self.up(x))\n    y += 1\nreturn y"),
        _forward("y = torch.sigmoid(self.up(x))\ny = y + 1\ny += 1\nreturn y"),
        _forward("y = torch.sigmoid(self.up(x)).clone()\ny += 1\nreturn y"),
        _forward("y = torch.sigmoid(self.up(x)).detach().clone()\ny += 1\nreturn y"),
        _forward("scores = self.up(x) @ x.t()\nscores.masked_fill_(x == 0, -1e9)\nreturn scores.softmax(-1)"),
        _forward("y = F.silu(self.up(x), inplace=True)\ny += 1\nreturn y"),
        _HEAD + "def total(losses):\n    loss = 0\n    for item in losses:\n        loss += torch.exp(item)\n"
        "    return loss\n",
        _HEAD + "def mask(size):\n    m = torch.exp(torch.arange(size).float())\n    m[0] = 0\n    return m\n",
        _forward("y = self.up(x)\nif self.training:\n    y = torch.exp(y)\nelse:\n    y += 1\nreturn y"),
        _forward("gate = torch.sigmoid(self.up(x))\nif not self.training:\n    gate += 1\nreturn gate"),
    )
    invalid = (
        Invalid(_forward("y = torch.sigmoid(self.up(x))\ny += 1\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("return self.up(x).exp().mul_(2)"), (_FIRST,)),
        Invalid(_forward("y = torch.relu(self.up(x))\ny[:, 0] = 0\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("y = self.act(torch.tanh(self.up(x)))\nreturn y"), (_FIRST,)),
        Invalid(_forward("y = F.dropout(torch.tanh(self.up(x)), 0.5, inplace=True)\nreturn y"), (_FIRST,)),
        Invalid(_forward("y = self.act(self.up(x))\ny += x\nreturn y"), (_FIRST + 1,)),
        Invalid(
            _forward("y = F.softmax(self.up(x), dim=1)\nwith torch.no_grad():\n    y.mul_(2)\nreturn y"), (_FIRST + 2,)
        ),
        Invalid(_forward("y = self.up(x).sqrt()\ny.view(-1)[0] = 5\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("y = 2 ** self.up(x)\ny /= 3\nreturn y"), (_FIRST + 1,)),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.body = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Dropout(0.5, inplace=True))\n\n"
            "    def forward(self, x):\n        return self.body(x)\n",
            (12,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every plain write to a tensor that was kept as a result."""
        for found in overwrites(file):
            if not found.hidden and found.keep.side is Kept.RESULT:
                yield from _hits(
                    file,
                    found,
                    f"{found.name} is changed in place ({found.write.how}), but "
                    f"{_operation_name(found.keep.operation)} needs its result in backward (torch "
                    f"{operations().version}): backward will raise",
                )


class InplaceOnSavedInput(Rule):
    """An in-place change of a tensor that an earlier operation needs in backward as its input."""

    id = "GP405"
    name = "inplace-on-saved-input"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    documentation = Documentation(
        what_it_does=(
            "Finds an in-place change of a tensor after an operation that keeps its input for backward has used it: "
            "a multiplication by another tensor, a power, a matrix product, a convolution, a linear or norm layer, "
            "as torch's own table of derivatives and observed calls say. Where the input is kept only for the sake of "
            "another tensor, that one must have come through a module."
        ),
        why_is_this_bad=(
            "Backward raises `one of the variables needed for gradient computation has been modified by an inplace "
            "operation`. The typical line is a residual `x += f(x)`, which is wrong, where `x = x + f(x)` is right."
        ),
        faulty_example=_forward("h = x + 1\nh += self.up(h)\nreturn h"),
        right_example=_forward("h = x + 1\nh = h + self.up(h)\nreturn h"),
        fix_safety="No automatic fix yet; the operation that makes a new tensor gives the same values.",
    )
    valid = (
        _forward("h = x + 1\nh += 1\nreturn self.up(h)"),
        _forward("h = self.up(x)\ny = h + 1\nh += 2\nreturn y"),
        _forward("h = self.up(x)\nh *= torch.sigmoid(h)\nreturn h"),
        _forward("h = self.up(x)\nscale = (h ** 2).mean().item()\nh /= scale\nreturn h"),
        _forward("h = self.up(x)\nlarge = (h ** 2 > 4).any()\nh += 1\nreturn h, large"),
        _forward("h = self.up(x)\ny = self.up(h.clone())\nh += y\nreturn h"),
        _forward("h = self.up(x)\nif self.training:\n    y = h ** 2\nelse:\n    h += 1\n    y = h\nreturn y"),
        _HEAD + "def scaled(x, w):\n    y = x * w\n    x += 1\n    return y\n",
        _HEAD + "def scaled(x: torch.Tensor, w: torch.Tensor):\n    y = x * w\n    x += 1\n    return y\n",
        _forward("out = torch.zeros(3, 4)\nfor i in range(3):\n    out[i] = self.up(x[i])\nreturn out"),
        _forward("xs = [x, self.up(x)]\ny = xs[0] ** 2\nxs[1] += 1\nreturn y + xs[1]"),
    )
    invalid = (
        Invalid(_forward("h = x + 1\nh += self.up(h)\nreturn h"), (_FIRST + 1,)),
        Invalid(_forward("h = self.up(x)\ny = h ** 2\nh += 1\nreturn y"), (_FIRST + 2,)),
        Invalid(_forward("h = self.up(x)\nh.mul_(F.softplus(h).tanh())\nreturn h"), (_FIRST + 1,)),
        Invalid(_forward("h = self.up(x)\ng = self.up(x)\nh[:, 0] = h[:, 0] * g[:, 0]\nreturn h"), (_FIRST + 2,)),
        Invalid(_forward("h = self.up(x)\ny = self.norm(h)\nself.act(h)\nreturn y"), (_FIRST + 2,)),
        Invalid(
            _forward("out = self.up(x)\nfor i in range(1, 4):\n    out[i] = self.up(out[i - 1])\nreturn out"),
            (_FIRST + 2,),
        ),
        Invalid(_forward("y = x * torch.sigmoid(self.up(x))\nx += 1\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("h = self.up(x)\ny = h.pow(2)\nh.t()[0] = 0\nreturn y"), (_FIRST + 2,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every plain write to a tensor that was kept as an input."""
        for found in overwrites(file):
            if not found.hidden and found.keep.side is Kept.INPUT:
                line = getattr(found.keep.node, "lineno", 0)
                yield from _hits(
                    file,
                    found,
                    f"{found.name} is changed in place ({found.write.how}) after "
                    f"{_operation_name(found.keep.operation)} in line {line} kept it as its input for backward (torch "
                    f"{operations().version}): backward will raise",
                )
