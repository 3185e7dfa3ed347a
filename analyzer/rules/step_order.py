"""Learning-rate schedules that step at the wrong time: before the optimizer, or in the wrong loop.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import keyword, made_by, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.training_steps import LOOPS, Act, Event, after, before, between, of_act, training_events

_HEAD = "import torch\nfrom torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR\n\n\n"
_LOOP = "def train(net, optimizer, scheduler, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
_BODY = "        net(x).mean().backward()\n"
# These run over a number of steps that the constructor is told; the others mean whatever the author counts.
_TOTALS = ("total_steps", "steps_per_epoch", "T_max")


class ScheduleOutOfStep(Rule):
    """`scheduler.step()` before `optimizer.step()`, or once an epoch when it was told batches."""

    id = "GP709"
    name = "scheduler-out-of-step"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("training_step",)
    fix = FixSafety.UNSAFE
    triggers = (".step(",)
    documentation = Documentation(
        what_it_does=(
            "Finds `scheduler.step()` that runs before the first `optimizer.step()` of its turn, and schedules that "
            "were told the number of batches (`OneCycleLR(steps_per_epoch=len(loader))`) but step once an epoch, or "
            "the number of epochs (`CosineAnnealingLR(T_max=epochs)`) but step for every batch."
        ),
        why_is_this_bad=(
            "Stepping the schedule first skips its first learning rate: torch only warns, once. A schedule in the "
            "wrong loop hardly moves at all, or swings up and down many times in an epoch, silently."
        ),
        faulty_example=_HEAD + _LOOP + _BODY + "        scheduler.step()\n        optimizer.step()\n",
        right_example=_HEAD + _LOOP + _BODY + "        optimizer.step()\n        scheduler.step()\n",
        fix_safety="Unsafe: the two lines change places where they stand in one block, and so do the learning rates.",
    )
    valid = (
        _HEAD + _LOOP + _BODY + "        optimizer.step()\n        scheduler.step()\n",
        # told which epoch it is
        _HEAD + "def train(net, optimizer, scheduler, batches):\n    for epoch in range(9):\n"
        "        scheduler.step(epoch)\n        for x in batches:\n            optimizer.zero_grad()\n"
        "            net(x).mean().backward()\n            optimizer.step()\n",
        # not in the first turn
        _HEAD + "def train(net, optimizer, scheduler, batches):\n    for epoch in range(9):\n        if epoch > 0:\n"
        "            scheduler.step()\n        for x in batches:\n            optimizer.zero_grad()\n"
        "            net(x).mean().backward()\n            optimizer.step()\n",
        # catching up after a restart
        _HEAD + "def train(net, optimizer, scheduler, batches, start):\n    for _ in range(start):\n"
        "        scheduler.step()\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        net(x).mean().backward()\n        optimizer.step()\n        scheduler.step()\n",
        # two optimizers, each with its own schedule behind it
        _HEAD + "def train(g, d, opt_g, opt_d, sched_g, sched_d, batches):\n    for x in batches:\n"
        "        opt_d.zero_grad()\n        d(x).mean().backward()\n        opt_d.step()\n        sched_d.step()\n"
        "        opt_g.zero_grad()\n        g(x).mean().backward()\n        opt_g.step()\n        sched_g.step()\n",
        _HEAD + "def train(net, optimizer, loader, epochs):\n"
        "    scheduler = OneCycleLR(optimizer, 0.1, steps_per_epoch=len(loader), epochs=epochs)\n"
        "    for _ in range(epochs):\n        for x in loader:\n            optimizer.zero_grad()\n"
        "            net(x).mean().backward()\n            optimizer.step()\n            scheduler.step()\n",
        _HEAD + "def train(net, optimizer, loader, epochs):\n"
        "    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)\n"
        "    for _ in range(epochs):\n        for x in loader:\n            optimizer.zero_grad()\n"
        "            net(x).mean().backward()\n            optimizer.step()\n        scheduler.step()\n",
        _HEAD + "def train(net, optimizer, loader, epochs):\n"
        "    scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))\n"
        "    for _ in range(epochs):\n        for x in loader:\n            optimizer.zero_grad()\n"
        "            net(x).mean().backward()\n            optimizer.step()\n            scheduler.step()\n",
        # one of two ways of scheduling
        _HEAD + _LOOP + _BODY + "        if first:\n            scheduler.step()\n        else:\n"
        "            optimizer.step()\n",
    )
    invalid = (
        Invalid(_HEAD + _LOOP + _BODY + "        scheduler.step()\n        optimizer.step()\n", (9,)),
        Invalid(
            _HEAD + "def train(net, optimizer, scheduler, batches):\n    for epoch in range(9):\n"
            "        scheduler.step()\n        for x in batches:\n            optimizer.zero_grad()\n"
            "            net(x).mean().backward()\n            optimizer.step()\n",
            (7,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x):\n        self.optimizer.zero_grad()\n"
            "        self.net(x).mean().backward()\n        self.lr_scheduler.step()\n        self.optimizer.step()\n",
            (9,),
        ),
        Invalid(
            _HEAD + "def train(net, optimizer, loader, epochs):\n"
            "    scheduler = OneCycleLR(optimizer, 0.1, steps_per_epoch=len(loader), epochs=epochs)\n"
            "    for _ in range(epochs):\n        for x in loader:\n            optimizer.zero_grad()\n"
            "            net(x).mean().backward()\n            optimizer.step()\n        scheduler.step()\n",
            (12,),
        ),
        Invalid(
            _HEAD + "def train(net, optimizer, loader, epochs):\n"
            "    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)\n"
            "    for _ in range(epochs):\n        for x in loader:\n            optimizer.zero_grad()\n"
            "            net(x).mean().backward()\n            optimizer.step()\n            scheduler.step()\n",
            (12,),
        ),
        Invalid(
            _HEAD + _LOOP + "        scaler.scale(net(x).mean()).backward()\n        scheduler.step()\n"
            "        scaler.step(optimizer)\n        scaler.update()\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            steps = [event for event in events if event.steps_parameters]
            for schedule in of_act(events, Act.SCHEDULE):
                if schedule.call.args or schedule.call.keywords:
                    continue
                step = _step_behind(schedule, steps)
                if step is not None:
                    yield Hit(
                        schedule.call,
                        "The schedule moves on before the optimizer has stepped, so the first learning rate is never "
                        "used. Call `scheduler.step()` after `optimizer.step()`.",
                        related=((step.call, "the optimizer steps only here"),),
                        fix=_swapped(file, schedule, step),
                    )
                else:
                    yield from _wrong_loop(file, schedule, steps)


def _step_behind(schedule: Event, steps: Sequence[Event]) -> Event | None:
    """The first step after a schedule in the same turn, when no step comes before it."""
    loop = schedule.loop
    same_turn = [step for step in steps if loop is None or step.is_inside(loop)]
    if before(schedule, same_turn):
        return None
    conditions = [owner for owner, _ in schedule.path if isinstance(owner, ast.If)]
    for step in after(schedule, same_turn):
        if all(any(owner is condition for owner, _ in step.path) for condition in conditions):
            return step
    return None


def _swapped(file: FileContext, schedule: Event, step: Event) -> Rewrite | None:
    statements = between(file, schedule.statement, step.statement)
    if statements is None or len(statements) != 2 or not all(isinstance(item, ast.Expr) for item in statements):
        return None
    first, second = statements
    return Rewrite(FixSafety.UNSAFE, (Replacement(first, file.source(second)), Replacement(second, file.source(first))))


def _wrong_loop(file: FileContext, schedule: Event, steps: Sequence[Event]) -> Iterator[Hit]:
    made = maker(file, schedule.subject) if schedule.subject is not None else None
    if made is None or schedule.subject is None or not (made_by(file, schedule.subject) or "").startswith("torch."):
        return
    total = keyword(made, *_TOTALS)
    loop = schedule.loop
    if total is None or loop is None:
        return
    inner = [step for step in before(schedule, steps) if step.is_inside(loop) and step.loop is not loop]
    counts_batches = _mentions_length(total)
    if inner and counts_batches and isinstance(inner[0].loop, ast.For):
        yield Hit(
            schedule.call,
            f"The schedule was told to run over `{file.source(total)}` batches, but it steps once for all of them: it "
            f"hardly moves. Call `scheduler.step()` after each `optimizer.step()`.",
            related=((total, "the number of steps it was told"), (inner[0].call, "the optimizer steps here")),
        )
    elif not counts_batches and _is_epochs_of_outer_loop(file, total, schedule):
        yield Hit(
            schedule.call,
            f"The schedule was told to run over `{file.source(total)}` epochs, but it steps for every batch: it is "
            f"through after as many batches. Call `scheduler.step()` once an epoch.",
            related=((total, "the number of steps it was told"),),
        )


def _mentions_length(total: ast.expr) -> bool:
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "len" for n in ast.walk(total))


def _is_epochs_of_outer_loop(file: FileContext, total: ast.expr, schedule: Event) -> bool:
    """Whether a total is just the bound of the `range` that an outer loop of the schedule runs over."""
    if not isinstance(total, (ast.Name, ast.Attribute)):
        return False
    loops = [owner for owner, field in schedule.path if isinstance(owner, LOOPS) and field == "body"]
    for outer in loops[:-1]:
        if isinstance(outer, ast.For) and isinstance(outer.iter, ast.Call):
            bounds = [file.source(argument) for argument in outer.iter.args]
            if bounds and isinstance(outer.iter.func, ast.Name) and outer.iter.func.id in ("range", "trange"):
                return file.source(total) in bounds
    return False
