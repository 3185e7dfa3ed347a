"""Modules that behave in evaluation as if they were trained: noise, statistics that move, a mode that is undone.

This module must not know which methods a training loop calls; it looks at `forward` and `__init__`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_true, keyword, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_NORM = (
    "class Norm(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
    "        self.register_buffer('running_mean', torch.zeros(n))\n        self.momentum = 0.1\n\n"
    "    def forward(self, x):\n"
)
_FIRST = 13
_MODE = re.compile(r"training|is_train|eval_mode|inference|freeze|frozen|update_|track", re.IGNORECASE)
# Statistics and codebooks are learned in training. Caches, counters and positions move in evaluation as they must.
_STATISTIC = re.compile(
    r"running|(^|_)ema(_|$)|moving|(^|_)avg|cluster|codebook|centers?$|momentum|usage|queue|prototypes"
)
_RANDOM = frozenset(
    {"rand_like", "randn_like", "bernoulli", "bernoulli_", "rand", "randn", "normal_", "uniform_", "randperm"}
)
# Augmentations and the noise of diffusion are called in training only, or are what is asked for: of 8 findings on such
# classes in speechbrain and espnet none was a fault.
_NOISY = re.compile(r"Drop(Path|Connect|Block|Out|out|Layer|Token)|StochasticDepth|GaussianNoise|ShakeDrop")
_AUGMENTS = re.compile(r"augment|diffusion|transform", re.IGNORECASE)
_PARTS_WITH_MODE = ("BatchNorm", "Dropout", "InstanceNorm")


def _module_methods(file: FileContext, name: str) -> Iterator[tuple[ast.ClassDef, FunctionNode]]:
    """The methods of this name in classes that derive from a module."""
    for method in file.functions_by_name.get(name, ()):
        owner = file.parent(method)
        if isinstance(owner, ast.ClassDef) and any(
            (terminal_name(base) or "").endswith("Module") for base in owner.bases
        ):
            yield owner, method


class StatisticsMoveInEvaluation(Rule):
    """A running statistic that `forward` updates without asking for the mode."""

    id = "GP730"
    name = "statistics-move-in-evaluation"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "eval_side_effects")
    triggers = ("register_buffer",)
    documentation = Documentation(
        what_it_does=(
            "Finds buffers that hold running statistics, averages or codebooks and that `forward` updates in a class "
            "which nowhere asks for `self.training`."
        ),
        why_is_this_bad=(
            "Validation data leak into the model: each evaluation moves the statistics, so a result depends on what "
            "was evaluated before, and a saved model is not the one that was trained."
        ),
        faulty_example=_HEAD + _NORM + "        mean = x.mean(0)\n"
        "        self.running_mean.lerp_(mean.detach(), self.momentum)\n        return x - self.running_mean\n",
        right_example=_HEAD + _NORM + "        if self.training:\n"
        "            self.running_mean.lerp_(x.mean(0).detach(), self.momentum)\n"
        "        return x - self.running_mean\n",
        fix_safety="No automatic fix: what else belongs to training only, the author knows.",
    )
    valid = (
        documentation.right_example,
        _HEAD + _NORM + "        if not self.training:\n            return x - self.running_mean\n"
        "        self.running_mean.copy_(x.mean(0).detach())\n        return x\n",
        # a cache is no statistic
        _HEAD + _NORM.replace("running_mean", "cache") + "        self.cache = x.detach()\n        return x\n",
        # read only
        _HEAD + _NORM + "        return x - self.running_mean\n",
        # not in forward
        _HEAD + _NORM + "        return x\n\n    def update(self, x):\n        self.running_mean.copy_(x.mean(0))\n",
        # no buffer
        _HEAD + "class Meter(nn.Module):\n    def forward(self, x):\n        self.running_mean = x.mean()\n"
        "        return x\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST + 1,)),
        Invalid(
            _HEAD + _NORM + "        self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0).detach()\n"
            "        return x - self.running_mean\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + _NORM.replace("running_mean", "ema_count") + "        with torch.no_grad():\n"
            "            self.ema_count += x.sum(0)\n        return x\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD
            + _NORM.replace("running_mean", "queue")
            + "        self.queue[0] = x[0].detach()\n        return x\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for owner, forward in _module_methods(file, "forward"):
            buffers = _statistics(file, owner)
            if not buffers or _MODE.search(_without_names(file, owner, buffers)):
                continue
            for node, name in _updates(file, forward, buffers):
                yield Hit(
                    node,
                    f"`{name}` moves with every forward, in evaluation too: what the model yields depends on what it "
                    f"was shown before. Update it only `if self.training`.",
                )


def _statistics(file: FileContext, owner: ast.ClassDef) -> frozenset[str]:
    found: set[str] = set()
    for call in file.calls("register_buffer"):
        if call.args and isinstance(call.args[0], ast.Constant) and owner in file.ancestors(call):
            name = str(call.args[0].value)
            if _STATISTIC.search(name):
                found.add(name)
    return frozenset(found)


def _without_names(file: FileContext, owner: ast.ClassDef, buffers: frozenset[str]) -> str:
    """The text of a class without the names of its buffers, which may hold the words that are looked for."""
    return re.sub("|".join(map(re.escape, buffers)), "", file.source(owner))


def _updates(file: FileContext, forward: FunctionNode, buffers: frozenset[str]) -> Iterator[tuple[ast.stmt, str]]:
    for attribute in file.nodes_in(forward, ast.Attribute):
        is_self = isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
        if attribute.attr not in buffers or not is_self:
            continue
        statement, parent = file.statement(attribute), file.parent(attribute)
        if statement is None:
            continue
        in_place = isinstance(parent, ast.Attribute) and re.search(r"[^_]_$", parent.attr) is not None
        stored = isinstance(parent, ast.Subscript) and _is_stored(parent)
        if not isinstance(attribute.ctx, ast.Load) or stored or in_place:
            yield statement, f"self.{attribute.attr}"


def _is_stored(subscript: ast.Subscript) -> bool:
    return isinstance(subscript.ctx, ast.Store)


class NoiseInEvaluation(Rule):
    """A regularising layer that draws random numbers in every mode."""

    id = "GP731"
    name = "noise-in-evaluation"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "eval_side_effects")
    triggers = ("rand", "bernoulli", "normal_", "uniform_")
    documentation = Documentation(
        what_it_does=(
            "Finds modules named after noise or dropping (`DropPath`, `GaussianNoise`) whose `forward` draws random "
            "numbers, in a class that nowhere asks for `self.training`."
        ),
        why_is_this_bad=(
            "Such layers are for training. Without the question they stay active after `model.eval()`, and the same "
            "input gives another output each time."
        ),
        faulty_example=_HEAD + "class GaussianNoise(nn.Module):\n    def forward(self, x):\n"
        "        return x + 0.1 * torch.randn_like(x)\n",
        right_example=_HEAD
        + "class GaussianNoise(nn.Module):\n    def forward(self, x):\n        if not self.training:\n"
        "            return x\n        return x + 0.1 * torch.randn_like(x)\n",
        fix_safety="No automatic fix: where to leave in evaluation depends on the layer.",
    )
    valid = (
        documentation.right_example,
        # noise is what it makes
        _HEAD + "class Sampler(nn.Module):\n    def forward(self, x):\n        return x + torch.randn_like(x)\n",
        _HEAD + "class GaussianNoise(nn.Module):\n    def forward(self, x):\n        return torch.randn_like(x)\n",
        _HEAD + "class NoiseSchedule(nn.Module):\n    def forward(self, x):\n        return x.sqrt()\n",
        _HEAD + "class AddNoise(nn.Module):\n    def forward(self, x, noise=None):\n"
        "        return x + (torch.randn_like(x) if noise is None else noise)\n",
        _HEAD
        + "class DropPath(nn.Module):\n    def forward(self, x):\n        return drop_path(x, 0.1, self.training)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (8,)),
        Invalid(
            _HEAD + "class DropPath(nn.Module):\n    def __init__(self, p):\n        super().__init__()\n"
            "        self.p = p\n\n"
            "    def forward(self, x):\n        keep = torch.rand(x.shape[0], 1) > self.p\n"
            "        return x * keep / (1 - self.p)\n",
            (12,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for owner, forward in _module_methods(file, "forward"):
            if not _NOISY.search(owner.name) or _AUGMENTS.search(f"{file.path} {owner.name}"):
                continue
            text = file.source(owner)
            if _MODE.search(text) or "deterministic" in text or _takes_noise(forward):
                continue
            drawn = next((c for c in file.nodes_in(forward, ast.Call) if terminal_name(c.func) in _RANDOM), None)
            if (
                drawn is not None
                and not isinstance(file.parent(drawn), ast.Return)
                and not any(isinstance(outer, ast.If) for outer in file.ancestors(drawn))
            ):
                yield Hit(
                    drawn,
                    f"`{owner.name}` draws this in every mode, so evaluation is random too. Leave early "
                    f"`if not self.training`.",
                )


def _takes_noise(forward: FunctionNode) -> bool:
    return any(re.search(r"noise|rng|generator|scale|strength", argument.arg) for argument in forward.args.args)


class ModeSetInInit(Rule):
    """`eval()` in `__init__`, which the first `train()` undoes."""

    id = "GP732"
    name = "mode-set-in-init"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search",)
    triggers = (".eval()",)
    documentation = Documentation(
        what_it_does=(
            "Finds `__init__` methods of modules that put batch norm or dropout layers of their own into evaluation "
            "mode, in a class that does not override `train`."
        ),
        why_is_this_bad=(
            "`model.train()` sets the mode of all submodules: the layers that were to stay frozen are in training mode "
            "from the first epoch on, and their running statistics move."
        ),
        faulty_example=_HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(4)\n        self.norm.eval()\n\n    def forward(self, x):\n"
        "        return self.norm(x)\n",
        right_example=_HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(4)\n\n    def train(self, mode=True):\n        super().train(mode)\n"
        "        self.norm.eval()\n        return self\n\n    def forward(self, x):\n        return self.norm(x)\n",
        fix_safety="No automatic fix: override `train` and set the mode there.",
    )
    valid = (
        documentation.right_example,
        # a frozen model of another kind: without such layers the mode does not matter
        _HEAD + "class Net(nn.Module):\n    def __init__(self, teacher):\n        super().__init__()\n"
        "        self.teacher = teacher.eval()\n",
        # set again in each forward
        _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(4)\n        self.norm.eval()\n\n    def forward(self, x):\n"
        "        self.norm.eval()\n        return self.norm(x)\n",
        _HEAD
        + "class Trainer:\n    def __init__(self):\n        self.norm = nn.BatchNorm1d(4)\n        self.norm.eval()\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (10,)),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))\n        self.body.eval()\n",
            (10,),
        ),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def __init__(self, body):\n        super().__init__()\n"
            "        self.body = body\n        for m in self.body.modules():\n"
            "            if isinstance(m, nn.BatchNorm2d):\n                m.eval()\n",
            (12,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for owner, init in _module_methods(file, "__init__"):
            calls = [call for call in file.calls("eval") if init in file.ancestors(call) and not call.args]
            overrides = any(isinstance(item, ast.FunctionDef) and item.name == "train" for item in owner.body)
            elsewhere = file.source(owner).count(".eval()") > len(calls)
            if overrides or elsewhere:
                continue
            for call in calls:
                if isinstance(call.func, ast.Attribute) and _has_mode(file, call, call.func.value):
                    yield Hit(
                        call,
                        "The first `train()` of the model undoes this: it sets the mode of all submodules. Override "
                        "`train` and call `eval()` there.",
                    )


def _has_mode(file: FileContext, call: ast.Call, layer: ast.expr) -> bool:
    """Whether a layer that is put into evaluation mode is one whose results depend on the mode."""
    made = maker(file, layer)
    name = (file.qualified_name(made.func) or "").rpartition(".")[2] if made is not None else ""
    if name.startswith(_PARTS_WITH_MODE):
        return True
    if (
        made is not None
        and name in ("Sequential", "ModuleList")
        and re.search(rf"\b({'|'.join(_PARTS_WITH_MODE)})", file.source(made))
    ):
        return True
    tests = [outer.test for outer in file.ancestors(call) if isinstance(outer, ast.If)]
    return any("isinstance" in file.source(test) and "Norm" in file.source(test) for test in tests)


class FixedNormMode(Rule):
    """`F.batch_norm` with running statistics and a mode that never changes."""

    id = "GP733"
    name = "fixed-norm-mode"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "eval_side_effects", "batch_consistency")
    fix = FixSafety.UNSAFE
    triggers = ("batch_norm(",)
    documentation = Documentation(
        what_it_does="Finds `F.batch_norm(x, self.running_mean, self.running_var, …, training=True)` in a module.",
        why_is_this_bad=(
            "With `training=True` the statistics of the batch are used and the running ones updated in evaluation as "
            "well: what a sample yields depends on its batch, and every evaluation changes the model."
        ),
        faulty_example=_HEAD + _NORM + "        return F.batch_norm(x, self.running_mean, self.var, training=True)\n",
        right_example=_HEAD
        + _NORM
        + "        return F.batch_norm(x, self.running_mean, self.var, training=self.training)\n",
        fix_safety="Unsafe: the same in training, different in evaluation, as it is meant to be.",
    )
    valid = (
        documentation.right_example,
        _HEAD + _NORM + "        return F.batch_norm(x, None, None, training=True)\n",
        _HEAD + _NORM + "        if self.training:\n"
        "            return F.batch_norm(x, self.running_mean, self.var, training=True)\n        return x\n",
        _HEAD + "def norm(x, mean, var):\n    return F.batch_norm(x, mean, var, training=True)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_FIRST,)),
        Invalid(
            _HEAD + _NORM + "        return F.batch_norm(x, self.running_mean, self.var, self.w, self.b, True, 0.1)\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("batch_norm"):
            if (file.qualified_name(call.func) or "") != "torch.nn.functional.batch_norm" or len(call.args) < 3:
                continue
            flag = call.args[5] if len(call.args) > 5 else keyword(call, "training")
            given = file.source(call.args[1])
            if not is_true(flag) or not given.startswith("self.") or flag is None:
                continue
            tests = [outer.test for outer in file.ancestors(call) if isinstance(outer, (ast.If, ast.IfExp))]
            if not any(_MODE.search(file.source(test)) for test in tests):
                yield Hit(
                    flag,
                    f"The mode is fixed: evaluation uses the statistics of its batch as well, and moves `{given}`. "
                    f"Pass "
                    f"`self.training`.",
                    fix=Rewrite(FixSafety.UNSAFE, (Replacement(flag, "self.training"),)),
                )
