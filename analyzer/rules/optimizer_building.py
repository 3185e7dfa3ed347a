"""Optimizers built too early, or too often, for the parameters they are to train.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import keyword
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name
from analyzer.training_steps import LOOPS, Act, between, block_of, path_of, scope_of, training_events

_HEAD = "import torch\nfrom torch import nn\n\n\n"
_MOVES = frozenset({"to", "cuda", "cpu", "half", "double", "float", "bfloat16", "type", "to_empty"})
# Of all optimizers of torch 2.13 only Adagrad makes its state in the constructor (measured); the others make it in the
# first step, and `Module.to` changes the parameters in place, so that moving the model first is a habit, not a need.
_EAGER = frozenset({"Adagrad"})
# These carry nothing from step to step: building them anew in each turn loses nothing.
_STATELESS = frozenset({"SGD"})
_REPLACES = frozenset({"resize_token_embeddings", "add_module", "replace_head", "reset_classifier", "add_adapter"})
_OPTIMIZERS = (
    *(
        "SGD",
        "Adam",
        "AdamW",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "Adafactor",
        "RMSprop",
        "Rprop",
        "NAdam",
        "RAdam",
        "ASGD",
    ),
    *("SparseAdam", "LBFGS", "Muon"),
)


@dataclass(frozen=True, slots=True)
class _Built:
    """`optimizer = Adam(model.parameters())`: the call, its statement, and what its parameters come from."""

    call: ast.Call
    statement: ast.stmt
    kind: str
    model: str


class OptimizerBuiltEarly(Rule):
    """An optimizer whose model is moved, extended or replaced afterwards, or that is built for every batch."""

    id = "GP712"
    name = "optimizer-built-early"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ()
    fix = FixSafety.UNSAFE
    triggers = ("optim",)
    documentation = Documentation(
        what_it_does=(
            "Finds optimizers that are built from `model.parameters()` before a layer of the model is replaced or "
            "added, before the model itself is replaced, or (Adagrad) before it is moved to another device or type, "
            "and optimizers with a state that are built anew for every batch."
        ),
        why_is_this_bad=(
            "An optimizer holds the parameters that it was given: a layer that comes later is never trained, and "
            "nothing says so. Adagrad allocates its sums when it is built, so they stay on the old device. An "
            "optimizer that is built for every batch forgets its momenta each time."
        ),
        faulty_example=_HEAD + "def prepare(model):\n    optimizer = torch.optim.Adam(model.parameters())\n"
        "    model.head = nn.Linear(8, 3)\n    return model, optimizer\n",
        right_example=_HEAD + "def prepare(model):\n    model.head = nn.Linear(8, 3)\n"
        "    optimizer = torch.optim.Adam(model.parameters())\n    return model, optimizer\n",
        fix_safety="Unsafe: the optimizer is built after the model is complete, where both lines stand in one block.",
    )
    valid = (
        documentation.right_example,
        _HEAD + "def prepare(net, device):\n    net = net.to(device)\n"
        "    return net, torch.optim.Adagrad(net.parameters())\n",
        # moved in place, and the state is made in the first step
        _HEAD + "def prepare(net, device):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net.to(device)\n    return net, optimizer\n",
        # wrapped: the parameters are the same
        _HEAD + "def prepare(net):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net = nn.DataParallel(net)\n    return net, optimizer\n",
        _HEAD + "def prepare(net):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net = torch.compile(net)\n    return net, optimizer\n",
        # the new layer is added to the optimizer
        _HEAD + "def prepare(net):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net.head = nn.Linear(8, 3)\n    optimizer.add_param_group({'params': net.head.parameters()})\n"
        "    return net, optimizer\n",
        # built again afterwards
        _HEAD + "def prepare(net):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net.head = nn.Linear(8, 3)\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    return net, optimizer\n",
        # another model
        _HEAD + "def prepare(net, other):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    other.head = nn.Linear(8, 3)\n    return net, optimizer\n",
        # no layer: a setting
        _HEAD + "def prepare(net):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net.name = str(net)\n    net.loss = nn.MSELoss()\n    return net, optimizer\n",
        # one optimizer a task, with its model
        _HEAD + "def tasks(batches):\n    for x in batches:\n        net = nn.Linear(2, 1)\n"
        "        optimizer = torch.optim.Adam(net.parameters())\n        optimizer.zero_grad()\n"
        "        net(x).sum().backward()\n        optimizer.step()\n",
        # one optimizer an image: it is stepped many times
        _HEAD
        + "def invert(net, images):\n    for z in images:\n        optimizer = torch.optim.Adam(net.parameters())\n"
        "        for _ in range(99):\n            optimizer.zero_grad()\n            net(z).sum().backward()\n"
        "            optimizer.step()\n",
        # no momenta: nothing to lose
        _HEAD + "def train(net, batches):\n    for x in batches:\n"
        "        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n        optimizer.zero_grad()\n"
        "        net(x).sum().backward()\n        optimizer.step()\n",
        # in one of two branches
        _HEAD + "def prepare(net, fresh):\n    if fresh:\n        net.head = nn.Linear(8, 3)\n"
        "        optimizer = torch.optim.Adam(net.parameters())\n    else:\n"
        "        optimizer = torch.optim.Adam(net.parameters())\n    return net, optimizer\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (6,)),
        Invalid(
            _HEAD + "def prepare(net, device):\n    optimizer = torch.optim.Adagrad(net.parameters())\n"
            "    net = net.to(device)\n    return net, optimizer\n",
            (6,),
        ),
        Invalid(
            _HEAD + "def prepare(net):\n    opt = torch.optim.Adagrad(net.parameters(), lr=0.1)\n    net.cuda()\n"
            "    return net, opt\n",
            (6,),
        ),
        Invalid(
            _HEAD + "def prepare(net):\n    opt = torch.optim.SGD(params=net.parameters(), lr=0.1)\n"
            "    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())\n    return net, opt\n",
            (6,),
        ),
        Invalid(
            _HEAD + "def prepare(net, n):\n    opt = torch.optim.AdamW(net.parameters())\n    print(n)\n"
            "    net.resize_token_embeddings(n)\n    return net, opt\n",
            (6,),
        ),
        Invalid(
            _HEAD + "def prepare(net):\n    opt = torch.optim.AdamW([p for p in net.parameters()])\n"
            "    net.gain = nn.Parameter(torch.ones(2))\n    net.body[0] = nn.Linear(2, 2)\n    return net, opt\n",
            (6,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def __init__(self, net, device):\n        self.net = net\n"
            "        self.opt = torch.optim.Adam(self.net.parameters())\n        self.net.fc = nn.Linear(2, 2)\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def train(net, batches):\n    for x in batches:\n"
            "        optimizer = torch.optim.Adam(net.parameters())\n        optimizer.zero_grad()\n"
            "        net(x).sum().backward()\n        optimizer.step()\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for built in _built_optimizers(file):
            changes = _changes_after(file, built)
            if changes:
                statement, what = changes[0]
                yield Hit(
                    built.call,
                    f"`{built.model}` {what} after this optimizer was built: {_effect(what)}. Build the optimizer "
                    f"last.",
                    related=((statement, "the model changes here"),),
                    fix=_moved(file, built, changes[-1][0]),
                )
            elif _is_built_for_every_batch(file, built):
                yield Hit(
                    built.call,
                    f"This `{built.kind}` is built anew for every batch, so it forgets its momenta with every step. "
                    f"Build it before the loop.",
                )


def _effect(what: str) -> str:
    if what == _MOVED:
        return "the state it allocated stays behind"
    return "it does not train what came later"


_MOVED, _GROWS = "is moved", "gets new layers"


def _built_optimizers(file: FileContext) -> Iterator[_Built]:
    for call in file.calls(*_OPTIMIZERS):
        statement = file.statement(call)
        qualified = file.qualified_name(call.func) or ""
        if not qualified.startswith("torch.optim.") or not isinstance(statement, ast.Assign):
            continue
        given = call.args[0] if call.args else keyword(call, "params")
        model = _model_of(file, given) if given is not None and statement.value is call else None
        if model is not None:
            yield _Built(call, statement, qualified.rpartition(".")[2], model)


def _model_of(file: FileContext, given: ast.expr) -> str | None:
    """The model whose parameters an argument lists, when it is one: `net` of `net.parameters()`."""
    owners: set[str] = set()
    for node in ast.walk(given):
        if isinstance(node, ast.Call) and terminal_name(node.func) in ("parameters", "named_parameters"):
            holder = node.func.value if isinstance(node.func, ast.Attribute) else None
            if not isinstance(holder, (ast.Name, ast.Attribute)):
                return None
            owners.add(file.source(holder))
    return owners.pop() if len(owners) == 1 else None


def _changes_after(file: FileContext, built: _Built) -> list[tuple[ast.stmt, str]]:
    """(the statement, what it does to the model) for all that comes after an optimizer in its own block."""
    scope = scope_of(file, built.call)
    text = file.source(scope) if not isinstance(scope, ast.Module) else file.text
    block = block_of(file, built.statement)
    if "add_param_group" in text or built.statement not in block:
        return []
    found: list[tuple[ast.stmt, str]] = []
    for statement in block[block.index(built.statement) + 1 :]:
        if _assigns_again(file, statement, built):
            return []
        what = _change(file, statement, built)
        if what is not None:
            found.append((statement, what))
    return found


def _assigns_again(file: FileContext, statement: ast.stmt, built: _Built) -> bool:
    if not isinstance(statement, ast.Assign) or not isinstance(built.statement, ast.Assign):
        return False
    return {file.source(target) for target in statement.targets} >= {file.source(t) for t in built.statement.targets}


def _change(file: FileContext, statement: ast.stmt, built: _Built) -> str | None:
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call):
        return None
    if isinstance(call.func, ast.Attribute) and file.source(call.func.value) == built.model:
        if call.func.attr in _MOVES:
            return _MOVED if built.kind in _EAGER else None
        return _GROWS if call.func.attr in _REPLACES else None
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if target is None:
        return None
    if file.source(target) == built.model:
        return "is replaced" if _is_another_model(file, call, built) else None
    return _GROWS if _is_part(file, target, built.model) and _makes_parameters(file, call) else None


def _is_part(file: FileContext, target: ast.expr, model: str) -> bool:
    """Whether a target is reached through a model: `model.head`, `model.body[0]`."""
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        target = target.value
        if file.source(target) == model:
            return True
    return False


def _is_another_model(file: FileContext, call: ast.Call, built: _Built) -> bool:
    """Whether a call makes a model of its own: a layer of torch or a class of the file, not given the old one."""
    if any(built.model in file.source(argument) for argument in (*call.args, *(k.value for k in call.keywords))):
        return False
    if _makes_parameters(file, call):
        return True
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return any(node.name == name and node.bases for node in file.nodes(ast.ClassDef))


_WITHOUT_PARAMETERS = ("Loss", "ReLU", "GELU", "SiLU", "Identity", "Dropout", "Flatten", "Softmax", "Sigmoid", "Tanh")


def _makes_parameters(file: FileContext, call: ast.Call) -> bool:
    qualified = file.qualified_name(call.func) or ""
    short = qualified.rpartition(".")[2]
    wraps = short in ("DataParallel", "DistributedDataParallel", "ModuleList", "ModuleDict")
    plain = any(word in short for word in _WITHOUT_PARAMETERS) or "Pool" in short
    return qualified.startswith("torch.nn.") and short[:1].isupper() and not wraps and not plain


def _moved(file: FileContext, built: _Built, change: ast.stmt) -> Rewrite | None:
    statements = between(file, built.statement, change)
    if statements is None:
        return None
    target = built.statement.targets[0] if isinstance(built.statement, ast.Assign) else built.call
    name = file.source(target)
    if any(name in file.source(statement) for statement in statements[1:]):
        return None
    order = [*statements[1:], built.statement]
    pairs = zip(statements, order, strict=True)
    return Rewrite(FixSafety.UNSAFE, tuple(Replacement(place, file.source(item)) for place, item in pairs))


def _is_built_for_every_batch(file: FileContext, built: _Built) -> bool:
    """Whether the loop that builds an optimizer takes one single step with it, of a model from outside."""
    if built.kind in _STATELESS and not any(item.arg == "momentum" for item in built.call.keywords):
        return False
    scope = scope_of(file, built.call)
    loop = next((outer for outer in file.ancestors(built.statement) if isinstance(outer, LOOPS)), None)
    if loop is None or not isinstance(built.statement, ast.Assign):
        return False
    name = file.source(built.statement.targets[0])
    path = path_of(file, built.statement, scope)
    if any(isinstance(owner, ast.If) for owner, _ in path):
        return False
    root = built.model.partition(".")[0]
    made_inside = any(
        isinstance(node, ast.Name) and node.id == root and isinstance(node.ctx, ast.Store) for node in ast.walk(loop)
    )
    steps = [
        event
        for event in training_events(file).get(scope, ())
        if event.act is Act.STEP and event.subject is not None and file.source(event.subject) == name
    ]
    return bool(steps) and not made_inside and all(event.loop is loop for event in steps)
