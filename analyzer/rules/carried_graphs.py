"""Graphs that outlive their batch: losses summed with their history, states and averages that carry it on.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_true, keyword
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name
from analyzer.training_steps import LOOPS, Act, Event, exclusive, of_act, path_of, scope_of, training_events

_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_LOOP = (
    "def train(net, optimizer, batches):\n    total = 0\n    for x, y in batches:\n        optimizer.zero_grad()\n"
    "        loss = F.mse_loss(net(x), y)\n        loss.backward()\n        optimizer.step()\n"
)
_CUTS = re.compile(r"\.item\(|\.detach\(|\.data\b|\.cpu\(\)\.numpy|\.tolist\(|^float\(|\.numpy\(|no_grad")


class LossKeptWithGraph(Rule):
    """The loss of every batch added to a total, or put into a list, together with its graph."""

    id = "GP702"
    name = "loss-kept-with-graph"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("memory",)
    fix = FixSafety.SAFE
    triggers = ("backward",)
    documentation = Documentation(
        what_it_does=(
            "Finds loops and methods that call `loss.backward()` and also keep the loss beyond the turn or the call: "
            "`total += loss`, `self.losses.append(loss)`, without `.item()` or `.detach()`."
        ),
        why_is_this_bad=(
            "The kept tensor holds on to the graph of its batch, and a sum to the graphs of all batches: memory grows "
            "with every step until the process is killed."
        ),
        faulty_example=_HEAD + _LOOP + "        total += loss\n    return total\n",
        right_example=_HEAD + _LOOP + "        total += loss.item()\n    return total\n",
        fix_safety="Safe: `loss.detach()` has the same value and no graph.",
    )
    valid = (
        _HEAD + _LOOP + "        total += loss.detach()\n    return total\n",
        _HEAD + _LOOP + "        total += float(loss)\n    return total\n",
        _HEAD + _LOOP + "        loss = loss.item()\n        total += loss\n    return total\n",
        _HEAD + _LOOP + "        with torch.no_grad():\n            total += loss\n    return total\n",
        # the total is what is differentiated
        _HEAD
        + "def train(net, optimizer, batches):\n    total = 0\n    for x in batches:\n        total += net(x).sum()\n"
        "    optimizer.zero_grad()\n    total.backward()\n    optimizer.step()\n",
        # started afresh in every turn
        _HEAD + "def train(net, optimizer, batches):\n    for parts in batches:\n        optimizer.zero_grad()\n"
        "        total = 0\n        for x in parts:\n            loss = net(x).mean()\n"
        "            total = total + loss\n"
        "        total.backward()\n        optimizer.step()\n",
        _HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        losses = []\n        loss = net(x).mean()\n        losses.append(loss)\n        loss.backward()\n"
        "        optimizer.step()\n        print(losses)\n",
        # two terms of one loss
        _HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        loss = net(x).mean()\n        loss += net(x).pow(2).mean()\n        loss.backward()\n"
        "        optimizer.step()\n",
        # one step, and what it returns
        _HEAD + "class Trainer:\n    def step(self, x):\n        self.optimizer.zero_grad()\n"
        "        losses = []\n        loss = self.net(x).mean()\n        losses.append(loss)\n"
        "        loss.backward()\n        self.optimizer.step()\n        return losses\n",
        # other things are counted
        _HEAD + _LOOP + "        total += len(x)\n    return total\n",
        _HEAD + _LOOP + "        total += loss.shape[0]\n    return total\n",
    )
    invalid = (
        Invalid(_HEAD + _LOOP + "        total += loss\n    return total\n", (12,)),
        Invalid(_HEAD + _LOOP + "        total = total + loss * len(x)\n    return total\n", (12,)),
        Invalid(
            _HEAD + _LOOP.replace("total = 0", "seen = []") + "        seen.append(loss)\n    return seen\n", (12,)
        ),
        Invalid(
            _HEAD
            + _LOOP.replace("loss.backward()", "scaler.scale(loss).backward()")
            + "        total += loss / len(batches)\n    return total\n",
            (12,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def fit(self, batches):\n        for x in batches:\n"
            "            self.optimizer.zero_grad()\n            loss = self.net(x).mean()\n"
            "            loss.backward()\n"
            "            self.optimizer.step()\n            self.history.append(loss)\n",
            (12,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x):\n        self.optimizer.zero_grad()\n"
            "        loss = self.net(x).mean()\n        loss.backward()\n        self.optimizer.step()\n"
            "        self.total += loss\n",
            (11,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            for backward in of_act(events, Act.BACKWARD):
                if isinstance(backward.subject, ast.Name):
                    yield from self._kept(file, backward, backward.subject.id)

    def _kept(self, file: FileContext, backward: Event, loss: str) -> Iterator[Hit]:
        for name, keeper in _keepings(file, backward, loss):
            yield Hit(
                name,
                f"`{keeper}` keeps this loss together with the graph of its batch, so memory grows with every turn. "
                f"Keep `{loss}.detach()` or `{loss}.item()`.",
                related=((backward.call, "its backward has been run, so the graph is of no use any more"),),
                fix=Rewrite(FixSafety.SAFE, (Replacement(name, f"{loss}.detach()"),)),
            )


def _keepings(file: FileContext, backward: Event, loss: str) -> Iterator[tuple[ast.Name, str]]:
    """(the name of the loss, what keeps it) wherever the loop of a backward adds the loss to something older."""
    loop = backward.loop
    if is_true(keyword(backward.call, "retain_graph")):
        return
    if not isinstance(loop, LOOPS):
        yield from _kept_by_object(file, backward, loss)
        return
    fresh = {
        name.id
        for name in _names_in(file, loop, backward)
        if isinstance(name.ctx, ast.Store) and not isinstance(file.parent(name), ast.AugAssign)
    }
    for name in _names_in(file, loop, backward):
        if name.id != loss or not isinstance(name.ctx, ast.Load) or file.grad_disabled(name):
            continue
        keeper = _keeper(file, name, loss)
        if keeper is None or (keeper.split(".")[0] in fresh and not _adds_to_itself(file, name, keeper)):
            continue
        path = path_of(file, name, backward.scope)
        if exclusive(path, backward.path) or not _has_graph(file, name):
            continue
        yield name, keeper


def _kept_by_object(file: FileContext, backward: Event, loss: str) -> Iterator[tuple[ast.Name, str]]:
    """The same in a method that takes one step: what it adds to an attribute outlives the call."""
    if isinstance(backward.scope, ast.Module):
        return
    for name in file.nodes_in(backward.scope, ast.Name):
        if name.id != loss or not isinstance(name.ctx, ast.Load) or file.grad_disabled(name):
            continue
        keeper = _keeper(file, name, loss)
        if keeper is None or not keeper.startswith("self.") or not _has_graph(file, name):
            continue
        if not exclusive(path_of(file, name, backward.scope), backward.path):
            yield name, keeper


def _names_in(file: FileContext, loop: ast.AST, event: Event) -> list[ast.Name]:
    if isinstance(event.scope, ast.Module):
        return [name for name in file.nodes(ast.Name) if loop in file.ancestors(name)]
    return [name for name in file.nodes_in(event.scope, ast.Name) if loop in file.ancestors(name)]


def _keeper(file: FileContext, name: ast.Name, loss: str) -> str | None:
    """What a use of the loss adds it to: the target of `total += loss`, the list of `losses.append(loss)`."""
    node: ast.AST = name
    parent = file.parent(node)
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Mult, ast.Div, ast.Add)):
        node, parent = parent, file.parent(parent)
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add) and parent.value is node:
        return _kept_in(file, parent.target, loss)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(node, ast.BinOp):
        target = _kept_in(file, parent.targets[0], loss)
        return target if target is not None and target in _terms(file, node) else None
    if isinstance(parent, ast.Call) and terminal_name(parent.func) == "append" and parent.args == [node]:
        return _kept_in(file, parent.func.value, loss) if isinstance(parent.func, ast.Attribute) else None
    return None


def _kept_in(file: FileContext, target: ast.expr, loss: str) -> str | None:
    if isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return None
    text = file.source(target)
    return text if text != loss else None


def _terms(file: FileContext, node: ast.BinOp) -> set[str]:
    terms: set[str] = set()
    pending: list[ast.expr] = [node]
    while pending:
        item = pending.pop()
        if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Add):
            pending.extend((item.left, item.right))
        else:
            terms.add(file.source(item))
    return terms


def _adds_to_itself(file: FileContext, name: ast.Name, keeper: str) -> bool:
    """Whether the only plain assignment to the total in the loop is `total = total + loss` itself."""
    statement = file.statement(name)
    function = file.enclosing_function(name)
    if not isinstance(statement, ast.Assign) or function is None:
        return False
    loops = [outer for outer in file.ancestors(statement) if isinstance(outer, LOOPS)]
    stores = [
        item
        for item in file.nodes_in(function, ast.Name)
        if item.id == keeper and isinstance(item.ctx, ast.Store) and loops and loops[0] in file.ancestors(item)
    ]
    return all(file.statement(item) is statement for item in stores)


def _has_graph(file: FileContext, name: ast.Name) -> bool:
    """Whether the loss still is a tensor with a graph where it is kept: no `loss = loss.item()` came before."""
    values = [binding.value for binding in file.values.definitions(name)]
    return not any(value is not None and _CUTS.search(file.source(value)) for value in values)


class RetainedGraph(Rule):
    """`backward(retain_graph=True)` in a loop that differentiates every graph once."""

    id = "GP703"
    name = "retained-graph"
    severity = Severity.NOTE
    confidence = Confidence.MEDIUM
    settled_by = ("memory", "training_step")
    triggers = ("retain_graph",)
    documentation = Documentation(
        what_it_does=(
            "Finds `loss.backward(retain_graph=True)` in a loop whose graph is built in the same turn and which runs "
            "no other backward."
        ),
        why_is_this_bad=(
            "The buffers of the graph stay until the loss is overwritten in the next turn, so two of them live side by "
            "side. Often the flag hides a state that is carried from batch to batch without `detach()`."
        ),
        faulty_example=_HEAD + _LOOP.replace("backward()", "backward(retain_graph=True)"),
        right_example=_HEAD + _LOOP,
        fix_safety="No automatic fix: without the flag a hidden second use of the graph would raise.",
    )
    valid = (
        _HEAD + _LOOP,
        # used twice
        _HEAD + _LOOP.replace("loss.backward()", "loss.backward(retain_graph=True)\n        loss.pow(2).backward()"),
        _HEAD
        + _LOOP.replace(
            "loss.backward()", "loss.backward(retain_graph=True)\n        g = torch.autograd.grad(loss, x)"
        ),
        # the graph was built before the loop
        _HEAD
        + "def rows(y, x):\n    for i in range(9):\n        y[i].backward(retain_graph=True)\n        print(x.grad)\n",
        _HEAD + "def rows(net, x):\n    y = net(x)\n    for i in range(9):\n        loss = y[i].sum()\n"
        "        loss.backward(retain_graph=True)\n",
        _HEAD + "def each(losses):\n    for loss in losses:\n        loss.backward(retain_graph=True)\n",
        # once, in no loop
        _HEAD + "def once(net, x):\n    net(x).sum().backward(retain_graph=True)\n",
    )
    invalid = (Invalid(_HEAD + _LOOP.replace("backward()", "backward(retain_graph=True)"), (10,)),)

    def check(self, file: FileContext) -> Iterable[Hit]:
        for scope, events in training_events(file).items():
            backwards = of_act(events, Act.BACKWARD)
            if len(backwards) != 1 or not is_true(keyword(backwards[0].call, "retain_graph")):
                continue
            backward = backwards[0]
            text = file.text if isinstance(scope, ast.Module) else file.source(scope)
            built = _built_in_loop(file, backward)
            if backward.loop is not None and built and "autograd.grad" not in text and ".grad(" not in text:
                yield Hit(
                    backward.call,
                    "Nothing differentiates this graph a second time, but `retain_graph=True` keeps its buffers until "
                    "the next turn. Leave it out; if that raises, a state is carried over without `detach()`.",
                )


def _built_in_loop(file: FileContext, backward: Event) -> bool:
    """Whether all tensors that the loss is computed from by name are the loop's own, or models and data."""
    loss = backward.subject
    if not isinstance(loss, ast.Name) or backward.loop is None:
        return False
    if any(binding.statement is backward.loop for binding in file.values.definitions(loss)):
        return False  # the losses are the loop's data, and may share a graph
    names, seen = [loss], {loss.id}
    while names:
        bindings = file.values.definitions(names.pop())
        for binding in bindings:
            if binding.statement is backward.loop:
                continue
            if backward.loop not in file.ancestors(binding.statement):
                return False
            if binding.value is None:
                continue
            for node in ast.walk(binding.value):
                called = isinstance(file.parent(node), ast.Call) and getattr(file.parent(node), "func", None) is node
                if isinstance(node, ast.Name) and node.id not in seen and not called and file.values.definitions(node):
                    seen.add(node.id)
                    names.append(node)
    return True


class StateCarriedOver(Rule):
    """A hidden state, or a running average of weights, that takes its graph along from step to step."""

    id = "GP717"
    name = "state-carried-with-graph"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("memory", "training_step")
    triggers = ("backward", "parameters(")
    documentation = Documentation(
        what_it_does=(
            "Finds training loops that feed the hidden state of one batch into the next without `detach()`, and "
            "running averages of weights (`ema = d * ema + (1 - d) * p`) that are computed outside `torch.no_grad()` "
            "from the parameters themselves."
        ),
        why_is_this_bad=(
            "A hidden state with its graph makes the second `backward()` raise, or, with `retain_graph=True`, go back "
            "through all earlier batches. An average with its graph grows by one link with every step, and keeps every "
            "earlier version alive."
        ),
        faulty_example=_HEAD + "def train(net, optimizer, batches):\n    state = None\n    for x in batches:\n"
        "        optimizer.zero_grad()\n        y, state = net(x, state)\n        y.mean().backward()\n"
        "        optimizer.step()\n",
        right_example=_HEAD + "def train(net, optimizer, batches):\n    state = None\n    for x in batches:\n"
        "        optimizer.zero_grad()\n        y, state = net(x, state)\n        y.mean().backward()\n"
        "        optimizer.step()\n        state = state.detach()\n",
        fix_safety="No automatic fix: a state may be a tensor or a tuple of tensors.",
    )
    valid = (
        documentation.right_example,
        _HEAD + "def train(net, optimizer, batches):\n    state = None\n    for x in batches:\n"
        "        optimizer.zero_grad()\n        state = repackage(state)\n        y, state = net(x, state)\n"
        "        y.mean().backward()\n        optimizer.step()\n",
        _HEAD + "def train(net, optimizer, batches):\n    state = None\n    for x in batches:\n"
        "        optimizer.zero_grad()\n        y, state = net(x, tuple(s.detach() for s in state))\n"
        "        y.mean().backward()\n        optimizer.step()\n",
        # started afresh in every turn
        _HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        state = net.start()\n        for step in x:\n            y, state = net(step, state)\n"
        "        y.mean().backward()\n        optimizer.step()\n",
        # nothing is carried: the argument is the batch
        _HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        y, x = net(x, x)\n        y.mean().backward()\n        optimizer.step()\n",
        _HEAD + "@torch.no_grad()\ndef update(ema, net, d):\n    for e, (n, p) in zip(ema, net.named_parameters()):\n"
        "        ema[n] = d * ema[n] + (1 - d) * p\n",
        _HEAD + "def update(ema, net, d):\n    for n, p in net.named_parameters():\n"
        "        ema[n] = d * ema[n] + (1 - d) * p.data\n",
        _HEAD + "def update(ema, net, d):\n    for n, p in net.named_parameters():\n        if p.requires_grad:\n"
        "            ema[n] = (d * ema[n] + (1 - d) * p).detach()\n",
        # a penalty on the weights is meant to be differentiated
        _HEAD + "def penalty(net):\n    total = 0\n    for n, p in net.named_parameters():\n"
        "        total = total + p.norm()\n    return total\n",
        _HEAD + "def update(a, b, m):\n    for p, q in zip(a.parameters(), b.parameters()):\n"
        "        q.data = q.data * m + p.data * (1 - m)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (9,)),
        Invalid(
            _HEAD + "def train(net, optimizer, loader):\n    h, c = net.start()\n    for x in loader:\n"
            "        optimizer.zero_grad()\n        y, (h, c) = net(x, (h, c))\n"
            "        F.mse_loss(y, x).backward(retain_graph=True)\n        optimizer.step()\n",
            (9,),
        ),
        Invalid(
            _HEAD + "def update(ema, net, d):\n    for n, p in net.named_parameters():\n"
            "        ema[n] = d * ema[n] + (1 - d) * p\n",
            (7,),
        ),
        Invalid(
            _HEAD + "class Average:\n    def update(self, net):\n        for name, value in net.named_parameters():\n"
            "            self.shadow[name] = self.decay * self.shadow[name] + (1.0 - self.decay) * value\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            yield from _carried_states(file, events)
        for call in file.calls("named_parameters", "parameters"):
            yield from _growing_averages(file, call)


def _carried_states(file: FileContext, events: Sequence[Event]) -> Iterator[Hit]:
    for backward in of_act(events, Act.BACKWARD):
        loop = backward.loop
        if not isinstance(loop, ast.For) or isinstance(backward.scope, ast.Module):
            continue
        for assignment in file.nodes_in(backward.scope, ast.Assign):
            path = path_of(file, assignment, backward.scope)
            if path != backward.path or assignment.lineno > backward.call.lineno:
                continue
            state = _state_fed_back(file, assignment, loop, backward)
            if state is not None and _reaches(file, assignment, backward):
                yield Hit(
                    assignment,
                    f"`{state}` comes out of one batch and goes into the next with its graph: the second "
                    f"`backward()` goes back through the first. Call `{state}.detach()` in between.",
                    related=((backward.call, "the backward that meets the graphs of earlier batches"),),
                )


def _state_fed_back(file: FileContext, assignment: ast.Assign, loop: ast.For, backward: Event) -> str | None:
    """The name that a call in a loop both takes and returns, when nothing else in the loop assigns it."""
    call = assignment.value
    if not isinstance(call, ast.Call) or isinstance(assignment.targets[0], (ast.Name, ast.Attribute)):
        return None
    if file.grad_disabled(assignment) or terminal_name(call.func) in ("zip", "map", "next", "divmod"):
        return None
    given = {n.id for a in call.args for n in _plain_names(a)} | {
        n.id for k in call.keywords for n in _plain_names(k.value)
    }
    returned = {n.id for n in ast.walk(assignment.targets[0]) if isinstance(n, ast.Name)}
    of_loop = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for name in sorted((given & returned) - of_loop):
        stores = [n for n in _names_in(file, loop, backward) if n.id == name and isinstance(n.ctx, ast.Store)]
        uses = [n for n in _names_in(file, loop, backward) if n.id == name and isinstance(n.ctx, ast.Load)]
        elsewhere = [n for n in uses if assignment not in file.ancestors(n)]
        if all(file.statement(n) is assignment for n in stores) and not elsewhere:
            return name
    return None


def _plain_names(argument: ast.expr) -> Iterator[ast.Name]:
    """`state`, or the names of `(h, c)`; not those of anything computed from it."""
    if isinstance(argument, ast.Name):
        yield argument
    elif isinstance(argument, (ast.Tuple, ast.List)):
        yield from (element for element in argument.elts if isinstance(element, ast.Name))


def _reaches(file: FileContext, assignment: ast.Assign, backward: Event) -> bool:
    """Whether the loss is computed from what the assignment returns."""
    returned = {n.id for n in ast.walk(assignment.targets[0]) if isinstance(n, ast.Name)}
    pending: list[ast.expr] = [backward.subject] if backward.subject is not None else []
    seen: set[str] = set()
    while pending:
        for node in ast.walk(pending.pop()):
            if not isinstance(node, ast.Name) or node.id in seen:
                continue
            if node.id in returned:
                return True
            seen.add(node.id)
            pending.extend(b.value for b in file.values.definitions(node) if b.value is not None)
    return False


def _growing_averages(file: FileContext, call: ast.Call) -> Iterator[Hit]:
    """`ema[name] = d * ema[name] + (1 - d) * p` in a loop over parameters, with gradients recorded."""
    loop = next((outer for outer in file.ancestors(call) if isinstance(outer, (ast.For, ast.stmt))), None)
    if not isinstance(loop, ast.For) or file.grad_disabled(loop.body[0]):
        return
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for statement in loop.body:
        inner = statement.body[0] if isinstance(statement, ast.If) and len(statement.body) == 1 else statement
        if not isinstance(inner, ast.Assign) or not isinstance(inner.targets[0], ast.Subscript):
            continue
        value, target = inner.value, file.source(inner.targets[0])
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add) or file.grad_disabled(inner):
            continue
        factors = [side for term in (value.left, value.right) for side in _factors(term)]
        texts = {file.source(factor) for factor in factors}
        live = [f for f in factors if isinstance(f, ast.Name) and f.id in names]
        if target in texts and live and scope_of(file, inner) is scope_of(file, loop):
            yield Hit(
                inner,
                f"`{live[0].id}` is a parameter, so this average gets a graph that grows by one link with every "
                f"update. Compute it under `torch.no_grad()`.",
            )


def _factors(term: ast.expr) -> list[ast.expr]:
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        return [*_factors(term.left), *_factors(term.right)]
    return [term]
