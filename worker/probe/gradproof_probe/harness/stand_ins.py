"""Layers that are given to a constructor in place of the author's: others where the way they are called needs it.

`Wrapper(fn=torch.nn.Linear(8, 8))` builds, and then `self.fn(x, mask=mask)` or `for f, g in self.layers` fails inside
the instance, which no input mends. Texts in, texts out; nothing is run here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LAYERS: Final = ("Linear", "Conv2d", "Identity", "Tanh", "LayerNorm")
_ARGUMENTS: Final = re.compile(
    rf"\b({'|'.join(_LAYERS)}|Layer)\.forward\(\) (?:takes \d+ positional arguments? but|got an unexpected keyword)"
)
_ITEMS: Final = re.compile(
    rf"cannot unpack non-iterable ({'|'.join(_LAYERS)}|Layer) object|'({'|'.join(_LAYERS)}|Layer)' object is not "
    r"(?:subscriptable|iterable)"
)
_FORWARD: Final = "'forward': lambda self, x, *_, **__: torch.nn.{name}.forward(self, x)"


def is_about_stand_in(error: BaseException, constructor: str | None) -> bool:
    return next(other_stand_ins(error, constructor or ""), None) is not None


def other_stand_ins(error: BaseException, constructor: str) -> Iterator[tuple[str, str]]:
    """(the constructor expression with other layers, why)."""
    if not isinstance(error, TypeError):
        return
    message = str(error)
    if _ARGUMENTS.search(message):
        for name in _LAYERS:
            changed = _tolerant(constructor, name)
            if changed != constructor:
                yield changed, f"{name} takes further arguments"
                yield _of_any_size(changed, name), "a layer for any size takes further arguments"
    elif _ITEMS.search(message):
        changed = re.sub(
            rf"([\[(,]\s*)(torch\.nn\.(?:{'|'.join(_LAYERS)})\([^()]*\))(?=\s*[\]),])", r"\1(\2, \2)", constructor
        )
        if changed != constructor:
            yield changed, "pairs of layers"


def _tolerant(constructor: str, name: str) -> str:
    """The layer with a forward that passes over whatever else it is called with."""
    forward = _FORWARD.format(name=name)
    if forward in constructor:
        return constructor
    made = f"type('Layer', (torch.nn.{name},), {{"
    changed = constructor.replace(made, f"{made}{forward}, ").replace(f"{forward}, }}", f"{forward}}}")
    return re.sub(rf"torch\.nn\.{name}\(", lambda _: f"{made}{forward}}})(", changed)


def _of_any_size(constructor: str, name: str) -> str:
    """With one slope for all elements in place of a weight for each: the answer is as large as what was given."""
    forward = _FORWARD.format(name=name)
    renamed = constructor.replace(forward, _FORWARD.format(name="PReLU")).replace(
        f"(torch.nn.{name},)", "(torch.nn.PReLU,)"
    )
    return re.sub(r"(\(torch\.nn\.PReLU,\), \{[^{}]*\}\))\([^()]*\)", r"\1()", renamed)
