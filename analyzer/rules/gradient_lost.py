"""Gradients that end on their way to the result: in a copy, a number, an array, an index or a detached term."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.gradient_flow import Ending, Origin
from analyzer.lost_gradients import Evidence, Lost, is_loss, lost_gradients
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.rules.module_examples import in_module
from analyzer.values.surroundings import Surroundings, surroundings

_HEAD = "import numpy as np\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_in_module = partial(in_module, _HEAD)


_SCALE = "self.scale = nn.Parameter(torch.ones(4))\nself.up = nn.Linear(4, 4)"
# The first line of a forward after those two lines of `__init__`.
_FORWARD = 14

_MATCHER = (
    "class Matcher(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.net = nn.Linear(4, 4)\n\n"
    "    @torch.no_grad()\n    def features(self, x):\n        return self.net(x)\n\n"
)
_WHY = {
    Evidence.NEVER_TRAINED: "`{name}` reaches the result only through here, so it gets no gradient and never trains",
    Evidence.LOSS_WITHOUT_GRADIENT: "nothing of this loss carries a gradient: it trains nothing",
    Evidence.BACKWARD_WITHOUT_GRADIENT: "`backward` starts from a value without history: it raises, or trains nothing",
    Evidence.COPIED: "the copy has no history, so no gradient flows back to `{name}`",
}


def _hit(file: FileContext, lost: Lost, what: str, advice: str, fix: Rewrite | None = None) -> Hit:
    cut = lost.cut
    because = _WHY[lost.evidence].format(name=cut.source.name)
    sure = lost.evidence is Evidence.BACKWARD_WITHOUT_GRADIENT or cut.source.origin is Origin.PARAMETER
    return Hit(
        cut.node,
        f"{what} of `{shown(file, cut.node)}` ends the gradient: {because}. {advice}",
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        hypothesis={
            "source": cut.source.name,
            "ending": cut.ending.value,
            "function": lost.function.name,
            "symbol": file.symbol(cut.node),
            "line": cut.node.lineno,
        },
        related=((lost.function, f"the result of `{lost.function.name}` is what should carry the gradient"),),
        fix=fix,
    )


class CopyWithoutHistory(Rule):
    """`torch.tensor(t)`, or a parameter made in forward, of something that was computed with a gradient."""

    id = "GP201"
    name = "tensor-copied-without-history"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search", "gradient_flow")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("torch.tensor(", "Parameter(", "as_tensor(", "Tensor(", "tensor(")
    documentation = Documentation(
        what_it_does=(
            "Finds `torch.tensor(t)`, `torch.tensor([t0, t1])`, `torch.as_tensor([…])` and `nn.Parameter(t)` in a "
            "forward, a loss or a training step, where `t` was computed from parameters, layers or tensor arguments "
            "and the copy goes into the result. Numbers, sizes, integer copies and code under `no_grad` are left alone."
        ),
        why_is_this_bad=(
            "The new tensor is a leaf without history. Nothing is raised as long as another term of the loss still "
            "carries a gradient: this one silently trains nothing."
        ),
        faulty_example=_in_module(
            _SCALE, "a, b = self.up(x).mean(), self.scale.sum()\nreturn torch.tensor([a, b]) + x[0, 0]"
        ),
        right_example=_in_module(
            _SCALE, "a, b = self.up(x).mean(), self.scale.sum()\nreturn torch.stack([a, b]) + x[0, 0]"
        ),
        fix_safety=(
            "Unsafe: `torch.tensor([a, b])` becomes `torch.stack([a, b])`, and `torch.tensor(t)` becomes `t`; both "
            "keep the gradient. `stack` wants tensors of one shape."
        ),
    )
    valid = (
        _in_module(_SCALE, "n = torch.tensor(x.shape[0])\nreturn self.up(x) / n"),
        _in_module(
            _SCALE, "with torch.no_grad():\n    s = torch.tensor([self.up(x).mean(), 1.0])\nreturn self.up(x) * s[0]"
        ),
        _in_module(_SCALE, "top = torch.tensor([self.up(x).argmax(), 1], dtype=torch.long)\nreturn self.up(x)[top]"),
        _in_module("self.scale = nn.Parameter(torch.ones(4) * 2)", "return x * self.scale"),
        _HEAD + "def loss_of(x, eps):\n    e = torch.tensor(eps)\n    return (x + e).sum()\n",
        _in_module(_SCALE, "y = self.up(x)\nself.last = torch.tensor([y.mean()])\nreturn y"),
    )
    invalid = (
        Invalid(
            _in_module(_SCALE, "a, b = self.up(x).mean(), self.scale.sum()\nreturn torch.tensor([a, b]) + x[0, 0]"),
            (_FORWARD + 1,),
        ),
        Invalid(_in_module(_SCALE, "gain = torch.tensor(self.scale * 2)\nreturn self.up(x) * gain"), (_FORWARD,)),
        Invalid(_in_module(_SCALE, "gain = nn.Parameter(self.scale * 2)\nreturn self.up(x) * gain"), (_FORWARD,)),
        Invalid(
            _HEAD + "def pair_loss(a, b):\n    d = torch.tensor([(a - b).pow(2).sum(), (a + b).abs().mean()])\n"
            "    return d.sum() + a.mean()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def train(model, x, y):\n    loss = torch.tensor(F.mse_loss(model(x), y))\n    loss.backward()\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every copy of something that had a history."""
        seen: set[ast.expr] = set()
        for lost in lost_gradients(file):
            if lost.cut.ending is Ending.COPY and lost.cut.node not in seen:
                seen.add(lost.cut.node)
                yield _hit(
                    file, lost, "The copy", "Use the tensor itself, or `torch.stack`.", _stacked(file, lost.cut.node)
                )


def _stacked(file: FileContext, node: ast.expr) -> Rewrite | None:
    """`torch.stack([…])`, or the tensor itself, in the place of the copy."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    given = node.args[0]
    stack = file.spelling("torch.stack")
    if isinstance(given, (ast.List, ast.Tuple)):
        if stack is None or any(isinstance(item, (ast.Constant, ast.Starred)) for item in given.elts):
            return None
        return Rewrite(FixSafety.UNSAFE, (Replacement(node, f"{stack}({file.source(given)})"),))
    if isinstance(given, (ast.ListComp, ast.GeneratorExp)):
        return None
    return Rewrite(FixSafety.UNSAFE, (Replacement(node, file.source(given)),))


_ARTICLES = {
    Ending.NUMBER: "The conversion",
    Ending.NUMPY: "The conversion",
    Ending.DETACHED: "The `detach()`",
    Ending.UNRECORDED: "The `no_grad`",
}


class LeavesTheGraph(Rule):
    """A gradient that ends in a Python number, a NumPy array or a detached term."""

    id = "GP202"
    name = "gradient-leaves-the-graph"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "finding_search", "gradient_flow")
    torch_versions = "2.13"
    triggers = (
        *(".item(", "float(", "int(", "round(", ".numpy(", ".tolist(", ".detach(", ".data", "no_grad", "math.", "np."),
        "inference_mode",
    )
    documentation = Documentation(
        what_it_does=(
            "Finds `.item()`, `.tolist()`, `float(t)`, `.numpy()`, `.detach()` and `.data` where the result goes into "
            "what a forward or a loss returns, and the evidence says that the gradient will be missed: a parameter of "
            "the module reaches the result in no other way, no argument of a loss reaches it, `backward` starts from "
            "it, or a detached term is merely added to a loss. Straight-through estimators, target networks, "
            "statistics, logging, and parameters that are updated by hand are left alone."
        ),
        why_is_this_bad=(
            "A number, an array and a detached tensor have no history. As long as anything else in the loss has one, "
            "nothing is raised: the parameter keeps its first value for ever, or the term has no effect."
        ),
        faulty_example=_in_module(_SCALE, "gain = float(self.scale.mean())\nreturn self.up(x) * gain"),
        right_example=_in_module(_SCALE, "gain = self.scale.mean()\nreturn self.up(x) * gain"),
        fix_safety="No automatic fix: what replaces the number depends on what it is used for.",
    )
    valid = (
        _in_module(_SCALE, "y = self.up(x) * self.scale\nself.last = y.mean().item()\nreturn y"),
        _in_module(_SCALE, "n = float(self.scale.detach().abs().max())\nreturn self.up(x) * self.scale / n"),
        _in_module(_SCALE, "y = self.up(x) * self.scale\nreturn y + (y.round() - y).detach()"),
        _in_module(_SCALE, "with torch.no_grad():\n    n = self.scale.mean().item()\nreturn self.up(x) * n"),
        _in_module(
            _SCALE,
            "if not self.training:\n    return self.up(x) * float(self.scale[0])\nreturn self.up(x) * self.scale",
        ),
        _in_module("self.n = 3\nself.up = nn.Linear(4, 4)", "return self.up(x) * float(self.n)"),
        _in_module(
            "self.code = nn.Parameter(torch.ones(4))\nself.up = nn.Linear(4, 4)",
            "self.code.data.mul_(0.9)\nreturn self.up(x) - self.code.detach()",
        ),
        _in_module(f"{_SCALE}\nself.up.requires_grad_(False)", "h = self.up(x).detach()\nreturn h * self.scale"),
        _in_module(_SCALE, "h = self.up(x)\nreturn h.detach() * self.scale, h"),
        _HEAD + "def policy_loss(logp, adv):\n    return -(logp * adv.detach()).mean()\n",
        _HEAD + "def entropy_loss(logp, adv, ent):\n    return -(logp * adv.detach() + 0.01 * ent).mean()\n",
        _HEAD + "def commit_loss(q, z):\n    return (q - z.detach()).pow(2).mean() + (q.detach() - z).pow(2).mean()\n",
        _HEAD + "def fit(enc, model, x, y):\n    z = enc(x).detach()\n    loss = F.mse_loss(model(z), y)\n"
        "    loss.backward()\n",
        _HEAD + "class Trainer:\n    def fit(self, x, y):\n        with torch.no_grad():\n            z = self.enc(x)\n"
        "        loss = F.mse_loss(self.model(z), y)\n        loss.backward()\n",
        _HEAD + "def accuracy_score(p, y):\n    return (p.detach().numpy() == y.numpy()).mean()\n",
        _HEAD + _MATCHER + "    def match_loss(self, a, b):\n        return (a - self.features(b)).abs().mean()\n",
        _HEAD + _MATCHER + "    def val_loss(self, a, b):\n"
        "        return (self.features(a) - self.features(b)).abs().mean()\n",
        _HEAD + "def straight(x, q):\n    return (x + (q - x).detach()).mean()\n",
        _HEAD
        + "def fit(model, x, y):\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n    return loss.item()\n",
    )
    invalid = (
        Invalid(_in_module(_SCALE, "gain = float(self.scale.mean())\nreturn self.up(x) * gain"), (_FORWARD,)),
        Invalid(_in_module(_SCALE, "n = self.scale[0].item()\nreturn self.up(x)[:, : int(n)]"), (_FORWARD,)),
        Invalid(
            _in_module(_SCALE, "w = np.tanh(self.scale.detach().numpy())\nreturn self.up(x) * torch.from_numpy(w)"),
            (_FORWARD,),
        ),
        Invalid(
            _HEAD
            + "def blend(x, r):\n    return x * float(r)\n\n\n"
            + _in_module(_SCALE, "return blend(self.up(x), self.scale.mean())").removeprefix(_HEAD),
            (8,),
        ),
        Invalid(
            _HEAD + "def fit(model, criterion, x, y):\n    with torch.no_grad():\n        out = model(x)\n"
            "    loss = criterion(out, y)\n    loss.backward()\n",
            (8,),
        ),
        Invalid(_HEAD + "def peak_loss(p):\n    return torch.tensor(1.0 - p.detach().numpy().max())\n", (8,)),
        Invalid(_in_module(_SCALE, "h = self.up(x).detach()\nreturn h * self.scale"), (_FORWARD,)),
        Invalid(_in_module(_SCALE, "return self.up(x) * self.scale.detach()"), (_FORWARD,)),
        Invalid(
            _HEAD + _MATCHER + "    def match_loss(self, a, b):\n"
            "        return (self.features(a) - self.features(b)).abs().mean()\n",
            (17,),
        ),
        Invalid(
            _HEAD + "def area_loss(p, gt):\n    a = np.clip(p.detach().numpy(), 0, None)\n"
            "    return (torch.from_numpy(a).to(p) - gt).abs().mean()\n",
            (8,),
        ),
        Invalid(_HEAD + "def sac_loss(logp, q):\n    return (0.2 * logp - q.detach()).mean()\n", (8,)),
        Invalid(
            _HEAD + "def fit(model, x, y):\n    out = model(x).detach()\n    loss = F.mse_loss(out, y)\n"
            "    loss.backward()\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every gradient that leaves the graph and will be missed."""
        for lost in lost_gradients(file):
            ending = lost.cut.ending
            article = _ARTICLES.get(ending)
            if article is not None:
                yield _hit(file, lost, article, "Compute with the tensor.")
        yield from _detached_terms(file)


def _detached_terms(file: FileContext) -> Iterator[Hit]:
    """Terms of a loss that are added to it detached: they change its value, and no gradient."""
    for call in file.calls("detach"):
        term = call.func.value if isinstance(call.func, ast.Attribute) else None
        function = file.enclosing_function(call)
        if term is None or function is None or file.grad_disabled(call):
            continue
        outermost, added_to, reduced = _linear_surroundings(file, call)
        loss = is_loss(file, function) or reduced
        if not added_to or not loss or not isinstance(file.parent(outermost), ast.Return):
            continue
        own = {node.id for node in ast.walk(term) if isinstance(node, ast.Name)}
        if any(_names(other) & own for other in added_to) or surroundings(file, call) is Surroundings.ASIDE:
            continue
        yield Hit(
            call,
            f"`{shown(file, call)}` is only added to this loss, and has no gradient: the term trains nothing. Drop "
            "`detach()`, or the term.",
            hypothesis={"operand": shown(file, term), "symbol": file.symbol(call), "line": call.lineno},
            related=((outermost, "the loss"),),
        )


def _linear_surroundings(file: FileContext, call: ast.Call) -> tuple[ast.expr, list[ast.expr], bool]:
    """(the whole expression, what the call is added to or subtracted from, whether it is then summed)."""
    node: ast.expr = call
    added_to: list[ast.expr] = []
    reduced = False
    while True:
        parent = file.parent(node)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Sub)):
            added_to.append(parent.right if parent.left is node else parent.left)
            node = parent
        elif isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Mult, ast.Div)):
            other = parent.right if parent.left is node else parent.left
            if not isinstance(other, ast.Constant):
                break
            node = parent
        elif isinstance(parent, ast.UnaryOp):
            node = parent
        elif isinstance(parent, ast.Attribute) and parent.attr in {"mean", "sum"}:
            outer = file.parent(parent)
            if not isinstance(outer, ast.Call) or outer.func is not parent:
                break
            node, reduced = outer, True
        else:
            break
    tensors = [other for other in added_to if not isinstance(other, ast.Constant)]
    return node, tensors, reduced


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


class SteplessOperation(Rule):
    """A gradient that ends in an index, a rounding or a comparison."""

    id = "GP203"
    name = "gradient-ends-in-a-decision"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "finding_search", "gradient_flow")
    torch_versions = "2.13"
    triggers = (
        *("argmax", "argmin", ".int()", ".long()", "round", "floor", "ceil", "sign", "one_hot", "argsort", "bool"),
        *("topk", " > ", " < ", " >= ", " <= ", "heaviside", "histc", "bincount", "histogram", "searchsorted"),
    )
    documentation = Documentation(
        what_it_does=(
            "Finds `argmax`, `round`, `.int()`, comparisons and other operations without a slope where a parameter or "
            "a layer of the module reaches the result of forward in no other way, and losses that are computed from "
            "such decisions alone. Straight-through estimators, hard decisions beside a soft path, masks, metrics and "
            "forwards that return an index are left alone."
        ),
        why_is_this_bad=(
            "The derivative is zero or does not exist: what comes before never trains, and nothing is raised "
            "as long as anything else in the result has a gradient."
        ),
        faulty_example=_in_module(_SCALE, "keep = (x > self.scale).float()\nreturn self.up(x) * keep"),
        right_example=_in_module(_SCALE, "keep = torch.sigmoid(x - self.scale)\nreturn self.up(x) * keep"),
        fix_safety="No automatic fix: a soft version or a straight-through estimator is a choice.",
    )
    valid = (
        _in_module(_SCALE, "y = self.up(x) * self.scale\nreturn y + (y.round() - y).detach()"),
        _in_module(_SCALE, "return self.up(x).argmax(dim=-1)"),
        _in_module(
            "self.step = nn.Parameter(torch.rand(1))",
            "s = x / self.step\nreturn (s + (torch.round(s) - s).detach()) * self.step",
        ),
        _in_module("self.step = 0.1", "return torch.round(x / self.step) * self.step"),
        _in_module(_SCALE, "y = self.up(x)\nreturn y, (y > 0).float().mean(), self.scale"),
        _in_module(_SCALE, "keep = (x > self.scale).float()\nreturn self.up(x) * keep * self.scale"),
        _in_module(
            "self.low = 0.5\nself.up = nn.Linear(4, 4)", "keep = (x > self.low).float()\nreturn self.up(x) * keep"
        ),
        _in_module(
            "self.up = nn.Linear(4, 4)\nself.teacher = nn.Linear(4, 4)",
            "top = self.teacher(x).argmax(-1)\nreturn self.up(x)[:, top]",
        ),
        _HEAD + "def accuracy(logits, labels):\n    return (logits.argmax(1) == labels).float().mean()\n",
        _HEAD + "def loss_choice(logits):\n    return logits.argmax(1)\n",
        _HEAD + "def nll_loss_of(logits, labels):\n    hits = (logits.argmax(1) == labels).float().mean()\n"
        "    return F.cross_entropy(logits, labels), hits\n",
    )
    invalid = (
        Invalid(_in_module(_SCALE, "keep = (x > self.scale).float()\nreturn self.up(x) * keep"), (_FORWARD,)),
        Invalid(_in_module(_SCALE, "step = self.scale.round()\nreturn self.up(x) * step"), (_FORWARD,)),
        Invalid(
            _in_module(
                "self.rate = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())\nself.up = nn.Linear(4, 4)",
                "cut = (4 * self.rate(x)).int()\nreturn self.up(x)[:, : cut[0]]",
            ),
            (_FORWARD,),
        ),
        Invalid(_in_module(_SCALE, "index = self.up(x).argmax(-1)\nreturn 2.0 * index.float() - 1.0"), (_FORWARD,)),
        Invalid(
            _in_module(
                "self.fc = nn.Linear(4, 4)",
                "p = self.fc(x)\ngate = torch.where(p > 0, torch.ones_like(p), torch.zeros_like(p))\nreturn x * gate",
            ),
            (_FORWARD,),
        ),
        Invalid(
            _in_module("self.threshold = nn.Parameter(torch.rand(1))", "return x * (x.abs() > self.threshold).float()"),
            (_FORWARD - 1,),
        ),
        Invalid(
            _in_module(
                "self.step = nn.Parameter(torch.rand(1))", "q = torch.round(x / self.step)\nreturn q * self.step"
            ),
            (_FORWARD - 1,),
        ),
        Invalid(
            _HEAD + "def histogram_loss(a, b):\n    p, q = torch.histc(a, bins=8), torch.histc(b, bins=8)\n"
            "    return (p - q).abs().sum()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def order_loss(a, b):\n    p, q = a.argmax(1), b.argmax(1)\n"
            "    return torch.exp((p - q).abs().float()).mean()\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every decision that a gradient ends in and will be missed."""
        for lost in lost_gradients(file):
            if lost.cut.ending in {Ending.DISCRETE, Ending.COMPARISON}:
                yield _hit(file, lost, "The decision", "Use a soft version, or a straight-through estimator.")
