"""Faults in the order of a training step, read from what was recorded, each with the numbers that show its effect.

An order is a fault only where gradients came out otherwise than they were meant to: a gradient that was clipped after
it had been used, one that went into two steps, one that was cleared before any. What submitted code does to gradients
by itself (looks at them, scales them) is its own affair, and nothing is said about those. This module must not run
submitted code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.training.step_recorder import Event, StepRecorder

_STALE: Final = 1e-3  # the least share of a gradient that is left from the step before
_OVER: Final = 1.001  # what clipping leaves is at its limit but for rounding
_TWICE: Final = 2.0
_NO_LIMIT: Final = 1e6  # a limit beyond it is none: the norm is wanted, for a log


@dataclass(frozen=True, slots=True)
class Fault:
    """`enlarge`: gradients so many times as large would show it; it is no fault yet where that is not 1."""

    cause: str
    text: str
    place: Place | None
    numbers: dict[str, Any] = field(default_factory=dict)
    enlarge: float = 1.0
    between_calls: bool = False


def faults_in(recorder: StepRecorder) -> list[Fault]:
    """Gravest first: what is lost or wrong by far before what is wrong by a little."""
    found = [
        *_scaled_steps(recorder),
        *_lost(recorder),
        *_kept(recorder),
        *_clips(recorder),
        *_growing(recorder),
        *_broadcast(recorder),
        *_schedules(recorder),
    ]
    first: dict[tuple[str, Place | None], Fault] = {}
    for fault in found:
        first.setdefault((fault.cause, fault.place), fault)
    return list(first.values())


def order_of(recorder: StepRecorder, call: int = 0) -> list[str]:
    """The acts of one call with their lines, for people."""
    return [
        event.act if event.place is None else f"{event.act} at line {event.place.line}"
        for event in recorder.events
        if event.call == call
    ][:60]


def has_stepped(recorder: StepRecorder) -> bool:
    return any(event.act == "step" for event in recorder.events)


def was_used(recorder: StepRecorder) -> bool:
    """Whether some gradient that is not zero went into a step."""
    return bool(recorder.used)


# --- gradients -----------------------------------------------------------------------------------------------------


def _of(recorder: StepRecorder, *acts: str) -> list[Event]:
    return [event for event in recorder.events if event.act in acts]


def _lost(recorder: StepRecorder) -> list[Fault]:
    """Backward passes whose gradients no step ever used, though they were there to be used."""
    found = []
    steps = _of(recorder, "step")
    for event in _of(recorder, "backward"):
        dropped = recorder.dropped.get(event.number, {})
        if event.number in recorder.used or not dropped or not steps or set(dropped) != set(event.parameters):
            continue
        clearing = {number for number in dropped.values() if number >= 0}
        if len(clearing) != 1:
            continue
        cleared = recorder.events[clearing.pop()]
        if any(event.number <= number < cleared.number for number in recorder.reads):
            continue
        alike = [other for other in _of(recorder, "backward") if other.place == event.place]
        used_later = any(o.number > event.number and o.call == event.call and o.number in recorder.used for o in alike)
        never = not any(other.number in recorder.used for other in alike) and len(alike) > 1
        between = [step for step in steps if event.number < step.number < cleared.number]
        if between or (cleared.call != event.call and not never):
            continue
        if cleared.call == event.call and (used_later or never):
            text = (
                "zero_grad() clears the gradients of this loss before any step has used them: "
                f"{len(dropped)} tensors are lost"
            )
            found.append(Fault("gradients_cleared_before_step", text, cleared.place, {"tensors": len(dropped)}))
        elif never and (empty := [step for step in steps if not step.parameters and step.call == event.call]):
            text = (
                "step() comes before backward(): it never sees a gradient, and zero_grad() clears them in the next call"
            )
            found.append(Fault("step_before_backward", text, empty[0].place, {"tensors": len(dropped)}))
    return found


def _kept(recorder: StepRecorder) -> list[Fault]:
    """Steps with a gradient that still holds what the step before has used."""
    found = []
    for kept in recorder.kept:
        earlier, later = recorder.events[kept.earlier], recorder.events[kept.later]
        if earlier.place != later.place or kept.share < _STALE:
            continue
        cleared = [event for event in _of(recorder, "zero_grad") if kept.earlier < event.number < kept.step]
        if any(event.parameters & later.parameters for event in cleared):
            continue
        text = (
            "gradients are not cleared between two steps: backward() adds to those that the step before has used, "
            f"which are as large as {kept.share:.2g} of the sum"
        )
        numbers = {"share_of_the_step_before": kept.share}
        between = earlier.call != later.call
        found.append(Fault("gradients_not_cleared", text, later.place, numbers, between_calls=between))
    return found


def _scaled_steps(recorder: StepRecorder) -> list[Fault]:
    """Optimizers that are stepped past the scaler, with gradients as large as the scale makes them."""
    found = []
    for step in _of(recorder, "step"):
        last = _last_backward(recorder, step)
        if last is None or last.scale == 1.0 or step.inside:
            continue
        between = [event for event in recorder.events[last.number : step.number] if event.act in ("unscale_", "clip")]
        if between or any(last.number <= number < step.number for number in recorder.reads):
            continue
        text = (
            f"optimizer.step() uses gradients that are still {last.scale:g} times too large: "
            "scaler.step(optimizer) takes the scale from them"
        )
        found.append(Fault("step_on_scaled_gradients", text, step.place, {"scale": last.scale}))
    return found


def _last_backward(recorder: StepRecorder, step: Event) -> Event | None:
    """The last one before a step that gave it a gradient, after the step before."""
    for event in reversed(recorder.events[: step.number]):
        if event.act == "step" and event.subject == step.subject:
            return None
        if event.act == "backward" and event.parameters & step.parameters:
            return event
    return None


# --- clipping ------------------------------------------------------------------------------------------------------


def _clips(recorder: StepRecorder) -> list[Fault]:
    found = []
    clips = _of(recorder, "clip")
    steps = [step for step in _of(recorder, "step") if step.parameters]
    for clip in clips:
        own = [step for step in steps if step.parameters & clip.parameters]
        works = [step for step in own if _is_clipped(recorder, step, clips)]
        if works:
            found += [fault for step in works if (fault := _clip_of_scaled(recorder, step, clip)) is not None]
            continue
        before = [step for step in own if step.number < clip.number and step.call == clip.call]
        after = [step for step in own if step.number > clip.number and step.call == clip.call]
        backwards = [e for e in _of(recorder, "backward") if e.call == clip.call and e.parameters & clip.parameters]
        if before and not _backward_between(recorder, before[-1], clip) and (clip.gradients or not after):
            found += _without_effect(
                "clip_after_step", "gradients are clipped after step() has used them", before[-1], clip
            )
        elif after and not clip.gradients and any(clip.number < e.number < after[0].number for e in backwards):
            found += _without_effect(
                "clip_before_backward", "gradients are clipped before backward() has made them", after[0], clip
            )
    return found


def _is_clipped(recorder: StepRecorder, step: Event, clips: Sequence[Event]) -> bool:
    """Whether something clips between the last backward and this step."""
    last = _last_backward(recorder, step)
    return last is None or any(
        last.number < clip.number < step.number and clip.parameters & step.parameters for clip in clips
    )


def _backward_between(recorder: StepRecorder, step: Event, clip: Event) -> bool:
    """Whether new gradients have come since the step."""
    between = recorder.events[step.number + 1 : clip.number]
    return any(event.act == "backward" and event.parameters & clip.parameters for event in between)


def _without_effect(cause: str, said: str, step: Event, clip: Event) -> list[Fault]:
    assert clip.measure is not None
    size = clip.measure(_common(step, clip))
    if size <= 0 or not 0 < clip.limit < _NO_LIMIT:
        return []
    numbers = {"limit": clip.limit, "at_the_step": size}
    enlarge = 1.0 if size > _OVER * clip.limit else 10 * clip.limit / size
    text = (
        f"{said}, so that clipping has no effect: at the step they have the size {size:.4g}, "
        f"the limit is {clip.limit:g}"
    )
    return [Fault(cause, text, clip.place, numbers, enlarge)]


def _clip_of_scaled(recorder: StepRecorder, step: Event, clip: Event) -> Fault | None:
    """Clipping of gradients that still have the scale, which is taken from them afterwards."""
    last = _last_backward(recorder, step)
    if last is None or not last.number < clip.number < step.number or last.scale <= 1 or not step.inside:
        return None
    between = recorder.events[last.number : clip.number]
    if any(event.act == "unscale_" and event.parameters & clip.parameters for event in between):
        return None
    # A limit as large as the scale is meant for scaled gradients; code that looks at gradients may unscale them itself.
    if clip.limit >= last.scale or any(last.number <= number < clip.number for number in recorder.reads):
        return None
    assert clip.measure is not None
    true = clip.measure(clip.gradients.values()) / last.scale
    size = clip.measure(_common(step, clip))
    if true <= 0:
        return None
    numbers = {"limit": clip.limit, "scale": last.scale, "before_clipping": true, "at_the_step": size}
    enlarge = 1.0 if true > _TWICE * size else 10 * clip.limit / last.scale / true
    text = (
        f"gradients are clipped before unscale_(), while they are {last.scale:g} times too large: they have the size "
        f"{true:.4g}, the limit is {clip.limit:g}, and {size:.4g} is left of them at the step"
    )
    return Fault("clip_before_unscale", text, clip.place, numbers, enlarge)


def _common(step: Event, clip: Event) -> Iterable[Any]:
    return [gradient for key, gradient in step.gradients.items() if key in clip.parameters]


# --- graphs, shapes, rates -------------------------------------------------------------------------------------------


def _growing(recorder: StepRecorder) -> list[Fault]:
    """Losses whose graph is larger in each call, by the same amount: each step goes through those before it again."""
    by_call: dict[int, list[Event]] = {}
    for event in _of(recorder, "backward"):
        by_call.setdefault(event.call, []).append(event)
    found = []
    rows = [by_call[call] for call in sorted(by_call)]
    if len(rows) < 3 or len({len(row) for row in rows}) != 1:
        return []
    for alike in zip(*rows, strict=True):
        sizes = [event.nodes for event in alike]
        growth = {second - first for first, second in pairwise(sizes)}
        if len(growth) == 1 and min(growth) > 0 and len({event.place for event in alike}) == 1:
            text = (
                f"the graph of this loss grows with each call ({', '.join(map(str, sizes))} nodes): it goes back "
                "through the steps before, and so do time and memory; detach what is kept from one step to the next"
            )
            found.append(Fault("graph_grows", text, alike[0].place, {"nodes": sizes}))
    return found


def _broadcast(recorder: StepRecorder) -> list[Fault]:
    found = []
    for item in recorder.broadcasts:
        if abs(item.value - item.of_equal_shapes) <= 0.01 * max(abs(item.value), abs(item.of_equal_shapes)):
            continue
        text = (
            f"{item.name} broadcasts {list(item.shapes[0])} against {list(item.shapes[1])}: each prediction is "
            f"compared with each target. The loss is {item.value:.4g}, with equal shapes {item.of_equal_shapes:.4g}"
        )
        numbers = {"loss": item.value, "loss_for_equal_shapes": item.of_equal_shapes}
        found.append(Fault("loss_broadcast", text, item.place, numbers))
    return found


def _schedules(recorder: StepRecorder) -> list[Fault]:
    """Schedulers that move on before the optimizer has used their first rate."""
    for schedule in _of(recorder, "scheduler.step"):
        steps = [step for step in _of(recorder, "step") if step.subject == schedule.subject and step.parameters]
        if not steps:
            continue
        first = steps[0]
        if schedule.number < first.number and schedule.call == first.call and first.rate != schedule.rate:
            text = (
                f"the scheduler moves on before the first optimizer.step(): the first rate, {schedule.rate:g}, is "
                f"never used; the first step has {first.rate:g}"
            )
            numbers = {"first_rate": schedule.rate, "used": first.rate}
            return [Fault("scheduler_before_step", text, schedule.place, numbers)]
    return []
