"""Accumulation windows that begin wrongly: a counter from zero lets the first step follow a single batch.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.accumulation import accumulation_of
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import argument
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name
from analyzer.training_steps import training_events

_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_LOOP = (
    "def train(net, optimizer, batches, every=4):\n    optimizer.zero_grad()\n"
    "    for i, (x, y) in enumerate(batches):\n        (F.mse_loss(net(x), y) / every).backward()\n"
)
_STEP = "            optimizer.step()\n            optimizer.zero_grad()\n"
_LINE = 9


class StepAfterFirstBatch(Rule):
    """`if i % every == 0: optimizer.step()` with `i` from 0: the first window is one batch long."""

    id = "GP738"
    name = "step-after-first-batch"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("accumulation_equivalence",)
    fix = FixSafety.UNSAFE
    triggers = (".step(",)
    documentation = Documentation(
        what_it_does=(
            "Finds gradient accumulation that steps when `i % n == 0`, where `i` counts the batches from 0 and the "
            "backward has run already."
        ),
        why_is_this_bad=(
            "0 is divisible by n: the first step follows one batch instead of n, all later windows are shifted by "
            "one, and what the last n - 1 batches add up to is never used, or spills into the next epoch."
        ),
        faulty_example=_HEAD + _LOOP + "        if i % every == 0:\n" + _STEP,
        right_example=_HEAD + _LOOP + "        if (i + 1) % every == 0:\n" + _STEP,
        fix_safety="Unsafe: steps happen at other batches, as they are meant to.",
    )
    valid = (
        documentation.right_example,
        _HEAD
        + _LOOP.replace("batches):\n        (", "batches, start=1):\n        (")
        + "        if i % every == 0:\n"
        + _STEP,
        _HEAD
        + _LOOP.replace("batches):\n        (", "batches, 1):\n        (")
        + "        if i % every == 0:\n"
        + _STEP,
        _HEAD + _LOOP + "        if i % every == every - 1:\n" + _STEP,
        # not the loop's counter
        _HEAD + _LOOP + "        net.seen += 1\n        if net.seen % every == 0:\n" + _STEP,
        # steps and counts for every batch
        _HEAD + _LOOP + "        optimizer.step()\n        optimizer.zero_grad()\n        if i % every == 0:\n"
        "            print(i)\n",
        _HEAD + _LOOP + "        i += 1\n        if i % every == 0:\n" + _STEP,
    )
    invalid = (
        Invalid(documentation.faulty_example, (_LINE,)),
        Invalid(_HEAD + _LOOP + "        if i % every == 0 or i == len(batches) - 1:\n" + _STEP, (_LINE,)),
        Invalid(_HEAD + _LOOP + "        if not i % every:\n" + _STEP, (_LINE,)),
        Invalid(
            _HEAD
            + _LOOP.replace("for i, (x, y) in enumerate(batches):", "for i in range(9):\n        x, y = batches[i]")
            + "        if i % 4 == 0:\n"
            + _STEP,
            (_LINE + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            found = accumulation_of(file, events)
            if found is None or not isinstance(found.loop, ast.For):
                continue
            remainder = _remainder_is_zero(found.test)
            if remainder is None or not isinstance(remainder.left, ast.Name):
                continue
            counter = remainder.left
            if not _counts_from_zero(found.loop, counter.id) or _is_moved(file, found.loop, counter.id):
                continue
            yield Hit(
                found.test,
                f"`{counter.id}` counts from 0, so the first step follows a single batch and every window is shifted "
                f"by one. Ask for `({counter.id} + 1) % {file.operand_source(remainder.right)} == 0`.",
                related=((found.backward.call, "the backward of this batch has been run"),),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(counter, f"({counter.id} + 1)"),)),
            )


def _remainder_is_zero(test: ast.expr) -> ast.BinOp | None:
    """`i % n` of `i % n == 0` and `not i % n`, alone or as one of several reasons; None where more is demanded."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return next((found for part in test.values if (found := _remainder_is_zero(part)) is not None), None)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand if isinstance(test.operand, ast.BinOp) and isinstance(test.operand.op, ast.Mod) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    left, right = test.left, test.comparators[0]
    zero = isinstance(right, ast.Constant) and right.value == 0
    return left if zero and isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) else None


def _counts_from_zero(loop: ast.For, counter: str) -> bool:
    if not isinstance(loop.iter, ast.Call):
        return False
    name, target = terminal_name(loop.iter.func), loop.target
    if name == "range":
        return isinstance(target, ast.Name) and target.id == counter and len(loop.iter.args) == 1
    if name == "enumerate" and isinstance(target, ast.Tuple) and target.elts:
        first = target.elts[0]
        start = argument(loop.iter, 1, "start")
        zero = start is None or (isinstance(start, ast.Constant) and start.value == 0)
        return isinstance(first, ast.Name) and first.id == counter and zero
    return False


def _is_moved(file: FileContext, loop: ast.For, counter: str) -> bool:
    """Whether the loop changes its counter itself."""
    return any(
        name.id == counter and isinstance(name.ctx, ast.Store) and loop in file.ancestors(file.statement(name) or name)
        for name in file.nodes(ast.Name)
    )
