"""Training steps that never clear the gradients, or clear them between the batches that are to be accumulated.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.accumulation import accumulation_of
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_defined_in, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import dotted_name, parameters, terminal_name
from analyzer.training_steps import (
    Act,
    Event,
    Scope,
    before,
    block_of,
    clears_somewhere,
    exclusive,
    is_optimizer,
    of_act,
    training_events,
)

_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_LOOP = "def train(net, optimizer, batches):\n    for x, y in batches:\n        loss = F.mse_loss(net(x), y)\n"
# Base classes that do nothing at training time; any other may clear the gradients around the step.
_PLAIN_BASES = frozenset({"object", "ABC", "abc.ABC", "Generic", "Protocol", "nn.Module", "torch.nn.Module", "Module"})
_KNOWN_WRAPPERS = re.compile(r"lightning|deepspeed|colossalai|fairscale|ignite", re.IGNORECASE)


class MissingZeroGrad(Rule):
    """Backward and step, again and again, without ever clearing the gradients."""

    id = "GP701"
    name = "missing-zero-grad"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("accumulation_equivalence", "training_step")
    fix = FixSafety.UNSAFE
    triggers = (".step(",)
    documentation = Documentation(
        what_it_does=(
            "Finds training steps that call `backward()` and `optimizer.step()` where neither the function, nor its "
            "class, nor a function that calls it or is called by it clears the gradients."
        ),
        why_is_this_bad=(
            "`backward()` adds to `.grad`. Without `zero_grad()` every step follows the sum of all gradients since the "
            "start: training runs, without any error, with a wildly growing step."
        ),
        faulty_example=_HEAD + _LOOP + "        loss.backward()\n        optimizer.step()\n",
        right_example=(
            _HEAD + _LOOP + "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
        ),
        fix_safety="Unsafe: clearing the gradients changes what is trained, as it is meant to.",
    )
    valid = (
        _HEAD + _LOOP + "        net.zero_grad(set_to_none=True)\n        loss.backward()\n        optimizer.step()\n",
        _HEAD + _LOOP + "        loss.backward()\n        optimizer.step()\n"
        "        for p in net.parameters():\n            p.grad = None\n",
        # cleared once every few batches
        _HEAD + "def train(net, optimizer, batches):\n    for i, (x, y) in enumerate(batches):\n"
        "        (F.mse_loss(net(x), y) / 4).backward()\n        if i % 4 == 3:\n            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
        # a helper of the file does it
        _HEAD
        + "def clear(net):\n    for p in net.parameters():\n        p.grad = None\n\n\n"
        + _LOOP
        + "        clear(net)\n        loss.backward()\n        optimizer.step()\n",
        # the caller does it
        _HEAD + "def step(net, optimizer, x):\n    net(x).sum().backward()\n    optimizer.step()\n\n\n"
        "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        step(net, optimizer, x)\n",
        # another method of the class does it
        "class Trainer:\n    def step(self, x):\n        import torch\n        self.loss(x).backward()\n"
        "        self.optimizer.step()\n\n    def begin(self):\n        self.optimizer.zero_grad()\n",
        # one single step
        _HEAD + "def check(net, x):\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "    net(x).sum().backward()\n    optimizer.step()\n",
        # a closure: the optimizer calls it
        _HEAD + "def fit(net, optimizer, x):\n    for _ in range(9):\n        def closure():\n"
        "            optimizer.zero_grad()\n            loss = net(x).sum()\n            loss.backward()\n"
        "            return loss\n        optimizer.step(closure)\n",
        # gradients are set by hand
        _HEAD + _LOOP + "        for p, g in zip(net.parameters(), torch.autograd.grad(loss, net.parameters())):\n"
        "            p.grad = g\n        optimizer.step()\n",
        # a wrapper that is handed the loss: its caller clears
        "import torch\n\n\nclass Scaler:\n    def __call__(self, loss, optimizer):\n"
        "        self._scaler.scale(loss).backward()\n        self._scaler.step(optimizer)\n",
        # an environment's step is no optimizer's
        _HEAD + "def play(net, env, batches):\n    for x in batches:\n        net(x).sum().backward()\n"
        "        env.step(x)\n",
        # both optimizers are cleared, one of them through its network
        _HEAD + "def train(a, b, opt_a, opt_b, batches):\n    for x in batches:\n        opt_a.zero_grad()\n"
        "        b.zero_grad()\n        b(a(x)).mean().backward()\n        opt_a.step()\n        opt_b.step()\n",
        _HEAD + "def train(a, b, opt_a, opt_b, batches):\n    for x in batches:\n        opt_a.zero_grad()\n"
        "        clear(opt_b)\n        b(a(x)).mean().backward()\n        opt_a.step()\n        opt_b.step()\n",
        # the base class may do it
        "import torch\nfrom engines import Base\n\n\nclass Trainer(Base):\n    def step(self, x):\n"
        "        self.loss(x).backward()\n        self.optimizer.step()\n",
        # the optimizer is made afresh, with its parameters, in every turn
        _HEAD + "def tasks(make, batches):\n    for x in batches:\n        net = make()\n"
        "        opt = torch.optim.SGD(net.parameters(), lr=0.1)\n        net(x).sum().backward()\n"
        "        opt.step()\n",
    )
    invalid = (
        Invalid(_HEAD + _LOOP + "        loss.backward()\n        optimizer.step()\n", (8,)),
        Invalid(
            _HEAD + _LOOP + "        loss.backward()\n        # optimizer.zero_grad()\n        optimizer.step()\n", (8,)
        ),
        Invalid(
            "import torch\n\n\nclass Trainer:\n    def __init__(self, net):\n        self.net = net\n"
            "        self.opt = torch.optim.Adam(net.parameters())\n\n    def step(self, x):\n"
            "        self.net(x).sum().backward()\n        self.opt.step()\n",
            (10,),
        ),
        Invalid(
            _HEAD + _LOOP + "        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n"
            "        scaler.update()\n",
            (8,),
        ),
        Invalid(
            "import torch\nnet = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "for x in torch.randn(9, 3, 2):\n    loss = net(x).pow(2).mean()\n    loss.backward()\n"
            "    optimizer.step()\n",
            (6,),
        ),
        Invalid(
            _HEAD + "def train(net, optimizer, batches):\n    for i, (x, y) in enumerate(batches):\n"
            "        (F.mse_loss(net(x), y) / 4).backward()\n        if i % 4 == 3:\n            optimizer.step()\n",
            (7,),
        ),
        # one of two optimizers
        Invalid(
            _HEAD + "def train(a, b, opt_a, opt_b, batches):\n    for x in batches:\n        opt_a.zero_grad()\n"
            "        b(a(x)).mean().backward()\n        opt_a.step()\n        opt_b.step()\n",
            (10,),
        ),
        Invalid(_HEAD + "def step(net, optimizer, x):\n    net(x).sum().backward()\n    optimizer.step()\n", (6,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        found = list(self._found(file))
        return [] if found and _KNOWN_WRAPPERS.search(file.text) else found

    def _found(self, file: FileContext) -> Iterator[Hit]:
        for scope, events in training_events(file).items():
            backwards, steps = of_act(events, Act.BACKWARD), [event for event in events if event.steps_parameters]
            if backwards and steps and of_act(events, Act.CLEAR):
                yield from _left_out(file, events, steps)
            if not backwards or not steps or of_act(events, Act.CLEAR):
                continue
            step = next((step for step in steps if _is_repeated(file, scope, step)), None)
            backward = step and next((b for b in backwards[::-1] if _leads_to(b, step)), None)
            if step is None or backward is None or _loss_is_given(scope, backward):
                continue
            if _base_may_clear(file, scope) or clears_somewhere(file, scope):
                continue
            yield Hit(
                backward.call,
                f"`{file.source(step.call)}` follows this `backward()`, but nothing clears the gradients: each step "
                f"adds "
                f"the gradients of all earlier batches. Call `zero_grad()` once for every step.",
                related=((step.call, "the optimizer steps here"),),
                fix=_clearing(file, backward, step),
            )


def _left_out(file: FileContext, events: tuple[Event, ...], steps: list[Event]) -> Iterator[Hit]:
    """The optimizers of a function that steps several and clears some of them, each by its own `zero_grad()`."""
    cleared = [event.subject for event in of_act(events, Act.CLEAR)]
    if not all(subject is not None and is_optimizer(file, subject) for subject in cleared):
        return  # a model clears all its parameters
    names = {file.source(subject) for subject in cleared if subject is not None}
    for step in steps:
        name = file.source(step.subject) if step.subject is not None else ""
        plain = isinstance(step.subject, (ast.Name, ast.Attribute))
        others = any(file.source(other.subject) in names for other in steps if other.subject is not None)
        if not plain or name in names or not others or f"{name}.zero_grad" in file.text or step.loop is None:
            continue
        if _is_used_otherwise(file, step, name):
            continue
        backward = next((b for b in reversed(of_act(events, Act.BACKWARD)) if _leads_to(b, step)), None)
        if backward is not None:
            yield Hit(
                step.call,
                f"The gradients of `{name}` are never cleared, those of the other optimizers are: each of its steps "
                f"adds the gradients of all earlier batches. Call `{name}.zero_grad()` as well.",
                related=((backward.call, "adds to the gradients"),),
                fix=_clearing(file, backward, step),
            )


def _is_used_otherwise(file: FileContext, step: Event, name: str) -> bool:
    """Whether an optimizer goes somewhere where its gradients may be cleared: into a list, or to a function."""
    for use in file.nodes(ast.Name):
        if use.id != name or not isinstance(use.ctx, ast.Load) or use is step.subject:
            continue
        holder = file.parent(use)
        is_scaler = isinstance(holder, ast.Call) and isinstance(holder.func, ast.Attribute)
        known = is_scaler and isinstance(holder, ast.Call) and terminal_name(holder.func) in ("step", "unscale_")
        is_schedule = isinstance(holder, ast.Call) and "lr_scheduler" in (file.qualified_name(holder.func) or "")
        if not isinstance(holder, ast.Attribute) and not known and not is_schedule:
            return True
    return False


def _leads_to(backward: Event, step: Event) -> bool:
    return backward.place < step.place and not exclusive(backward.path, step.path) and step.loop is backward.loop


def _is_repeated(file: FileContext, scope: Scope, step: Event) -> bool:
    """Whether the optimizer's parameters get another step: in a loop, or when the function is called again."""
    made = maker(file, step.subject) if step.subject is not None else None
    made_here = made is not None and not isinstance(scope, ast.Module) and is_defined_in(file, made, scope)
    loop = step.loop
    if loop is not None:
        return made is None or loop not in file.ancestors(made)
    return not made_here and not isinstance(scope, ast.Module) and not scope.name.startswith("test")


def _loss_is_given(scope: Scope, backward: Event) -> bool:
    """Whether the loss is an argument: then the function is one part of a step, and its caller clears (timm, apex)."""
    if isinstance(scope, ast.Module) or backward.loop is not None:
        return False
    subject = backward.subject.id if isinstance(backward.subject, ast.Name) else ""
    return any(parameter.arg == subject or "loss" in parameter.arg for parameter in parameters(scope))


def _base_may_clear(file: FileContext, scope: Scope) -> bool:
    owner = file.enclosing_class(scope)
    if owner is None:
        return False
    return any((dotted_name(base) or "") not in _PLAIN_BASES for base in owner.bases)


def _clearing(file: FileContext, backward: Event, step: Event) -> Rewrite | None:
    if step.subject is None or not isinstance(step.statement, ast.Expr) or not isinstance(backward.statement, ast.Expr):
        return None
    clear = f"{file.operand_source(step.subject)}.zero_grad()"
    if backward.path == step.path:
        replacement = Replacement(backward.statement, f"{clear}\n{file.source(backward.statement)}")
    else:
        replacement = Replacement(step.statement, f"{file.source(step.statement)}\n{clear}")
    return Rewrite(FixSafety.UNSAFE, (replacement,))


class ClearedBetweenAccumulatedBatches(Rule):
    """`zero_grad()` for every batch although the step comes only after several, or after the loop."""

    id = "GP723"
    name = "zero-grad-outside-accumulation"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("accumulation_equivalence", "training_step")
    fix = FixSafety.UNSAFE
    triggers = ("zero_grad",)
    documentation = Documentation(
        what_it_does=(
            "Finds loops that step the optimizer only after every few batches (`if i % n == 0: optimizer.step()`) but "
            "clear the gradients for every batch."
        ),
        why_is_this_bad=(
            "The gradients of all batches but the last before a step are thrown away: the accumulation that was meant "
            "never happens, and most of the work of training with it."
        ),
        faulty_example=(
            _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches, start=1):\n"
            "        (net(x).mean() / every).backward()\n        if i % every == 0:\n            optimizer.step()\n"
            "        optimizer.zero_grad()\n"
        ),
        right_example=(
            _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches, start=1):\n"
            "        (net(x).mean() / every).backward()\n        if i % every == 0:\n            optimizer.step()\n"
            "            optimizer.zero_grad()\n"
        ),
        fix_safety="Unsafe: it changes what is trained, as it is meant to. Offered where `zero_grad()` follows the "
        "step.",
    )
    valid = (
        # the step is as frequent as the clearing
        _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches):\n"
        "        optimizer.zero_grad()\n        net(x).mean().backward()\n        optimizer.step()\n"
        "        if i % every == 0:\n            print(i)\n",
        # cleared under the same kind of condition, before the accumulation starts
        _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches):\n"
        "        if i % every == 0:\n            optimizer.zero_grad()\n        (net(x).mean() / every).backward()\n"
        "        if i % every == every - 1:\n            optimizer.step()\n",
        # a second network is trained less often, with its own backward
        _HEAD + "def train(gen, dis, opt_g, opt_d, batches, every=5):\n    for i, x in enumerate(batches):\n"
        "        opt_d.zero_grad()\n        dis(x).mean().backward()\n        opt_d.step()\n        opt_g.zero_grad()\n"
        "        if i % every == 0:\n            gen(x).mean().backward()\n            opt_g.step()\n",
        # a step that is left out when something is wrong
        _HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        loss = net(x).mean()\n        loss.backward()\n        if torch.isfinite(loss):\n"
        "            optimizer.step()\n",
        # accelerate clears only when it steps
        _HEAD + "def train(net, optimizer, accelerator, batches):\n    for x in batches:\n"
        "        with accelerator.accumulate(net):\n            accelerator.backward(net(x).mean())\n"
        "            if accelerator.sync_gradients:\n                optimizer.step()\n"
        "            optimizer.zero_grad()\n",
        # all micro batches of a step are in an inner loop
        _HEAD + "def train(net, optimizer, batches):\n    for parts in batches:\n        optimizer.zero_grad()\n"
        "        for x in parts:\n            (net(x).mean() / len(parts)).backward()\n        optimizer.step()\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (10,)),
        # the step fell out of the loop
        Invalid(
            _HEAD + "def train(net, optimizer, batches):\n    for epoch in range(9):\n        for x in batches:\n"
            "            optimizer.zero_grad()\n            net(x).mean().backward()\n        optimizer.step()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches):\n"
            "        optimizer.zero_grad()\n        (net(x).mean() / every).backward()\n"
            "        if (i + 1) % every == 0 or i + 1 == len(batches):\n            optimizer.step()\n",
            (7,),
        ),
        Invalid(
            _HEAD + "def train(net, scaler, optimizer, batches, every=4):\n    for i, x in enumerate(batches):\n"
            "        net.zero_grad()\n        scaler.scale(net(x).mean() / every).backward()\n"
            "        if not (i + 1) % every:\n            scaler.step(optimizer)\n            scaler.update()\n",
            (7,),
        ),
        Invalid(
            _HEAD + "def train(net, optimizer, batches, accumulation_steps):\n    count = 0\n    for x in batches:\n"
            "        (net(x).mean() / accumulation_steps).backward()\n        count += 1\n"
            "        if count == accumulation_steps:\n            optimizer.step()\n            count = 0\n"
            "        optimizer.zero_grad(set_to_none=True)\n",
            (13,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            for clear, step, test in _cleared_too_often(file, events):
                when = f"only when `{file.source(test)}`" if test is not None else "only after the loop"
                yield Hit(
                    clear.call,
                    f"The optimizer steps {when}, but the gradients are cleared for every batch: all but the last "
                    f"batch before a step are thrown away. Clear them where the step is.",
                    related=((step.call, "the step that is taken only now and then"),),
                    fix=_under_condition(file, clear, step, test) if test is not None else None,
                )


def _stepped_after_loop(file: FileContext, events: tuple[Event, ...]) -> Iterator[tuple[Event, Event, None]]:
    """Loops that clear and differentiate for every batch, and whose only step comes behind them."""
    for clear in of_act(events, Act.CLEAR):
        loop = clear.loop
        backward = next((b for b in of_act(events, Act.BACKWARD) if b.loop is loop and b.path == clear.path), None)
        if loop is None or backward is None or any(e.is_inside(loop) for e in events if e.steps_parameters):
            continue
        step = next((e for e in events if e.steps_parameters and e.place > clear.place), None)
        if step is not None and step.path == clear.path[:-1] and _same_subject(file, clear, step):
            yield clear, step, None
            return


def _same_subject(file: FileContext, first: Event, second: Event) -> bool:
    return (
        first.subject is not None
        and second.subject is not None
        and file.source(first.subject) == file.source(second.subject)
    )


def _cleared_too_often(file: FileContext, events: tuple[Event, ...]) -> Iterator[tuple[Event, Event, ast.expr | None]]:
    accumulation = accumulation_of(file, events)
    if accumulation is None:
        yield from _stepped_after_loop(file, events)
        return
    for clear in of_act(events, Act.CLEAR):
        if clear.loop is accumulation.loop and clear.path == accumulation.backward.path:
            yield clear, accumulation.step, accumulation.test
            return


def _under_condition(file: FileContext, clear: Event, step: Event, test: ast.expr) -> Rewrite | None:
    if clear.place < step.place or not isinstance(clear.statement, ast.Expr):
        return None
    owner = file.parent(test)
    block = getattr(file.parent(clear.statement), "body", [])
    if not isinstance(owner, ast.If) or owner not in block or block.index(clear.statement) != block.index(owner) + 1:
        return None  # the condition may have changed in between
    changed = {n.id for n in file.nodes(ast.Name) if isinstance(n.ctx, ast.Store) and owner in file.ancestors(n)}
    if any(isinstance(n, ast.Call) or (isinstance(n, ast.Name) and n.id in changed) for n in ast.walk(test)):
        return None
    text = f"if {file.source(test)}:\n    {file.source(clear.statement)}"
    return Rewrite(FixSafety.UNSAFE, (Replacement(clear.statement, text),))


class ClearedBeforeStep(Rule):
    """`zero_grad()` between `backward()` and `step()`, or a step before the backward."""

    id = "GP727"
    name = "zero-grad-before-step"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("training_step", "accumulation_equivalence")
    triggers = ("zero_grad",)
    documentation = Documentation(
        what_it_does=(
            "Finds optimizer steps that come right after `zero_grad()`: the gradients are cleared between "
            "`backward()` and `step()`, or the step stands before the `backward()`."
        ),
        why_is_this_bad=(
            "The step finds no gradients: with `None` in their place the optimizer leaves every parameter alone, and "
            "nothing is trained. Neither the loop nor torch says anything."
        ),
        faulty_example=(
            _HEAD + _LOOP + "        loss.backward()\n        optimizer.zero_grad()\n        optimizer.step()\n"
        ),
        right_example=(
            _HEAD + _LOOP + "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
        ),
        fix_safety="No automatic fix: where the clearing belongs depends on what is accumulated.",
    )
    valid = (
        _HEAD + _LOOP + "        loss.backward()\n        optimizer.step()\n        optimizer.zero_grad()\n",
        # each of two optimizers
        _HEAD + "def train(a, b, opt_a, opt_b, batches):\n    for x in batches:\n        b(a(x)).mean().backward()\n"
        "        opt_a.step()\n        opt_a.zero_grad()\n        opt_b.step()\n        opt_b.zero_grad()\n",
        # gradients come from elsewhere
        _HEAD + _LOOP + "        optimizer.zero_grad()\n        fill_gradients(net, loss)\n        optimizer.step()\n",
        _HEAD + _LOOP + "        optimizer.zero_grad()\n        grads = torch.autograd.grad(loss, net.parameters())\n"
        "        for p, g in zip(net.parameters(), grads):\n            p.grad = g\n        optimizer.step()\n",
        # in one of two branches
        _HEAD + "def train(net, optimizer, batches):\n    for x, skip in batches:\n        net(x).mean().backward()\n"
        "        if skip:\n            optimizer.zero_grad()\n        optimizer.step()\n"
        "        optimizer.zero_grad()\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (10,)),
        Invalid(
            _HEAD + _LOOP + "        optimizer.zero_grad()\n        optimizer.step()\n        loss.backward()\n", (9,)
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x):\n        loss = self.net(x).mean()\n"
            "        self.scaler.scale(loss).backward()\n        self.optimizer.zero_grad(set_to_none=True)\n"
            "        self.scaler.step(self.optimizer)\n        self.scaler.update()\n",
            (10,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            backwards = of_act(events, Act.BACKWARD)
            for step in (event for event in events if event.steps_parameters):
                earlier = [e for e in before(step, events) if e.act in (Act.BACKWARD, Act.CLEAR)]
                clear = earlier[0] if earlier and earlier[0].act is Act.CLEAR else None
                if clear is None or clear.path != step.path or not _same_subject(file, clear, step):
                    continue
                near = [backward for backward in backwards if backward.path == step.path]
                if near and _nothing_between(file, clear, step):
                    yield Hit(
                        step.call,
                        "The gradients have just been cleared, so this step changes nothing. The order is "
                        "`zero_grad()`, `backward()`, `step()`.",
                        related=((clear.call, "the gradients are cleared here"),),
                    )


def _nothing_between(file: FileContext, clear: Event, step: Event) -> bool:
    """Whether no other statement between clearing and step could make gradients."""
    block = block_of(file, clear.statement)
    if clear.statement not in block or step.statement not in block:
        return False
    inner = block[block.index(clear.statement) + 1 : block.index(step.statement)]
    return not any(isinstance(node, ast.Call) and _may_fill(node) for item in inner for node in ast.walk(item))


def _may_fill(call: ast.Call) -> bool:
    name = (terminal_name(call.func) or "").lower()
    return "grad" in name or "backward" in name or not isinstance(call.func, ast.Attribute)
