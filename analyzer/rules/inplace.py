"""Writes to tensors that autograd has kept for backward, by what the generated facts say each operation keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.layers import Content, module_attributes
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import with_body
from analyzer.saved_values import Differentiable, Kept, Overwrite, Route, overwrites
from analyzer.syntax import dotted_name
from analyzer.weights_rewritten import rewritten_weights
from analyzer.write_findings import judged, operation_name, out_of_place, result_replaces

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.up = nn.Linear(4, 4)\n        self.norm = nn.BatchNorm1d(4)\n"
    "        self.act = nn.ReLU(inplace=True)\n        self.gain = nn.Parameter(torch.ones(4))\n\n"
    "    def forward(self, x):\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)


# The first line of a body given to `_forward`.
_FIRST = 15


def _hits(file: FileContext, found: Overwrite, message: str) -> Iterable[Hit]:
    sure = judged(file, found.function, found.keep.degree, in_forward=found.in_forward)
    if sure is None:
        return
    severity, confidence = sure
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
        fix=_fix(file, found),
    )


def _fix(file: FileContext, found: Overwrite) -> Rewrite | None:
    """The operation that makes a new tensor, where nothing else looks at the memory that is written now."""
    if found.route is not Route.OPEN or file.grad_disabled(found.write.node):
        return None
    if "inplace=True" in found.write.how:
        switched_off = _without_inplace(file, found)
        return Rewrite(FixSafety.SAFE, (switched_off,)) if switched_off is not None and found.alone else None
    return out_of_place(file, found.write, FixSafety.SAFE) if found.alone else None


def _without_inplace(file: FileContext, found: Overwrite) -> Replacement | None:
    """`inplace=False` at the call, or where the layer is built."""
    call = found.write.node
    if not isinstance(call, ast.Call) or not result_replaces(file, call, found.write):
        return None
    built = [call]
    if isinstance(call.func, ast.Attribute) and dotted_name(call.func) == f"self.{call.func.attr}":
        owner = file.enclosing_class(call)
        attribute = module_attributes(file, owner).get(call.func.attr) if owner is not None else None
        if attribute is not None and attribute.content is Content.LAYER and isinstance(attribute.node, ast.Call):
            built = [attribute.node]
    for keyword in built[0].keywords:
        if keyword.arg == "inplace" and isinstance(keyword.value, ast.Constant):
            return Replacement(keyword.value, "False")
    return None


_CLIPPED = (
    _HEAD + "def fit(net, other, x, opt):\n    {before}    for p in net.parameters():\n"
    "        p.data.clamp_(-1, 1)\n    {after}\n"
)


class DataWrite(Rule):
    """A write through `.data` to a tensor whose values autograd has kept."""

    id = "GP401"
    name = "data-write"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    triggers = (".data",)
    documentation = Documentation(
        what_it_does=(
            "Finds writes through `x.data` (`x.data.mul_(2)`, `x.data[0] = 1`, `x.data += y`) after an operation of "
            "the same function has kept `x` for backward, and such writes to all parameters of a model between its "
            "call and the backward. Initialisation, optimizers and updates of running averages "
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
        _CLIPPED.format(before="loss = net(x).mean()\n    loss.backward()\n", after="opt.step()"),
        _CLIPPED.format(before="pass\n", after="net(x).mean().backward()"),
        _CLIPPED.format(before="with torch.no_grad():\n        y = net(x)\n", after="(y - x).mean().backward()"),
        _CLIPPED.format(before="loss = net(x).mean()\n", after="net(x).mean().backward()"),
        _CLIPPED.format(before="loss = other(x).mean()\n", after="loss.backward()"),
        _HEAD + "def step(p, lr):\n    p.data.add_(p.grad, alpha=-lr)\n    p.data -= lr * p.grad\n",
    )
    invalid = (
        Invalid(_forward("y = torch.exp(self.up(x))\ny.data.mul_(2)\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("y = torch.sigmoid(self.up(x))\ny.data[0] = 0\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("h = self.up(x)\ny = h ** 2\nh.data += 1\nreturn y"), (_FIRST + 2,)),
        Invalid(_forward("y = self.up(x) * self.gain\nself.gain.data.clamp_(0, 1)\nreturn y"), (_FIRST + 1,)),
        Invalid(_CLIPPED.format(before="loss = net(x).mean()\n", after="loss.backward()"), (9,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every hidden write to a kept tensor."""
        for found in overwrites(file):
            if found.route is Route.DATA and not found.replaced:
                operation = operation_name(found.keep.operation)
                yield from _hits(
                    file,
                    found,
                    f"{found.name} is written through .data ({found.write.how}) after {operation} kept it "
                    f"{_as_what(found)} for backward: the gradient is silently computed from the new values",
                )
        for rewritten in rewritten_weights(file):
            yield Hit(
                rewritten.write,
                f"the parameters of `{rewritten.model}` are written through .data after `{rewritten.model}` has run "
                "and before backward: the gradient is silently computed from the new values",
                hypothesis={
                    "tensor": rewritten.model,
                    "symbol": file.symbol(rewritten.write),
                    "line": getattr(rewritten.write, "lineno", 0),
                },
                related=(
                    (rewritten.call, "its layers keep their weights for backward here"),
                    (rewritten.backward.call, "and backward needs them here"),
                ),
            )


def _as_what(found: Overwrite) -> str:
    return "as its result" if found.keep.side is Kept.RESULT else "as its input"


class InplaceOnSavedOutput(Rule):
    """An in-place change of the result of an operation that needs that result in backward."""

    id = "GP404"
    name = "inplace-on-saved-output"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
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
        fix_safety=(
            "Safe: `y += 1` becomes `y = y + 1`, `mul_` becomes `mul`, `inplace=True` becomes `inplace=False`; the "
            "values are the same. Offered where no other name shares the memory; writes to parts of a tensor are left "
            "to their author."
        ),
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
            if found.route is Route.OPEN and not found.replaced and found.keep.side is Kept.RESULT:
                yield from _hits(
                    file,
                    found,
                    f"{found.name} is changed in place ({found.write.how}), but "
                    f"{operation_name(found.keep.operation)} needs its result in backward (torch "
                    f"{operations().version}): backward will raise",
                )


class InplaceOnSavedInput(Rule):
    """An in-place change of a tensor that an earlier operation needs in backward as its input."""

    id = "GP405"
    name = "inplace-on-saved-input"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
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
        fix_safety=(
            "Safe: `y += 1` becomes `y = y + 1`, `mul_` becomes `mul`, `inplace=True` becomes `inplace=False`; the "
            "values are the same. Offered where no other name shares the memory; writes to parts of a tensor are left "
            "to their author."
        ),
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
            if found.route is Route.OPEN and not found.replaced and found.keep.side is Kept.INPUT:
                line = getattr(found.keep.node, "lineno", 0)
                yield from _hits(
                    file,
                    found,
                    f"{found.name} is changed in place ({found.write.how}) after "
                    f"{operation_name(found.keep.operation)} in line {line} kept it as its input for backward (torch "
                    f"{operations().version}): backward will raise",
                )
