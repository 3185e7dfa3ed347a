"""Evaluation that records gradients, and training that goes on in evaluation mode.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_false
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.training_steps import LOOPS, Act, Event, of_act, training_events

_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_EVALUATE = "def evaluate(net, loader):\n    net.eval()\n    right = 0\n    for x, y in loader:\n"
_TRAIN = (
    "        for x in loader:\n            optimizer.zero_grad()\n            net(x).mean().backward()\n"
    "            optimizer.step()\n"
)
_NAMES = re.compile(
    r"(^|_)(eval|evaluate|evaluation|validate|validation|valid|val|test|infer|inference|predict)(_|$|\d)"
)
_WANTS_GRADIENTS = re.compile(
    r"grad|attack|advers|saliency|attribut|explain|perturb|invert|optimi|no_grad|inference_mode|lightning|pl\."
)


class EvaluationRecordsGradients(Rule):
    """A loop over validation data that builds graphs nobody differentiates."""

    id = "GP707"
    name = "evaluation-records-gradients"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ()
    triggers = (".eval()", ".train(False)")
    documentation = Documentation(
        what_it_does=(
            "Finds functions named after evaluation that call `model.eval()` and then run the model over a loader "
            "without `torch.no_grad()` or `torch.inference_mode()`."
        ),
        why_is_this_bad=(
            "`eval()` changes dropout and batch norm, not the recording of gradients: every forward builds a graph "
            "and keeps all activations. Memory doubles, and grows with the loader when results are collected."
        ),
        faulty_example=_HEAD + _EVALUATE + "        right += (net(x).argmax(1) == y).sum()\n    return right\n",
        right_example=_HEAD
        + "@torch.no_grad()\n"
        + _EVALUATE
        + "        right += (net(x).argmax(1) == y).sum()\n    return right\n",
        fix_safety="No automatic fix: a decorator or a `with` block is the author's choice.",
    )
    valid = (
        documentation.right_example,
        _HEAD
        + "def evaluate(net, loader):\n    net.eval()\n    with torch.inference_mode():\n        for x, y in loader:\n"
        "            print(net(x))\n",
        # the caller switches gradients off
        _HEAD + _EVALUATE + "        right += net(x).sum()\n    return right\n\n\ndef main(net, loader):\n"
        "    with torch.no_grad():\n        return evaluate(net, loader)\n",
        # gradients are what is wanted
        _HEAD + _EVALUATE + "        x.requires_grad_()\n        right += torch.autograd.grad(net(x).sum(), x)[0]\n"
        "    return right\n",
        _HEAD + "def test_attack(net, loader):\n    net.eval()\n    for x, y in loader:\n        print(net(x))\n",
        # a loop that trains as well
        _HEAD + "def train_and_test(net, optimizer, loader):\n    net.eval()\n    net.train()\n    for x in loader:\n"
        "        optimizer.zero_grad()\n        net(x).mean().backward()\n        optimizer.step()\n",
        # one sample
        _HEAD + "def predict(net, x):\n    net.eval()\n    return net(x)\n",
        # another name: it may be a feature extractor under training
        _HEAD + "def extract(net, loader):\n    net.eval()\n    return [net(x) for x in loader]\n",
        # nothing to differentiate
        _HEAD + "def evaluate(net, loader):\n    for p in net.parameters():\n        p.requires_grad = False\n"
        "    net.eval()\n    for x in loader:\n        print(net(x))\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (9,)),
        Invalid(
            _HEAD + "class Trainer:\n    def validate(self):\n        self.model.eval()\n        losses = []\n"
            "        for x, y in self.loader:\n            out = self.model(x)\n"
            "            losses.append(F.mse_loss(out, y))\n        return sum(losses)\n",
            (10,),
        ),
        Invalid(
            _HEAD + "def test_epoch(net, loader):\n    net.train(False)\n    for x in loader:\n"
            "        print(net(x).mean())\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for model, call in _evaluations(file):
            function = file.enclosing_function(call)
            if function is None or not _NAMES.search(function.name) or _has_gradients(file, function):
                continue
            run = next(_runs_in_loop(file, function, model, call), None)
            if run is not None and not _caller_switches_off(file, function):
                yield Hit(
                    run,
                    f"`{model}` is in evaluation mode, but gradients are recorded: every call keeps its activations. "
                    f"Put the loop under `torch.no_grad()`.",
                    related=((call, "this changes dropout and batch norm only"),),
                )


def _evaluations(file: FileContext) -> Iterator[tuple[str, ast.Call]]:
    """(the model, the call) of every `model.eval()` and `model.train(False)`."""
    for call in file.calls("eval", "train"):
        if not isinstance(call.func, ast.Attribute) or not isinstance(file.parent(call), (ast.Expr, ast.Assign)):
            continue
        off = call.func.attr == "eval" and not call.args
        if off or (call.func.attr == "train" and len(call.args) == 1 and is_false(call.args[0])):
            yield file.source(call.func.value), call


def _has_gradients(file: FileContext, function: FunctionNode) -> bool:
    if function.decorator_list or file.grad_disabled(function.body[0]):
        return True
    text = file.source(function)
    return _WANTS_GRADIENTS.search(text) is not None or ".backward(" in text or ".train()" in text.partition(".eval")[0]


def _runs_in_loop(file: FileContext, function: FunctionNode, model: str, after: ast.Call) -> Iterator[ast.Call]:
    for call in sorted(file.nodes_in(function, ast.Call), key=lambda c: (c.lineno, c.col_offset)):
        if call.lineno > after.lineno and file.source(call.func) == model and call.args:
            loops = [outer for outer in file.ancestors(call) if isinstance(outer, ast.For)]
            if loops and function in file.ancestors(loops[-1]) and not file.grad_disabled(call):
                yield call


def _caller_switches_off(file: FileContext, function: FunctionNode) -> bool:
    calls = file.calls(function.name)
    return any(file.grad_disabled(call) for call in calls)


class TrainingInEvaluationMode(Rule):
    """A model put into evaluation mode once an epoch and never back."""

    id = "GP708"
    name = "training-in-evaluation-mode"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("eval_side_effects",)
    fix = FixSafety.UNSAFE
    triggers = ("eval",)
    documentation = Documentation(
        what_it_does=(
            "Finds training loops over epochs in which the model is put into evaluation mode, by the loop itself or by "
            "a function of the file that it calls, and in which nothing calls `model.train()` again."
        ),
        why_is_this_bad=(
            "From the second epoch on dropout is off and batch norm uses, and no longer updates, its running "
            "statistics. Training goes on without any sign of it, and with worse results."
        ),
        faulty_example=_HEAD
        + "def train(net, optimizer, loader, check):\n    net.train()\n    for epoch in range(9):\n"
        + _TRAIN
        + "        net.eval()\n        with torch.no_grad():\n            print(net(check))\n",
        right_example=_HEAD
        + "def train(net, optimizer, loader, check):\n    for epoch in range(9):\n        net.train()\n"
        + _TRAIN
        + "        net.eval()\n        with torch.no_grad():\n            print(net(check))\n",
        fix_safety="Unsafe: `train()` at the start of the epoch changes what is trained, as it is meant to.",
    )
    valid = (
        documentation.right_example,
        # put back after the evaluation
        _HEAD
        + "def train(net, optimizer, loader, check):\n    net.train()\n    for epoch in range(9):\n"
        + _TRAIN
        + "        net.eval()\n        print(net(check))\n        net.train()\n",
        # by the function that evaluates
        _HEAD + "def check(net, x):\n    net.eval()\n    print(net(x))\n    net.train()\n\n\n"
        "def train(net, optimizer, loader, x):\n    for epoch in range(9):\n" + _TRAIN + "        check(net, x)\n",
        # by the function that trains an epoch
        _HEAD + "def epoch_of(net, optimizer, loader):\n    net.train()\n    for x in loader:\n"
        "        optimizer.zero_grad()\n        net(x).mean().backward()\n        optimizer.step()\n\n\n"
        "def train(net, optimizer, loader, x):\n    for epoch in range(9):\n        epoch_of(net, optimizer, loader)\n"
        "        net.eval()\n        print(net(x))\n",
        # the mode is kept and restored
        _HEAD
        + "def train(net, optimizer, loader, check):\n    for epoch in range(9):\n"
        + _TRAIN
        + "        mode = net.training\n        net.eval()\n        print(net(check))\n        net.train(mode)\n",
        # another model is evaluated
        _HEAD
        + "def train(net, teacher, optimizer, loader, check):\n    for epoch in range(9):\n"
        + _TRAIN
        + "        teacher.eval()\n        print(teacher(check))\n",
        # frozen statistics are meant: evaluation mode from the start
        _HEAD + "def tune(net, optimizer, loader):\n    net.eval()\n    for epoch in range(9):\n" + _TRAIN,
        # the last thing that is done
        _HEAD
        + "def train(net, optimizer, loader, check):\n    for epoch in range(9):\n"
        + _TRAIN
        + "    net.eval()\n    print(net(check))\n",
        _HEAD
        + "def train(net, optimizer, loader, check):\n    for epoch in range(9):\n"
        + _TRAIN
        + "        if good(net):\n            net.eval()\n            return net(check)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (12,)),
        Invalid(
            _HEAD + "def check(net, x):\n    net.eval()\n    with torch.no_grad():\n        print(net(x))\n\n\n"
            "def train(net, optimizer, loader, x):\n    net.train()\n    for epoch in range(9):\n"
            + _TRAIN
            + "        check(net, x)\n",
            (18,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def evaluate(self):\n        self.net.eval()\n        with torch.no_grad():\n"
            "            return self.net(self.x)\n\n    def fit(self, loader):\n        for epoch in range(9):\n"
            "            for x in loader:\n                self.optimizer.zero_grad()\n"
            "                self.net(x).mean().backward()\n                self.optimizer.step()\n"
            "            self.evaluate()\n",
            (17,),
        ),
        Invalid(
            _HEAD + "def train(net, optimizer, loader, check):\n    for i, x in enumerate(loader):\n"
            "        optimizer.zero_grad()\n        net(x).mean().backward()\n        optimizer.step()\n"
            "        if i % 100 == 0:\n            net.eval()\n            print(net(check))\n",
            (11,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        switched = {model for model, _ in _evaluations(file)}
        if not switched:
            return
        for events in training_events(file).values():
            for backward in of_act(events, Act.BACKWARD)[:1]:
                yield from _left_in_evaluation(file, backward)


def _left_in_evaluation(file: FileContext, backward: Event) -> Iterator[Hit]:
    outer = next((owner for owner, field in backward.path if isinstance(owner, LOOPS) and field == "body"), None)
    if not isinstance(outer, LOOPS):
        return
    inside = [call for call in file.nodes(ast.Call) if outer in file.ancestors(call)]
    trained = {file.source(call.func) for call in inside if call.lineno <= backward.call.lineno}
    for call in inside:
        if call.lineno < backward.call.lineno or _leaves_after(file, call, outer):
            continue
        model = _switched_off(file, call, trained)
        if model is not None and not any(_switches_on(file, other, model) for other in inside):
            name = model
            yield Hit(
                call,
                f"This puts `{name}` into evaluation mode, and nothing puts it back: the next turn of the loop trains "
                f"with dropout off and frozen batch statistics. Call `{name}.train()` at the start of the loop.",
                related=((backward.call, "the model is trained here"),),
                fix=_switched_on(file, outer, name),
            )
            return


def _leaves_after(file: FileContext, call: ast.Call, loop: ast.AST) -> bool:
    """Whether the block of a call leaves the loop at its end."""
    for outer in file.ancestors(call):
        if outer is loop:
            return False
        body = getattr(outer, "body", None)
        if isinstance(body, list) and body and isinstance(body[-1], (ast.Return, ast.Break, ast.Raise)):
            return True
    return False


def _switched_off(file: FileContext, call: ast.Call, trained: set[str]) -> str | None:
    """The trained model that a call puts into evaluation mode, itself or through a function of the file."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "eval" and not call.args:
        model = file.source(call.func.value)
        return model if model in trained else None
    functions = file.functions_by_name.get(terminal_name(call.func) or "", [])
    if len(functions) != 1:
        return None
    function = functions[0]
    for model, switch in _evaluations(file):
        if file.enclosing_function(switch) is not function or _mode_is_restored(file, function, model):
            continue
        if model.startswith("self."):
            same = file.enclosing_class(call) is file.enclosing_class(function)
            if same and model in trained:
                return model
        else:
            given = _given_for(call, function, model)
            if given is not None and file.source(given) in trained:
                return file.source(given)
    return None


def _given_for(call: ast.Call, function: FunctionNode, parameter: str) -> ast.expr | None:
    names = [argument.arg for argument in function.args.args]
    if parameter not in names:
        return None
    place = names.index(parameter) - (1 if names[0] == "self" else 0)
    by_keyword = next((item.value for item in call.keywords if item.arg == parameter), None)
    return call.args[place] if 0 <= place < len(call.args) else by_keyword


def _mode_is_restored(file: FileContext, function: FunctionNode, model: str) -> bool:
    return any(
        terminal_name(call.func) == "train" and not (call.args and is_false(call.args[0]))
        for call in file.nodes_in(function, ast.Call)
        if isinstance(call.func, ast.Attribute) and file.source(call.func.value) == model
    )


def _switches_on(file: FileContext, call: ast.Call, model: str) -> bool:
    """Whether a call may put the model back: `model.train()`, or any function that calls `train` on something."""
    name = terminal_name(call.func) or ""
    if name in ("train", "set_train", "train_mode", "set_mode", "set_training") and isinstance(
        call.func, ast.Attribute
    ):
        return not (call.args and is_false(call.args[0]))
    functions = file.functions_by_name.get(name, [])
    return any(
        terminal_name(inner.func) == "train" and isinstance(inner.func, ast.Attribute)
        for function in functions
        for inner in file.nodes_in(function, ast.Call)
    ) or (not functions and "train" in name and model in {file.source(argument) for argument in call.args})


def _switched_on(file: FileContext, loop: ast.For | ast.AsyncFor | ast.While, model: str) -> Rewrite | None:
    first = loop.body[0]
    if isinstance(first, (ast.For, ast.While, ast.If, ast.With, ast.Try)):
        return None  # a long block would be written anew for one line before it
    text = f"{model}.train()\n{file.source(first)}"
    return Rewrite(FixSafety.UNSAFE, (Replacement(first, text),))
