"""Weights that were to be kept, and that are the live tensors instead of copies.

This module must not judge whether keeping them is a good idea.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, terminal_name

_HEAD = "import copy\nimport torch\n\n\n"
_FIT = (
    "def fit(net, train_one, evaluate, epochs):\n    best, best_state = 0.0, None\n    for _ in range(epochs):\n"
    "        train_one(net)\n        score = evaluate(net)\n        if score > best:\n            best = score\n"
)
_END = "    net.load_state_dict(best_state)\n    return net\n"
_LINE = 12
_AVERAGE = "class Average:\n    def __init__(self, net):\n"
_KEPT = re.compile(r"best|snapshot|saved", re.IGNORECASE)
_SHADOW = re.compile(
    r"shadow|(^|_)ema(_|$)|(^|_)avg|average|snapshot|anchor|initial_|init_weights|best_", re.IGNORECASE
)
_LOOPS = (ast.For, ast.While)


class WeightsKeptByReference(Rule):
    """The best weights so far, or an average, that are the very tensors which training goes on to change."""

    id = "GP737"
    name = "weights-kept-by-reference"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ()
    fix = FixSafety.SAFE
    triggers = ("state_dict", "parameters")
    documentation = Documentation(
        what_it_does=(
            "Finds `best = net.state_dict()` in a loop that goes on to train the network and loads or returns `best` "
            "in the end, and shadow weights made of `p.data` or `p.detach()` without `clone()`."
        ),
        why_is_this_bad=(
            "`state_dict()`, `.data` and `detach()` share the memory of the parameters (measured: the same "
            "`data_ptr()`), so every later step changes what was kept: in the end the *last* weights are loaded "
            "instead of the best, and an in-place average moves the network itself."
        ),
        faulty_example=_HEAD + _FIT + "            best_state = net.state_dict()\n" + _END,
        right_example=_HEAD + _FIT + "            best_state = copy.deepcopy(net.state_dict())\n" + _END,
        fix_safety="Safe: `copy.deepcopy` of a state dict, `clone()` of a tensor; both have the same values.",
    )
    valid = (
        documentation.right_example,
        _HEAD + _FIT + "            torch.save(net.state_dict(), 'best.pt')\n",
        _HEAD + _FIT + "            best_state = net.state_dict()\n            torch.save(best_state, 'best.pt')\n",
        _HEAD + _FIT + "            best_state = {k: v.cpu().clone() for k, v in net.state_dict().items()}\n" + _END,
        # loaded into another network at once
        _HEAD + "def twin(net, other):\n    state = net.state_dict()\n    other.load_state_dict(state)\n",
        _HEAD + "def best_of(nets):\n    for net in nets:\n        best = net.state_dict()\n        print(len(best))\n",
        _HEAD + _AVERAGE + "        self.shadow = {n: p.detach().clone() for n, p in net.named_parameters()}\n",
        # references are what is wanted
        _HEAD + _AVERAGE + "        self.params = [p for p in net.parameters() if p.requires_grad]\n",
        _HEAD + _AVERAGE + "        self.avg_sizes = {n: p.shape for n, p in net.named_parameters()}\n",
        # a new tensor takes the place of the parameter's own
        _HEAD + _AVERAGE + "        self.shadow = {n: p.data for n, p in net.named_parameters()}\n\n"
        "    def swap(self, net):\n        for n, p in net.named_parameters():\n            p.data = self.shadow[n]\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (_LINE,)),
        Invalid(_HEAD + _FIT + "            best_state = net.state_dict()\n    return best_state\n", (_LINE,)),
        Invalid(
            _HEAD + _FIT + "            best_state = {'net': net.state_dict(), 'score': best}\n"
            "    net.load_state_dict(best_state['net'])\n",
            (_LINE,),
        ),
        Invalid(
            _HEAD + "class Stopper:\n    def __call__(self, score, net):\n        if score > self.best:\n"
            "            self.best = score\n            self.best_state = net.state_dict()\n\n"
            "    def restore(self, net):\n        net.load_state_dict(self.best_state)\n",
            (9,),
        ),
        Invalid(_HEAD + _AVERAGE + "        self.shadow = {n: p.data for n, p in net.named_parameters()}\n", (7,)),
        Invalid(_HEAD + _AVERAGE + "        self.ema = [p.detach() for p in net.parameters()]\n", (7,)),
        Invalid(
            _HEAD + _AVERAGE + "        self.shadow = {}\n        for n, p in net.named_parameters():\n"
            "            self.shadow[n] = p.data\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("state_dict"):
            if _is_kept(file, call):
                yield Hit(
                    call,
                    "`state_dict()` holds the live tensors, so training goes on to change what is kept here: in the "
                    "end the last weights are loaded. Keep `copy.deepcopy(…)` of it.",
                    fix=_deep(file, call),
                )
        for kept, tensor in _shadows(file):
            yield Hit(
                tensor,
                f"`{kept}` is to be a copy of the weights, but this shares their memory: every step of the optimizer "
                f"changes it, and an in-place average changes the network. Add `clone()`.",
                fix=_cloned(file, tensor),
            )


def _is_kept(file: FileContext, call: ast.Call) -> bool:
    """Whether a state dict is kept under a condition, to be loaded or returned after more training."""
    statement, value = file.statement(call), file.parent(call)
    outermost: ast.AST = call
    while isinstance(value, ast.Dict):
        outermost, value = value, file.parent(value)
    if not isinstance(statement, ast.Assign) or statement.value is not outermost or len(statement.targets) != 1:
        return False
    function = file.enclosing_function(call)
    conditional = any(isinstance(outer, ast.If) for outer in file.ancestors(statement))
    if function is None or not conditional or call.args or call.keywords or "optim" in file.source(call.func).lower():
        return False
    target = statement.targets[0]
    if isinstance(target, ast.Attribute):
        owner = file.enclosing_class(call)
        loaded = rf"load_state_dict\({re.escape(file.source(target))}\b"
        return owner is not None and _KEPT.search(target.attr) is not None and _finds(loaded, file.source(owner))
    return isinstance(target, ast.Name) and _is_used_after_loop(file, statement, function, target.id)


def _finds(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def _is_used_after_loop(file: FileContext, statement: ast.stmt, function: FunctionNode, name: str) -> bool:
    loop = next((outer for outer in file.ancestors(statement) if isinstance(outer, _LOOPS)), None)
    if loop is None or _finds(rf"\bsave\w*\(\s*{name}\b", file.source(function)):
        return False
    later = "\n".join(file.text.split("\n")[loop.end_lineno or 0 : function.end_lineno])
    return _finds(rf"load_state_dict\({name}\b|return\b.*\b{name}\b", later)


def _deep(file: FileContext, call: ast.Call) -> Rewrite | None:
    spelling = file.spelling("copy.deepcopy")
    if spelling is None:
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(call, f"{spelling}({file.source(call)})"),))


def _cloned(file: FileContext, tensor: ast.expr) -> Rewrite:
    return Rewrite(FixSafety.SAFE, (Replacement(tensor, f"{file.source(tensor)}.clone()"),))


def _shadows(file: FileContext) -> Iterator[tuple[str, ast.expr]]:
    """(what is kept, the tensor) of shadow weights whose tensors are the parameters' own."""
    for assignment in file.nodes(ast.Assign):
        target, value = assignment.targets[0], assignment.value
        holder = target.value if isinstance(target, ast.Subscript) else target
        kept = terminal_name(holder)
        if not isinstance(holder, ast.Attribute) or kept is None or not _SHADOW.search(kept):
            continue
        owner = file.enclosing_class(assignment)
        if owner is None or re.search(r"\.data = ", file.source(owner)):
            continue
        if isinstance(target, ast.Subscript):
            loop = next((outer for outer in file.ancestors(assignment) if isinstance(outer, _LOOPS)), None)
            if isinstance(loop, ast.For) and _yields_weights(loop.iter) and _shares(value):
                yield kept, value
        elif isinstance(value, (ast.DictComp, ast.ListComp)):
            element = value.value if isinstance(value, ast.DictComp) else value.elt
            if len(value.generators) == 1 and _yields_weights(value.generators[0].iter) and _shares(element):
                yield kept, element


def _yields_weights(source: ast.expr) -> bool:
    return isinstance(source, ast.Call) and terminal_name(source.func) in ("named_parameters", "parameters")


def _shares(tensor: ast.expr) -> bool:
    """`p.data` and `p.detach()`."""
    if isinstance(tensor, ast.Call):
        function = tensor.func
        return (
            isinstance(function, ast.Attribute) and function.attr == "detach" and isinstance(function.value, ast.Name)
        )
    return isinstance(tensor, ast.Attribute) and tensor.attr == "data" and isinstance(tensor.value, ast.Name)
