"""Gradients clipped where it has no effect, or while they are still scaled for half precision.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_false, keyword, maker
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.training_steps import Act, Event, after, before, between, of_act, training_events

_HEAD = "import torch\n\n\n"
_LOOP = "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
_CLIP = "        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
_BACKWARD = "        net(x).mean().backward()\n"
_STEP = "        optimizer.step()\n"
_SCALED = "        scaler.scale(net(x).mean()).backward()\n"
_UNSCALE = "        scaler.unscale_(optimizer)\n"
_SCALER_STEP = "        scaler.step(optimizer)\n        scaler.update()\n"
_RELEVANT = (Act.BACKWARD, Act.STEP, Act.SCALER_STEP, Act.CLEAR)
_TRIGGERS = ("clip_grad_norm", "clip_grad_value_")


class ClippedWithoutEffect(Rule):
    """Clipping after the step, or before the backward that makes the gradients."""

    id = "GP704"
    name = "clip-without-effect"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("training_step",)
    fix = FixSafety.UNSAFE
    triggers = _TRIGGERS
    documentation = Documentation(
        what_it_does=(
            "Finds `clip_grad_norm_` and `clip_grad_value_` that stand after the optimizer's step, or before the "
            "`backward()` that computes the gradients of that step."
        ),
        why_is_this_bad=(
            "The step follows the gradients as they were: with a gradient of 10, a limit of 1 and a rate of 1 the "
            "weight moved by 10 (measured), not by 1. Nothing is reported, and the next `zero_grad()` wipes out what "
            "was clipped."
        ),
        faulty_example=_HEAD + _LOOP + _BACKWARD + _STEP + _CLIP,
        right_example=_HEAD + _LOOP + _BACKWARD + _CLIP + _STEP,
        fix_safety="Unsafe: the lines are put in order, and clipping begins to have an effect.",
    )
    valid = (
        _HEAD + _LOOP + _BACKWARD + _CLIP + _STEP,
        # two optimizers
        _HEAD + "def train(gen, dis, opt_g, opt_d, batches):\n    for x in batches:\n        opt_g.zero_grad()\n"
        "        opt_d.zero_grad()\n        dis(gen(x)).mean().backward()\n        opt_d.step()\n"
        "        torch.nn.utils.clip_grad_norm_(gen.parameters(), 1.0)\n        opt_g.step()\n",
        # accumulated, and the step opens the next turn
        _HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches):\n"
        "        if i and i % every == 0:\n            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        "            optimizer.step()\n            optimizer.zero_grad()\n        (net(x).mean() / every).backward()\n",
        # one of two ways
        _HEAD + "def train(net, optimizer, scaler, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        if scaler is None:\n            net(x).mean().backward()\n            optimizer.step()\n"
        "        else:\n"
        "            scaler.scale(net(x).mean()).backward()\n            scaler.unscale_(optimizer)\n"
        "            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n            scaler.step(optimizer)\n"
        "            scaler.update()\n",
        # the step happens elsewhere
        _HEAD + "def clip(net, limit):\n    return torch.nn.utils.clip_grad_norm_(net.parameters(), limit)\n",
        _HEAD + "def grow(net, x):\n    net(x).mean().backward()\n"
        "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
        # clipped between two backwards of one step, as DP-SGD does for each part
        _HEAD + _LOOP + _BACKWARD + _CLIP + _BACKWARD + _CLIP + _STEP,
    )
    invalid = (
        Invalid(_HEAD + _LOOP + _BACKWARD + _STEP + _CLIP, (9,)),
        Invalid(_HEAD + _LOOP + _CLIP + _BACKWARD + _STEP, (7,)),
        Invalid(
            _HEAD
            + "def train(net, optimizer, batches):\n    for x in batches:\n"
            + _BACKWARD
            + _STEP
            + _CLIP
            + "        optimizer.zero_grad()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x):\n        loss = self.net(x).mean()\n"
            "        self.optimizer.zero_grad()\n"
            "        torch.nn.utils.clip_grad_value_(self.net.parameters(), 1.0)\n        loss.backward()\n"
            "        self.optimizer.step()\n",
            (8,),
        ),
        Invalid(_HEAD + _LOOP + _SCALED + _SCALER_STEP + _CLIP, (10,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            steps = [event for event in events if event.act in _RELEVANT]
            for clip in of_act(events, Act.CLIP):
                late = _comes_after_step(clip, steps)
                early = None if late is not None else _comes_before_backward(clip, steps)
                other = late or early
                if other is None:
                    continue
                message = (
                    "This clips after the optimizer has stepped: the step followed the gradients as they were. Clip "
                    "between `backward()` and `step()`."
                    if late is not None
                    else "This clips before `backward()` has computed the gradients of this step, which are not "
                    "clipped. Clip between `backward()` and `step()`."
                )
                note = "the step it comes too late for" if late is not None else "the gradients are computed only here"
                yield Hit(clip.call, message, related=((other.call, note),), fix=_moved(file, clip, other))


def _comes_after_step(clip: Event, steps: Sequence[Event]) -> Event | None:
    earlier = before(clip, steps)
    if not earlier or not earlier[0].steps_parameters or earlier[0].loop is not clip.loop:
        return None
    later = after(clip, steps)
    if later:
        return None if later[0].steps_parameters else earlier[0]
    # What follows is the next turn: a step of its own gradients, if nothing clears or adds to them first.
    first = next((event for event in steps if clip.loop is not None and event.is_inside(clip.loop)), None)
    return None if first is not None and first.steps_parameters and first is not earlier[0] else earlier[0]


def _comes_before_backward(clip: Event, steps: Sequence[Event]) -> Event | None:
    earlier, later = before(clip, steps), after(clip, steps)
    if not later or later[0].act is not Act.BACKWARD or later[0].loop is not clip.loop:
        return None
    if not any(event.steps_parameters and event.loop is clip.loop for event in later):
        return None
    fresh = not earlier or earlier[0].act is Act.CLEAR
    return later[0] if fresh else None


def _moved(file: FileContext, clip: Event, other: Event) -> Rewrite | None:
    """The clip put before the step, or behind the backward; what stands between keeps its order."""
    statements = between(file, clip.statement, other.statement)
    if statements is None or not isinstance(clip.statement, ast.Expr):
        return None
    if other.act is Act.BACKWARD and other.scaler is not None:
        return None  # where it would be unscaled is not told by these lines
    first = statements[0] is clip.statement
    order = [*statements[1:], clip.statement] if first else [clip.statement, *statements[:-1]]
    texts = {item: file.source(item) for item in order}
    if other.scaler is not None and other.subject is not None:
        # In front of the scaler's step the gradients are still scaled, and an unscaled clip is what GP705 is about.
        texts[clip.statement] = (
            f"{file.operand_source(other.scaler)}.unscale_({file.source(other.subject)})\n" + (texts[clip.statement])
        )
    pairs = zip(statements, order, strict=True)
    return Rewrite(FixSafety.UNSAFE, tuple(Replacement(place, texts[item]) for place, item in pairs))


class ClippedWhileScaled(Rule):
    """Clipping gradients that still carry the factor of the GradScaler."""

    id = "GP705"
    name = "clip-before-unscale"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("training_step",)
    fix = FixSafety.UNSAFE
    triggers = _TRIGGERS
    documentation = Documentation(
        what_it_does=(
            "Finds `clip_grad_norm_` and `clip_grad_value_` between `scaler.scale(loss).backward()` and "
            "`scaler.step(optimizer)` without `scaler.unscale_(optimizer)` before them."
        ),
        why_is_this_bad=(
            "The gradients are still multiplied by the scale (65536 at first), so nearly every norm is over the limit: "
            "an update that should have been -0.5 came out as -0.00098 (measured). Training goes on, hardly moving."
        ),
        faulty_example=_HEAD + _LOOP.replace("optimizer,", "optimizer, scaler,") + _SCALED + _CLIP + _SCALER_STEP,
        right_example=(
            _HEAD + _LOOP.replace("optimizer,", "optimizer, scaler,") + _SCALED + _UNSCALE + _CLIP + _SCALER_STEP
        ),
        fix_safety="Unsafe: `scaler.unscale_(optimizer)` changes the update, as it is meant to.",
    )
    valid = (
        _HEAD + _LOOP + _SCALED + _UNSCALE + _CLIP + _SCALER_STEP,
        # not scaled at all
        _HEAD + _LOOP + _BACKWARD + _CLIP + _STEP,
        # unscaled by hand
        _HEAD
        + _LOOP
        + _SCALED
        + "        for p in net.parameters():\n            p.grad /= scaler.get_scale()\n"
        + _CLIP
        + _SCALER_STEP,
        # a scaler that does nothing
        _HEAD + "scaler = torch.amp.GradScaler('cuda', enabled=False)\n" + _LOOP + _SCALED + _CLIP + _SCALER_STEP,
        # in the branch without mixed precision
        _HEAD + _LOOP + "        if scaler:\n            scaler.scale(net(x).mean()).backward()\n        else:\n"
        "            net(x).mean().backward()\n            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
        + _SCALER_STEP,
        _HEAD + _LOOP + _SCALED + "        if clip:\n            scaler.unscale_(optimizer)\n"
        "            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n" + _SCALER_STEP,
    )
    invalid = (
        Invalid(_HEAD + _LOOP + _SCALED + _CLIP + _SCALER_STEP, (8,)),
        Invalid(
            _HEAD
            + "scaler = torch.cuda.amp.GradScaler()\n"
            + _LOOP
            + _SCALED
            + "        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
            + _SCALER_STEP,
            (9,),
        ),
        Invalid(_HEAD + _LOOP + _SCALED + _CLIP + _UNSCALE + _SCALER_STEP, (8,)),
        Invalid(
            _HEAD + "class Trainer:\n    def step(self, x):\n        self.optimizer.zero_grad()\n"
            "        self.scaler.scale(self.net(x).mean()).backward()\n        if self.limit:\n"
            "            torch.nn.utils.clip_grad_value_(self.net.parameters(), self.limit)\n"
            "        self.scaler.step(self.optimizer)\n        self.scaler.update()\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for events in training_events(file).values():
            for clip in of_act(events, Act.CLIP):
                backward = next(iter(of_act(before(clip, events), Act.BACKWARD)), None)
                if backward is None or backward.scaler is None or _is_unscaled(file, backward, clip, events):
                    continue
                step = next(iter(of_act(after(clip, events), Act.SCALER_STEP)), None)
                if step is None or step.subject is None:
                    continue
                scaler = file.source(backward.scaler)
                yield Hit(
                    clip.call,
                    f"The gradients are still multiplied by the scale of `{scaler}` here, so the limit cuts off nearly "
                    f"everything. Call `{scaler}.unscale_({file.source(step.subject)})` before clipping.",
                    related=((backward.call, "the loss is scaled here"),),
                    fix=_unscaled(file, backward.scaler, step.subject, clip, events),
                )


def _is_unscaled(file: FileContext, backward: Event, clip: Event, events: Sequence[Event]) -> bool:
    if any(event.place > backward.place for event in of_act(before(clip, events), Act.UNSCALE)):
        return True
    made = maker(file, backward.scaler) if backward.scaler is not None else None
    if made is not None and is_false(keyword(made, "enabled")):
        return True
    text = file.source(clip.scope) if not isinstance(clip.scope, ast.Module) else file.text
    return any(word in text for word in ("get_scale", "inv_scale", "_scale)", "unscale_grad"))


def _unscaled(
    file: FileContext, scaler: ast.expr, optimizer: ast.expr, clip: Event, events: Sequence[Event]
) -> Rewrite | None:
    if any(event.place > clip.place for event in of_act(after(clip, events), Act.UNSCALE)):
        return None  # a second one in the same step raises
    if not isinstance(clip.statement, (ast.Expr, ast.Assign)):
        return None
    text = f"{file.operand_source(scaler)}.unscale_({file.source(optimizer)})\n{file.source(clip.statement)}"
    return Rewrite(FixSafety.UNSAFE, (Replacement(clip.statement, text),))
