"""Losses that reach the gradients with the wrong factor: undivided accumulation, a half-wired GradScaler.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from analyzer.accumulation import Accumulation, accumulation_of
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_false, keyword, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.training_steps import Act, Event, after, of_act, training_events

_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_TRAIN = (
    "def train(net, optimizer, batches, every=4):\n    for i, (x, y) in enumerate(batches):\n"
    "        loss = F.mse_loss(net(x), y)\n"
)
_STEP = "        if (i + 1) % every == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n"
_SCALED = (
    "def train(net, optimizer, scaler, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
    "        scaler.scale(net(x).mean()).backward()\n"
)
_SUMMED = re.compile(r"""reduction\s*=\s*['"](sum|none)""")
# Not a mean over the batch, or the batches share one mean.
_OWN_SCALE = re.compile(r"scale|norm|weight|num_|n_tokens|count|total", re.IGNORECASE)


class UndividedAccumulation(Rule):
    """Gradients of several batches summed, with the loss of each a mean, and nothing divides."""

    id = "GP706"
    name = "undivided-accumulation"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("accumulation_equivalence",)
    fix = FixSafety.UNSAFE
    triggers = (".step(",)
    documentation = Documentation(
        what_it_does=(
            "Finds loops, and methods for one batch, that step only after every n-th batch and back-propagate the "
            "mean loss of each batch without dividing it by n."
        ),
        why_is_this_bad=(
            "`backward()` adds up: the step follows n times the mean gradient, as if the learning rate were n times as "
            "large. Changing the number of accumulated batches then changes what is trained."
        ),
        faulty_example=_HEAD + _TRAIN + "        loss.backward()\n" + _STEP,
        right_example=_HEAD + _TRAIN + "        (loss / every).backward()\n" + _STEP,
        fix_safety="Unsafe: the gradients become n times smaller, as they are meant to.",
    )
    valid = (
        _HEAD + _TRAIN + "        (loss / every).backward()\n" + _STEP,
        _HEAD + _TRAIN + "        loss = loss / every\n        loss.backward()\n" + _STEP,
        _HEAD + _TRAIN + "        loss /= every\n        loss.backward()\n" + _STEP,
        _HEAD + _TRAIN + "        (loss * (1 / every)).backward()\n" + _STEP,
        _HEAD + _TRAIN.replace("net(x), y)", "net(x), y, reduction='sum')") + "        loss.backward()\n" + _STEP,
        # divided where the optimizer is made
        _HEAD + "def train(net, batches, every=4, lr=0.1):\n"
        "    optimizer = torch.optim.SGD(net.parameters(), lr=lr / every)\n"
        "    for i, (x, y) in enumerate(batches):\n        loss = F.mse_loss(net(x), y)\n"
        "        loss.backward()\n" + _STEP,
        # divided afterwards
        _HEAD
        + _TRAIN
        + "        loss.backward()\n        if (i + 1) % every == 0:\n            for p in net.parameters():\n"
        "                p.grad.div_(every)\n            optimizer.step()\n            optimizer.zero_grad()\n",
        # one batch of a method, divided
        _HEAD + "class Trainer:\n    def step(self, x, y):\n        loss = F.mse_loss(self.net(x), y)\n"
        "        (loss / self.every).backward()\n        self.count += 1\n        if self.count % self.every == 0:\n"
        "            self.optimizer.step()\n            self.optimizer.zero_grad()\n",
        # a step for every batch
        _HEAD + _TRAIN + "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
        "        if i % every == 0:\n            print(loss)\n",
        # where the loss comes from is not told
        _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches):\n"
        "        loss = net.scaled_loss(x, every)\n        loss.backward()\n" + _STEP,
    )
    invalid = (
        Invalid(_HEAD + _TRAIN + "        loss.backward()\n" + _STEP, (8,)),
        Invalid(
            _HEAD + _TRAIN + "        loss.backward()\n        if i % 8 == 7 or i == len(batches) - 1:\n"
            "            optimizer.step()\n            optimizer.zero_grad()\n",
            (8,),
        ),
        Invalid(
            _HEAD + _TRAIN.replace("optimizer,", "optimizer, scaler,") + "        scaler.scale(loss).backward()\n"
            "        if (i + 1) % every == 0:\n            scaler.step(optimizer)\n            scaler.update()\n"
            "            optimizer.zero_grad()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def fit(self, batches):\n        for i, (x, y) in enumerate(batches):\n"
            "            F.cross_entropy(self.net(x), y).backward()\n"
            "            if (i + 1) % self.accumulate == 0:\n                self.optimizer.step()\n"
            "                self.optimizer.zero_grad()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x, y):\n        loss = F.mse_loss(self.net(x), y)\n"
            "        loss.backward()\n        self.count += 1\n        if self.count % self.every == 0:\n"
            "            self.optimizer.step()\n            self.optimizer.zero_grad()\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            found = accumulation_of(file, events)
            if found is None or found.divisor is None or not of_act(events, Act.CLEAR):
                continue
            loss = found.backward.subject
            if loss is None or _is_rescaled(file, found, loss):
                continue
            divisor = file.source(found.divisor)
            replaced = f"{file.operand_source(loss)} / {file.operand_source(found.divisor)}"
            if _is_receiver(found.backward.call, loss):
                replaced = f"({replaced})"
            yield Hit(
                found.backward.call,
                f"The step follows the sum of the gradients of `{divisor}` batches, but the loss of each is a mean "
                f"that nothing divides: the step is that many times too large. Divide the loss by `{divisor}`.",
                related=((found.step.call, "the optimizer steps only now and then"),),
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(loss, replaced),)),
            )


def _is_receiver(call: ast.Call, loss: ast.expr) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.value is loss


def _is_rescaled(file: FileContext, found: Accumulation, loss: ast.expr) -> bool:
    """Whether the loss or the gradients may be divided anywhere, or the loss is no plain mean."""
    scope = found.backward.scope
    text = file.text if isinstance(scope, ast.Module) else file.source(scope)
    if _SUMMED.search(file.text) or found.divisor is None:
        return True
    divisor = re.escape(file.source(found.divisor))
    if not divisor.isdigit() and re.search(rf"(/=?\s*(float\()?{divisor}\b)|(div_?\(\s*{divisor}\b)", file.text):
        return True
    if re.search(r"\.grad\b.*(/=|\bdiv_|\bmul_)", text):
        return True
    return not _is_plain_mean(file, loss)


def _is_plain_mean(file: FileContext, loss: ast.expr) -> bool:
    """Whether the loss, as its function shows it, is what a criterion or a mean returned, not scaled by anything."""
    sources = [loss]
    if isinstance(loss, ast.Name):
        bindings = file.values.definitions(loss)
        sources = [binding.value for binding in bindings if binding.value is not None]
        if not sources or any(b.operator is not None or b.element is not None or b.value is None for b in bindings):
            return False
    return all(_is_mean(file, source) for source in sources)


def _is_mean(file: FileContext, source: ast.expr) -> bool:
    if not isinstance(source, ast.Call):
        return False
    name = file.qualified_name(source.func) or ""
    if name.startswith("torch.nn.functional."):
        return "loss" in name or "entropy" in name
    if isinstance(source.func, ast.Attribute) and source.func.attr == "mean" and not source.keywords:
        return True
    made = maker(file, source.func) if not isinstance(source.func, ast.Call) else source.func
    made_name = (file.qualified_name(made.func) or "") if made is not None else ""
    if made_name.startswith("torch.nn.") and made_name.endswith("Loss"):
        return True
    called = file.source(source.func).rpartition(".")[2]
    takes_scale = any(
        _OWN_SCALE.search(file.source(item)) for item in (*source.args, *(k.value for k in source.keywords))
    )
    return called in ("criterion", "loss_fn", "loss_func", "loss_function", "criterion_fn") and not takes_scale


class HalfWiredScaler(Rule):
    """A GradScaler that scales the loss, but not the step, or that never adapts."""

    id = "GP710"
    name = "half-wired-scaler"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("training_step",)
    fix = FixSafety.UNSAFE
    triggers = ("scaler", "GradScaler")
    documentation = Documentation(
        what_it_does=(
            "Finds `scaler.scale(loss).backward()` followed by `optimizer.step()` instead of `scaler.step(optimizer)`, "
            "and files that call `scaler.step(optimizer)` but never `scaler.update()`."
        ),
        why_is_this_bad=(
            "`optimizer.step()` follows gradients that are 65536 times too large, and nothing skips the step when they "
            "are infinite. Without `update()` the scale never shrinks after an overflow, so every later step is "
            "skipped."
        ),
        faulty_example=_HEAD + _SCALED + "        optimizer.step()\n",
        right_example=_HEAD + _SCALED + "        scaler.step(optimizer)\n        scaler.update()\n",
        fix_safety="Unsafe: the step changes, as it is meant to.",
    )
    valid = (
        _HEAD + _SCALED + "        scaler.step(optimizer)\n        scaler.update()\n",
        # with and without mixed precision
        _HEAD + "def train(net, optimizer, scaler, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        if scaler is not None:\n            scaler.scale(net(x).mean()).backward()\n"
        "            scaler.step(optimizer)\n            scaler.update()\n        else:\n"
        "            net(x).mean().backward()\n            optimizer.step()\n",
        # unscaled by hand
        _HEAD + _SCALED + "        scaler.unscale_(optimizer)\n        optimizer.step()\n",
        _HEAD + _SCALED + "        for p in net.parameters():\n            p.grad /= scaler.get_scale()\n"
        "        optimizer.step()\n",
        # another method updates
        _HEAD + "class Trainer:\n    def one(self, x):\n        self.scaler.scale(self.net(x).mean()).backward()\n"
        "        self.scaler.step(self.optimizer)\n\n    def two(self):\n        self.scaler.update()\n"
        "        self.optimizer.zero_grad()\n",
        # a scaler of data is something else
        "import torch\nfrom sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\n"
        "scaler.fit([[1.0]])\n",
        _HEAD
        + "scaler = torch.amp.GradScaler('cuda', enabled=False)\n"
        + _SCALED.replace(" scaler,", "")
        + "        optimizer.step()\n",
    )
    invalid = (
        Invalid(_HEAD + _SCALED + "        optimizer.step()\n", (9,)),
        Invalid(_HEAD + _SCALED + "        scaler.step(optimizer)\n", (9,)),
        Invalid(_HEAD + _SCALED + "        optimizer.step()\n        scaler.update()\n", (9,)),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x):\n        self.optimizer.zero_grad()\n"
            "        self.scaler.scale(self.net(x).mean()).backward()\n        self.optimizer.step()\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        table = training_events(file)
        everything = [event for events in table.values() for event in events]
        updates = of_act(everything, Act.SCALER_UPDATE) or "update_scale" in file.text
        for events in table.values():
            yield from _direct_steps(file, events)
            for step in of_act(events, Act.SCALER_STEP):
                scaled = any(event.scaler is not None for event in of_act(events, Act.BACKWARD))
                if not updates and scaled and step.scaler is not None:
                    scaler = file.source(step.scaler)
                    yield Hit(
                        step.call,
                        f"Nothing calls `{scaler}.update()`: after an overflow the scale never shrinks, and every "
                        f"later step is skipped. Call it after the step.",
                        fix=_followed_by(step, file.source(step.statement), f"{scaler}.update()"),
                    )
                    return


def _direct_steps(file: FileContext, events: Sequence[Event]) -> Iterator[Hit]:
    if of_act(events, Act.SCALER_STEP, Act.UNSCALE):
        return
    for backward in of_act(events, Act.BACKWARD):
        scaler = backward.scaler
        if scaler is None or not _scales(file, scaler, backward):
            continue
        step = next((event for event in after(backward, events) if event.act is Act.STEP), None)
        if step is None or step.subject is None:
            continue
        spelled = file.source(scaler)
        updates = [] if of_act(events, Act.SCALER_UPDATE) else [f"{spelled}.update()"]
        yield Hit(
            step.call,
            f"The gradients are still multiplied by the scale of `{spelled}` here. Step with "
            f"`{spelled}.step({file.source(step.subject)})`.",
            related=((backward.call, "the loss is scaled here"),),
            fix=_followed_by(step, f"{spelled}.step({file.source(step.subject)})", *updates),
        )
        return


def _scales(file: FileContext, scaler: ast.expr, backward: Event) -> bool:
    made = maker(file, scaler)
    text = file.text if isinstance(backward.scope, ast.Module) else file.source(backward.scope)
    switched_off = made is not None and is_false(keyword(made, "enabled"))
    return not switched_off and "get_scale" not in text and "inv_scale" not in text


def _followed_by(step: Event, *lines: str) -> Rewrite | None:
    if not isinstance(step.statement, ast.Expr) or step.statement.value is not step.call:
        return None
    return Rewrite(FixSafety.UNSAFE, (Replacement(step.statement, "\n".join(lines)),))
