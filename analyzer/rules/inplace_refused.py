"""In-place writes that torch refuses, or that change more than their author meant."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import in_module
from analyzer.saved_values import Obstacle, Refusal, traces
from analyzer.write_findings import called_without_gradients, judged, out_of_place, under_no_grad

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_in_module = partial(in_module, _HEAD)


_LINEAR = "self.up = nn.Linear(4, 6)"
# The first line of `__init__` after `super()`, and of a forward after one line in `__init__`.
_INIT, _FORWARD = 8, 11


def _hit(file: FileContext, found: Refusal, message: str, fix: Rewrite | None) -> Iterable[Hit]:
    sure = judged(file, found.function, found.degree, in_forward=found.in_forward)
    if sure is None or called_without_gradients(file, found.function):
        return
    severity, confidence = sure
    related = ((found.cause, "it comes from here"),) if found.cause is not None else ()
    yield Hit(
        found.write.node,
        message,
        severity=severity,
        confidence=confidence,
        hypothesis={
            "function": found.function.name,
            "tensor": found.name,
            "obstacle": found.obstacle.value,
            "symbol": file.symbol(found.write.node),
            "line": getattr(found.write.node, "lineno", 0),
        },
        related=related,
        fix=fix,
    )


class InplaceOnLeaf(Rule):
    """An in-place change of a parameter while gradients are recorded."""

    id = "GP406"
    name = "inplace-on-parameter"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    documentation = Documentation(
        what_it_does=(
            "Finds in-place changes of parameters, of the weights of layers, of leaves made with `requires_grad`, and "
            "of views of them, outside `torch.no_grad()`; and `out=` in operations that record a gradient. Writes "
            "through `.data`, `nn.init` and methods that are only called under `no_grad` are left alone."
        ),
        why_is_this_bad=(
            "Torch raises at once: `a leaf Variable that requires grad is being used in an in-place operation`, or "
            "`functions with out=... arguments don't support automatic differentiation`."
        ),
        faulty_example=_in_module(f"{_LINEAR}\nself.up.bias[0] -= 4.6", "return self.up(x)"),
        right_example=_in_module(f"{_LINEAR}\nwith torch.no_grad():\n    self.up.bias[0] -= 4.6", "return self.up(x)"),
        fix_safety="Safe: the statement moves under `with torch.no_grad():`; without it there are no values at all.",
    )
    valid = (
        _in_module(f"{_LINEAR}\nself.up.bias.data[0] -= 4.6\nnn.init.zeros_(self.up.bias)", "return self.up(x)"),
        _in_module(f"{_LINEAR}\nbias = self.up.bias.detach()\nbias[0] = 1", "return self.up(x)"),
        _in_module("self.gain = nn.Parameter(torch.ones(4), requires_grad=False)\nself.gain[0] = 2", "return x"),
        _in_module(
            "self.gain = nn.Parameter(torch.ones(4))\nself.gain.requires_grad = False\nself.gain[0] = 2", "return x"
        ),
        _in_module("self.register_buffer('gain', torch.ones(4))\nself.gain[0] = 2", "return x * self.gain"),
        _in_module(f"{_LINEAR}\nself.up.bias = nn.Parameter(self.up.bias * 2)", "return self.up(x)"),
        _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.gain = nn.Parameter(torch.empty(4))\n        with torch.no_grad():\n            self.reset()\n\n"
        "    def reset(self):\n        self.gain.fill_(1)\n",
        _HEAD + "def ema(model, teacher, m):\n    with torch.no_grad():\n        for p in teacher.parameters():\n"
        "            p.mul_(m)\n",
        _HEAD + "def noise(x):\n    out = torch.empty(3)\n    torch.rand(3, out=out)\n    return x + out\n",
    )
    invalid = (
        Invalid(_in_module(f"{_LINEAR}\nself.up.bias[0] -= 4.6", "return self.up(x)"), (_INIT + 1,)),
        Invalid(
            _in_module(f"{_LINEAR}\nbias = self.up.bias.view(2, 3)\nbias[:, 1] -= 2", "return self.up(x)"), (_INIT + 2,)
        ),
        Invalid(_in_module("self.gain = nn.Parameter(torch.ones(4))", "self.gain.clamp_(0, 1)\nreturn x"), (_FORWARD,)),
        Invalid(
            _HEAD + "def fit(x, lr):\n    w = torch.randn(3, requires_grad=True)\n    (w * x).sum().backward()\n"
            "    w -= lr * w.grad\n    return w\n",
            (8,),
        ),
        Invalid(
            _HEAD + "layer = nn.Linear(2, 2)\n\n\ndef prepare():\n    layer = nn.Linear(2, 2)\n"
            "    layer.weight.fill_(1)\n    return layer\n",
            (10,),
        ),
        Invalid(
            _in_module(_LINEAR, "out = torch.empty(4, 6)\ntorch.mul(self.up(x), 2, out=out)\nreturn out"),
            (_FORWARD + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every write to a leaf, and every `out=` that records."""
        for found in traces(file).refusals:
            if found.obstacle is Obstacle.LEAF:
                message = (
                    f"`{found.name}` is a parameter (or a view of one) and is changed in place ({found.write.how}) "
                    "while gradients are recorded: torch raises. Change it under `torch.no_grad()`."
                )
                yield from _hit(file, found, message, under_no_grad(file, found.write.node, FixSafety.SAFE))
            elif found.obstacle is Obstacle.OUT:
                message = (
                    f"`out={found.name}` does not work while gradients are recorded: torch raises. Assign the result "
                    "instead."
                )
                yield from _hit(file, found, message, None)


_REASONS = {
    Obstacle.PARTS: "is one of several views that one call (or unpacking a tensor) gave, which torch lets nobody "
    "change in place: it raises when gradients flow",
    Obstacle.FUNCTION_VIEW: "is a view that a custom autograd Function returned: torch raises when it is changed in "
    "place, because the Function's own backward would be lost",
    Obstacle.SHARED: "is expanded, so that several of its elements are one place in memory: torch refuses the write, "
    "or changes all of them",
    Obstacle.WINDOWS: "holds overlapping windows of one tensor: elements that two windows share are changed twice, "
    "without an error",
}


class InplaceOnSharedMemory(Rule):
    """An in-place change of a tensor that shares its memory in a way that forbids it."""

    id = "GP407"
    name = "inplace-on-shared-memory"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    documentation = Documentation(
        what_it_does=(
            "Finds in-place changes of expanded tensors (`expand`, `broadcast_to`, `broadcast_tensors`, `meshgrid`), "
            "of overlapping windows (`Tensor.unfold` with a step below its size), of what `chunk`, `split` "
            "and `unbind` give (and of tensors that are unpacked or iterated), and of a view from a custom Function."
        ),
        why_is_this_bad=(
            "Most of these raise, some only once gradients flow. Windows do not: where they overlap, the change is "
            "silently made once for each window. Filling an expanded tensor changes all copies at once."
        ),
        faulty_example=_in_module(_LINEAR, "q, k = self.up(x).chunk(2, dim=-1)\nq *= 0.5\nreturn q @ k.t()"),
        right_example=_in_module(_LINEAR, "q, k = self.up(x).chunk(2, dim=-1)\nq = q * 0.5\nreturn q @ k.t()"),
        fix_safety=(
            "Unsafe: `q *= 0.5` becomes `q = q * 0.5`, and an expanded tensor is cloned. Other names of the same "
            "memory no longer see the change, and windows no longer overlap."
        ),
    )
    valid = (
        _in_module(_LINEAR, "q, k = self.up(x).chunk(2, dim=-1)\nq = q * 0.5\nreturn q @ k.t()"),
        _in_module(_LINEAR, "q, k = self.up(x).tensor_split(2, dim=-1)\nq *= 0.5\nreturn q + k"),
        _in_module(_LINEAR, "q = self.up(x).chunk(2, dim=-1)[0].clone()\nq *= 0.5\nreturn q"),
        _in_module(
            _LINEAR, "with torch.no_grad():\n    q, k = self.up(x).chunk(2, dim=-1)\n    q *= 0.5\nreturn q + k"
        ),
        _in_module(_LINEAR, "grid = torch.arange(4.0).expand(4, 4).clone()\ngrid[:, 0] = 1\nreturn x + grid"),
        _in_module(
            _LINEAR, "grid = torch.arange(4.0).expand(4, 4)\ngrid = grid.reshape(-1)\nreturn x.reshape(-1) + grid"
        ),
        _in_module(_LINEAR, "grid = torch.ones(4, 4).expand(-1, -1)\ngrid[:, 0] = 2\nreturn x + grid"),
        _in_module(_LINEAR, "w = (x + 1).unfold(-1, 2, 2)\nw.mul_(2)\nreturn w"),
        _in_module("self.rnn = nn.LSTM(4, 4)", "out, _ = self.rnn(x)\nout[0] = 0\nreturn out"),
        _HEAD + "class Keep(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return (x * 2).t().contiguous()\n\n    @staticmethod\n    def backward(ctx, g):\n        return g\n"
        "\n\nclass Net(nn.Module):\n    def forward(self, x):\n        y = Keep.apply(x)\n        y += 1\n"
        "        return y\n",
        _HEAD + "def show(counts):\n    first, second = counts\n    first += 1\n    return first, second\n",
    )
    invalid = (
        Invalid(_in_module(_LINEAR, "q, k = self.up(x).chunk(2, -1)\nq *= 0.5\nreturn q @ k.t()"), (_FORWARD + 1,)),
        Invalid(_in_module(_LINEAR, "h = self.up(x)\nfor row in h:\n    row.add_(1)\nreturn h"), (_FORWARD + 2,)),
        Invalid(_in_module(_LINEAR, "a, b = torch.split(self.up(x), 3, -1)\na[0] = 0\nreturn a + b"), (_FORWARD + 1,)),
        Invalid(
            _in_module(_LINEAR, "grid = torch.arange(4.0).expand(4, 4)\ngrid[:, 0] = 1\nreturn x + grid"),
            (_FORWARD + 1,),
        ),
        Invalid(
            _in_module(_LINEAR, "gy, gx = torch.meshgrid(x[0], x[1], indexing='ij')\ngy -= 1\nreturn gy + gx"),
            (_FORWARD + 1,),
        ),
        Invalid(_in_module(_LINEAR, "w = (x + 1).unfold(-1, 2, 1)\nw.mul_(2)\nreturn w"), (_FORWARD + 1,)),
        Invalid(
            _HEAD + "class Flat(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        return (x * 2).view(-1)\n\n    @staticmethod\n    def backward(ctx, g):\n        return g\n\n\n"
            "class Net(nn.Module):\n    def forward(self, x):\n        y = Flat.apply(x)\n        y += 1\n"
            "        return y\n",
            (18,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every write to memory that is shared so."""
        for found in traces(file).refusals:
            reason = _REASONS.get(found.obstacle)
            if reason is None:
                continue
            message = f"`{found.name}` ({found.write.how}) {reason}. Make a new tensor instead."
            yield from _hit(file, found, message, _fix(file, found))


def _fix(file: FileContext, found: Refusal) -> Rewrite | None:
    if found.obstacle is Obstacle.SHARED and isinstance(found.cause, ast.Call) and _is_expansion(found.cause):
        cloned = f"{file.source(found.cause)}.clone()"
        return Rewrite(FixSafety.UNSAFE, (Replacement(found.cause, cloned),))
    return out_of_place(file, found.write, FixSafety.UNSAFE)


def _is_expansion(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name in {"expand", "expand_as", "broadcast_to"}
