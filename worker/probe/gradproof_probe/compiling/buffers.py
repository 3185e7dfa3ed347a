"""Buffers that forward updates in place, and that compiled code reads once more in backward."""

from __future__ import annotations

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.running import backend_named, observed_compiled
from gradproof_probe.equivalence.observation import ROUNDING, Mode, Observation, bitwise_differences
from gradproof_probe.gradients.attribution import InPlaceWrites
from gradproof_probe.harness.recipe import build


def reread_buffer(context: CheckContext, mode: Mode, stage: str, plain: Observation) -> Answer | None:
    """Whether compiled backward is right with the buffers as they were before forward: it reads them again.

    torch 2.13 reads a buffer that forward updates in place once more in backward instead of saving what it gave. What
    counts is the update in place: a module that assigns a new tensor to the name is compiled rightly.
    """
    try:
        rewound = observed_compiled(context, mode, backend_named(stage), rewind=True)
    except Exception:
        return None
    if any("gradient" in item.name and item.relative > ROUNDING for item in bitwise_differences(plain, rewound)):
        return None
    writes = InPlaceWrites(context.source_root)
    built = build(context.resolved, context.recipe, seed=context.seed)
    module = built.instance
    if module is None:
        return None
    module.train(mode == "train")
    buffers = dict(module.named_buffers())
    with writes:
        built.call(*built.args, **built.kwargs)
    name, place = next(
        ((name, place) for name, item in buffers.items() if (place := writes.line_of(item)) is not None), ("", None)
    )
    text = (
        f"forward updates the buffer {name or 'that it uses'} in place, and compiled code reads it again in backward, "
        "after the update; assign a new tensor to the name instead"
    )
    return Answer("fail", "buffer_read_after_update", text, place)
