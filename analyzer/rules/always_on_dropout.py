"""Dropout that evaluation can't turn off: a functional call without the flag, a layer built in forward.

This module must not decide what a class is used for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument, is_true, keyword, made_by, self_assignments
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, parameters

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(4, 4)\n\n"
)
_FORWARD = _HEAD + _NET + "    def forward(self, x):\n"
_FIRST = 12
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
# alpha_dropout and feature_alpha_dropout default to training=False: without the flag they never do anything.
_NEVER_ON = ("alpha_dropout", "feature_alpha_dropout")
_ATTENTION = "scaled_dot_product_attention"
_CONDITION = re.compile(r"train|eval|infer|dropout|drop_|\bmc\b|stochastic|mode", re.IGNORECASE)
# Tacotron's prenet is known for its dropout at inference (espnet keeps it on purpose).
_ON_PURPOSE = re.compile(
    r"(^|_)mc(_|$)|monte|bayes|uncertain|perturb|augment|corrupt|noise|always|prenet", re.IGNORECASE
)
_DELIBERATE = re.compile(
    r"\bmc\b|monte|bayes|uncertain|always|inference|perturb|augment|ensemble|sampl|eval", re.IGNORECASE
)
_TRAINING_NAMES = ("training", "is_training", "train", "is_train")


class DropoutWithoutTrainingFlag(Rule):
    """Functional dropout that is not told whether the module is in training."""

    id = "GP714"
    name = "dropout-without-training-flag"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "eval_side_effects")
    fix = FixSafety.UNSAFE
    triggers = ("dropout",)
    documentation = Documentation(
        what_it_does=(
            "Finds `F.dropout(x, p)` without `training=…` or, in `forward`, with `training=True`, and "
            "`F.scaled_dot_product_attention` with a `dropout_p` that does not depend on `self.training`."
        ),
        why_is_this_bad=(
            "The functional form does not know the mode of the module: `training` defaults to True and `dropout_p` is "
            "always applied, so dropout stays active after `model.eval()` and the outputs are random (measured). "
            "`F.alpha_dropout` defaults to False and never does anything."
        ),
        faulty_example=_FORWARD + "        return self.fc(F.dropout(x, 0.5))\n",
        right_example=_FORWARD + "        return self.fc(F.dropout(x, 0.5, training=self.training))\n",
        fix_safety="Unsafe: the same in training, different in evaluation, as it is meant to be.",
    )
    valid = (
        _FORWARD + "        return F.dropout(self.fc(x), 0.5, self.training)\n",
        # Monte Carlo dropout, and other deliberate noise
        _FORWARD + "        # MC dropout\n        return F.dropout(self.fc(x), p=0.5, training=True)\n",
        _FORWARD
        + "        if self.noisy_mode:\n            x = F.dropout(x, p=0.5, training=True)\n        return x\n",
        _HEAD + "def drop(x):\n    return F.dropout(x, p=0.5, training=True)\n",
        _FORWARD + "        if self.training:\n            x = F.dropout(x, 0.5)\n        return self.fc(x)\n",
        _FORWARD + "        return F.dropout(x) if self.training else x\n",
        _FORWARD + "        if not self.training:\n            return x\n        return F.dropout(x, 0.5)\n",
        _FORWARD + "        return F.dropout(self.fc(x), 0.0)\n",
        _FORWARD + "        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)\n",
        _FORWARD + "        p = 0.1 if self.training else 0.0\n"
        "        return F.scaled_dot_product_attention(x, x, x, dropout_p=p)\n",
        _FORWARD
        + "        options = {'training': self.training}\n        return F.dropout(self.fc(x), 0.5, **options)\n",
        # the caller decides, by the probability
        _HEAD
        + "def attend(q, k, v, dropout_p):\n    return F.scaled_dot_product_attention(q, k, v, None, dropout_p)\n",
        _HEAD + "def drop(x, p):\n    return F.dropout(x, p)\n",
        # dropout at evaluation is the method
        _FORWARD.replace("class Net", "class Prenet") + "        return F.dropout(self.fc(x), 0.5)\n",
        _HEAD + "def mc_dropout(net, x):\n    return F.dropout(net(x), 0.5)\n",
        _FORWARD + "        with torch.no_grad():\n            mask = F.dropout(torch.ones_like(x), 0.5)\n"
        "        return self.fc(x * mask)\n",
        # another library's
        "import torch\nimport paddle.nn.functional as F\n\n\ndef f(x):\n    return F.dropout(x, 0.5)\n",
    )
    invalid = (
        Invalid(_FORWARD + "        return self.fc(F.dropout(x, 0.5))\n", (_FIRST,)),
        Invalid(_FORWARD + "        return F.dropout(self.fc(x), p=0.5, training=True)\n", (_FIRST,)),
        Invalid(_FORWARD + "        return self.fc(nn.functional.dropout2d(x, p=0.5, inplace=True))\n", (_FIRST,)),
        Invalid(_FORWARD + "        return self.fc(F.alpha_dropout(x, 0.5))\n", (_FIRST,)),
        Invalid(
            _FORWARD + "        return F.scaled_dot_product_attention(x, x, x, attn_mask=None, dropout_p=0.1)\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + "class Attention(nn.Module):\n    def __init__(self, dropout=0.1):\n        super().__init__()\n"
            "        self.dropout = dropout\n\n    def forward(self, q, k, v):\n"
            "        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)\n",
            (12,),
        ),
        Invalid(
            _HEAD + "class Attention(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.drop = nn.Dropout(0.1)\n\n    def forward(self, q, k, v):\n"
            "        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop.p)\n",
            (12,),
        ),
        Invalid(_HEAD + "def block(x, training):\n    return F.dropout(\n        x,\n        0.2,\n    )\n", (7,)),
        Invalid(_FORWARD + "        x = F.dropout(x, self.rate)\n        return self.fc(x)\n", (_FIRST,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls(*_DROPOUTS, *_NEVER_ON):
            told = argument(call, 2, "training")
            if is_true(told) and told is not None and _is_functional(file, call) and _in_plain_forward(file, call):
                yield Hit(
                    told,
                    "`training=True` keeps this dropout active after `eval()`: the outputs of the model are random. "
                    "Pass `training=self.training`.",
                    fix=Rewrite(FixSafety.UNSAFE, (Replacement(told, "self.training"),)),
                )
            if not _is_functional(file, call) or told is not None or _is_open(call):
                continue
            if _is_wanted(file, call, argument(call, 1, "p")):
                continue
            never = call.func.attr in _NEVER_ON if isinstance(call.func, ast.Attribute) else False
            effect = "never does anything" if never else "stays active after `eval()`"
            yield Hit(
                call,
                f"This dropout is not told the mode of the module and {effect}. Pass `training=self.training`.",
                fix=_with_flag(file, call),
            )
        for call in file.calls(_ATTENTION):
            rate = argument(call, 4, "dropout_p")
            if rate is None or not _is_functional(file, call) or not _is_constant_rate(file, rate):
                continue
            if not _is_wanted(file, call, rate):
                yield Hit(
                    rate,
                    f"`scaled_dot_product_attention` applies `dropout_p` in every mode, so dropout stays active after "
                    f"`eval()`. Pass `{file.source(rate)} if self.training else 0.0`.",
                    fix=_only_in_training(file, rate),
                )


def _in_plain_forward(file: FileContext, call: ast.Call) -> bool:
    """Whether a call stands in the `forward` of a module that says nowhere that it is random on purpose."""
    function, owner = file.enclosing_function(call), file.enclosing_class(call)
    if function is None or owner is None or function.name != "forward" or _flag(file, call) != "self.training":
        return False
    return not _DELIBERATE.search(file.source(owner)) and not _is_wanted(file, call, argument(call, 1, "p"))


def _is_functional(file: FileContext, call: ast.Call) -> bool:
    return (file.qualified_name(call.func) or "").startswith("torch.nn.functional.")


def _is_open(call: ast.Call) -> bool:
    """Whether arguments come from a starred name, so that the flag may be among them."""
    return any(isinstance(item, ast.Starred) for item in call.args) or any(k.arg is None for k in call.keywords)


def _is_wanted(file: FileContext, call: ast.Call, rate: ast.expr | None) -> bool:
    """Whether something around the call turns the dropout off, or it is meant to be on."""
    if isinstance(rate, ast.IfExp) or (rate is not None and _is_zero(rate)) or file.grad_disabled(call):
        return True
    if isinstance(rate, ast.Name) and any(_is_parameter(outer, rate.id) for outer in file.ancestors(call)):
        return True
    child: ast.AST = call
    for outer in file.ancestors(call):
        if _turns_off(outer, child, call):
            return True
        child = outer
    return False


def _turns_off(outer: ast.AST, child: ast.AST, call: ast.Call) -> bool:
    if isinstance(outer, (ast.If, ast.IfExp)):
        return child is not outer.test and _CONDITION.search(_text(outer.test)) is not None
    if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and _leaves_in_evaluation(outer, call):
        return True
    if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return _ON_PURPOSE.search(outer.name) is not None
    return False


def _is_parameter(outer: ast.AST, name: str) -> bool:
    return isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and any(
        parameter.arg == name for parameter in parameters(outer)
    )


def _leaves_in_evaluation(function: FunctionNode, call: ast.Call) -> bool:
    return any(
        isinstance(statement, ast.If)
        and statement.lineno < call.lineno
        and isinstance(statement.body[-1], (ast.Return, ast.Raise))
        and _CONDITION.search(_text(statement.test))
        for statement in function.body
    )


def _text(test: ast.expr) -> str:
    return ast.unparse(test)


def _is_constant_rate(file: FileContext, rate: ast.expr) -> bool:
    """Whether a `dropout_p` is the same in training and evaluation, as far as the class tells."""
    if isinstance(rate, ast.Constant):
        return isinstance(rate.value, float) and rate.value > 0
    if isinstance(rate, ast.Attribute) and rate.attr == "p" and isinstance(rate.value, ast.Attribute):
        return (made_by(file, rate.value) or "").endswith("nn.Dropout")
    if not (isinstance(rate, ast.Attribute) and isinstance(rate.value, ast.Name) and rate.value.id == "self"):
        return False
    owner = file.enclosing_class(rate)
    values = self_assignments(file, owner).get(rate.attr, []) if owner is not None else []
    return (
        len(values) == 1 and values[0] is not None and not isinstance(values[0], ast.IfExp) and not _is_zero(values[0])
    )


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _flag(file: FileContext, node: ast.AST) -> str | None:
    """What tells the mode where the node stands: `self.training`, or a parameter of the function."""
    function = file.enclosing_function(node)
    if function is None:
        return None
    names = [parameter.arg for parameter in parameters(function)]
    given = next((name for name in _TRAINING_NAMES if name in names), None)
    if given is not None:
        return given
    owner = file.parent(function)
    is_module = isinstance(owner, ast.ClassDef) and any(_text(base).endswith("Module") for base in owner.bases)
    return "self.training" if is_module and names[:1] == ["self"] else None


def _with_flag(file: FileContext, call: ast.Call) -> Rewrite | None:
    flag, text = _flag(file, call), file.source(call)
    if flag is None or "#" in text or not text.endswith(")"):
        return None
    inside = text[:-1].rstrip().removesuffix(",")
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{inside}, training={flag})"),))


def _only_in_training(file: FileContext, rate: ast.expr) -> Rewrite | None:
    flag = _flag(file, rate)
    if flag is None:
        return None
    return Rewrite(FixSafety.UNSAFE, (Replacement(rate, f"{file.source(rate)} if {flag} else 0.0"),))


# Layers with a state or a mode: built afresh in every call they are untrained, or always in training mode.
_TRAINED = frozenset(
    {
        *("Linear", "Bilinear", "LazyLinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"),
        *("ConvTranspose3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "RMSNorm"),
        *("Embedding", "EmbeddingBag", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention"),
        *("TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer", "PReLU"),
    }
)
_MODAL = frozenset({"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"})


class LayerBuiltInForward(Rule):
    """A layer with parameters or a training mode that `forward` builds anew in each call."""

    id = "GP720"
    name = "layer-built-in-forward"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "eval_side_effects")
    triggers = ("forward",)
    documentation = Documentation(
        what_it_does=(
            "Finds layers with parameters (`nn.Linear`, `nn.Conv2d`, norms) or with a training mode "
            "(`nn.Dropout`) that "
            "are constructed inside `forward`."
        ),
        why_is_this_bad=(
            "A new layer is always in training mode, whatever `model.eval()` said: its dropout can't be turned off. "
            "Its weights are drawn anew in each call, are in no `state_dict()` and are never trained."
        ),
        faulty_example=_FORWARD + "        return self.fc(nn.Dropout(0.5)(x))\n",
        right_example=_HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.drop = nn.Dropout(0.5)\n\n    def forward(self, x):\n        return self.drop(x)\n",
        fix_safety="No automatic fix: the layer belongs into `__init__`, under a name that only the author can give.",
    )
    valid = (
        # built once, when the first input tells the size
        _FORWARD + "        if self.head is None:\n            self.head = nn.Linear(x.shape[-1], 2)\n"
        "        return self.head(x)\n",
        _FORWARD + "        if not hasattr(self, 'head'):\n            self.head = nn.Linear(x.shape[-1], 2)\n"
        "        return self.head(x)\n",
        # a method that builds, for __init__
        _FORWARD + "        return self.fc(x)\n\n    def make(self, x):\n        return nn.Linear(4, 4)(x)\n",
        # nothing to train and no mode
        _FORWARD + "        return nn.ReLU()(self.fc(x))\n",
        _FORWARD + "        return nn.LayerNorm(4, elementwise_affine=False)(self.fc(x))\n",
        _FORWARD + "        return nn.Dropout(0.5)(x) if self.training else x\n",
        _FORWARD + "        return nn.Dropout(0.5).train(self.training)(x)\n",
        _FORWARD + "        return nn.Dropout(0.5).eval()(x)\n",
        _HEAD + "def build(width):\n    return nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5))\n",
        # a factory that only shares the name
        _HEAD + "class Maker:\n    def forward(self, width):\n        return nn.Linear(width, width)\n",
        # weights that come from somewhere else
        _FORWARD + "        layer = nn.Linear(4, 4)\n        layer.weight = self.weight\n        return layer(x)\n",
    )
    invalid = (
        Invalid(_FORWARD + "        return self.fc(nn.Dropout(0.5)(x))\n", (_FIRST,)),
        Invalid(_FORWARD + "        drop = nn.Dropout(p=0.1)\n        return self.fc(drop(x))\n", (_FIRST,)),
        Invalid(_FORWARD + "        return nn.BatchNorm1d(4)(self.fc(x))\n", (_FIRST,)),
        Invalid(_FORWARD + "        self.drop = nn.Dropout(0.5)\n        return self.drop(x)\n", (_FIRST,)),
        Invalid(
            _FORWARD + "        return self.mix(x)\n\n    def mix(self, x):\n        return nn.Dropout(0.5)(x)\n",
            (_FIRST + 3,),
        ),
        Invalid(
            _FORWARD + "        head = nn.Linear(4, 2)\n        head = head.to(x.device)\n        return head(x)\n",
            (_FIRST,),
        ),
        Invalid(_FORWARD + "        head = nn.Linear(4, 2).to(x.device)\n        return head(self.fc(x))\n", (_FIRST,)),
        Invalid(
            _FORWARD + "        head = nn.Sequential(nn.Linear(4, 2), nn.ReLU())\n        return head(self.fc(x))\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls(*_TRAINED, *_MODAL):
            qualified = file.qualified_name(call.func) or ""
            method = file.enclosing_function(call)
            if not qualified.startswith("torch.nn.") or method is None or not _runs_with_forward(file, method):
                continue
            owner = file.parent(method)
            if not isinstance(owner, ast.ClassDef) or not any(_text(base).endswith("Module") for base in owner.bases):
                continue
            short = qualified.rpartition(".")[2]
            if not _is_used_here(file, call) or not _has_state(call, short):
                continue
            modal = short in _MODAL
            if modal and _is_wanted(file, call, argument(call, 0, "p")):
                continue
            effect = (
                "it is always in training mode, and `eval()` does not reach it"
                if modal
                else "its weights are new and untrained each time, and in no `state_dict()`"
            )
            yield Hit(
                call, f"This `nn.{short}` is built anew in every call of `forward`: {effect}. Build it in `__init__`."
            )


def _runs_with_forward(file: FileContext, method: FunctionNode) -> bool:
    """Whether a method is `forward`, or is called as `self.method(…)` by a `forward` of the same class."""
    if method.name in ("forward", "__init__"):
        return method.name == "forward"
    owner = file.parent(method)
    return any(
        isinstance(call.func, ast.Attribute)
        and file.source(call.func.value) == "self"
        and file.enclosing_class(call) is owner
        and getattr(file.enclosing_function(call), "name", "") == "forward"
        for call in file.calls(method.name)
    )


def _has_state(call: ast.Call, short: str) -> bool:
    flag = keyword(call, "elementwise_affine" if short in ("LayerNorm", "RMSNorm") else "affine")
    plain = isinstance(flag, ast.Constant) and flag.value is False
    return not plain


def _is_used_here(file: FileContext, call: ast.Call) -> bool:
    """Whether the layer is applied in this very call of `forward`, and neither kept nor given a mode or weights."""
    node: ast.AST = call
    for outer in file.ancestors(call):
        if isinstance(outer, ast.Attribute):
            if outer.attr in ("train", "eval", "load_state_dict", "from_pretrained"):
                return False
        elif isinstance(outer, ast.Call):
            if outer.func is node and not isinstance(outer.func, ast.Attribute):
                return True
        elif isinstance(outer, ast.stmt):
            return isinstance(outer, ast.Assign) and (_is_local_layer(file, outer) or _is_kept_anew(file, outer))
        node = outer
    return False


def _is_kept_anew(file: FileContext, assignment: ast.Assign) -> bool:
    """`self.drop = nn.Dropout(p)` as a statement of the method itself: replaced in every call."""
    target = assignment.targets[0]
    is_own = isinstance(target, ast.Attribute) and file.source(target.value) == "self"
    return is_own and isinstance(file.parent(assignment), (ast.FunctionDef, ast.AsyncFunctionDef))


def _is_local_layer(file: FileContext, assignment: ast.Assign) -> bool:
    target = assignment.targets[0]
    function = file.enclosing_function(assignment)
    if not isinstance(target, ast.Name) or function is None or len(assignment.targets) != 1:
        return False
    called = False
    for name in file.nodes_in(function, ast.Name):
        if name.id != target.id or isinstance(name.ctx, ast.Store):
            continue
        parent = file.parent(name)
        if isinstance(parent, ast.Call) and parent.func is name:
            called = True
        elif not (isinstance(parent, ast.Attribute) and parent.attr in ("to", "cuda", "half", "double")):
            return False
    return called
