"""Where a call failed: its frames, and which of the arguments the failing lines speak of.

Live objects are compared by identity with what was given, so that a helper's `x` is known for the caller's `target`.
Reads frames and source lines only.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any, Final

import torch

from gradproof_probe.harness.arguments import Argument, Arguments, leaves

_FRAMES: Final = 24


@dataclass(slots=True)
class Failing:
    """One frame of the traceback with the text of the expression that it was in."""

    frame: FrameType
    text: str


@dataclass
class Scene:
    """`args` and `kwargs` are the very objects that the call got."""

    error: BaseException
    arguments: Arguments
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def frames(self) -> list[Failing]:
        """Outermost first, without Gradproof's own and without torch's."""
        found = []
        traceback = self.error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            ours = "gradproof_probe" in code.co_filename or "/torch/" in code.co_filename
            if not ours and not code.co_filename.startswith("<"):
                positions = next(
                    (p for i, p in enumerate(code.co_positions()) if i == traceback.tb_lasti // 2), (None,) * 4
                )
                first, last = positions[0] or traceback.tb_lineno, positions[1] or traceback.tb_lineno
                lines = [linecache.getline(code.co_filename, n) for n in range(first, min(last, first + 8) + 1)]
                found.append(Failing(traceback.tb_frame, "".join(lines)))
            traceback = traceback.tb_next
        return found[-_FRAMES:]

    @cached_property
    def leaves(self) -> Arguments:
        return leaves(self.arguments)

    @cached_property
    def objects(self) -> list[Any]:
        """What each leaf was in the call."""
        positional = iter(self.args)
        found: list[Any] = []
        for argument in self.arguments:
            value = self.kwargs.get(argument.name) if argument.keyword else next(positional, None)
            _collect(argument, value, found)
        return found

    @property
    def usual_shape(self) -> tuple[int, ...]:
        """What a further tensor is given: the shape that another one has."""
        return next((leaf.shape for leaf in self.leaves if leaf.kind == "float" and leaf.shape), (2, 5, 8))

    def leaf_of(self, value: Any) -> int | None:
        """The leaf that this object is."""
        if value is None or isinstance(value, bool | int | float | str):
            return None
        return next((index for index, item in enumerate(self.objects) if item is value), None)

    def leaf_named(self, name: str) -> int | None:
        return next((index for index, leaf in enumerate(self.leaves) if leaf.name == name), None)

    @cached_property
    def suspects(self) -> list[int]:
        """Leaves that the failing lines speak of, the innermost line's first; those named by the call itself after."""
        found: dict[int, None] = {}
        for failing in reversed(self.frames):
            values = failing.frame.f_locals
            for word in re.findall(r"[A-Za-z_]\w*", failing.text):
                if word not in values:
                    continue
                index = self.leaf_of(values[word])
                if index is None and failing is self.frames[0]:
                    index = self.leaf_named(word)
                if index is not None:
                    found[index] = None
        return list(found)

    def similar(self, value: Any) -> list[int]:
        """Leaves of the same shape as a tensor that isn't any of them."""
        if not isinstance(value, torch.Tensor):
            return []
        shape = tuple(value.shape)
        return [index for index, leaf in enumerate(self.leaves) if leaf.is_tensor and leaf.shape == shape]


def _collect(argument: Argument, value: Any, found: list[Any]) -> None:
    if not argument.is_structure:
        found.append(value)
        return
    for index, item in enumerate(argument.items):
        try:
            if argument.kind == "dict":
                part = value[item.name]
            elif argument.kind == "object":
                part = getattr(value, item.name)
            else:
                part = value[index]
        except Exception:
            part = None
        _collect(item, part, found)
