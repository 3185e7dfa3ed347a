"""Where random generators stand: torch's own, and those that a target holds or is given.

What is drawn after a call depends on it, so a call that leaves another state than it should has another effect, even
where all that it returns is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built

_DEPTH: Final = 3
_REGISTRIES: Final = ("_parameters", "_buffers", "_modules")


def standing(built: Built) -> dict[str, torch.Tensor]:
    """The state of each, by name: `torch`, `generator` for an attribute, `argument 1`."""
    found = {"torch": torch.random.get_rng_state()}
    held: list[tuple[str, Any]] = [
        *((f"argument {number}", value) for number, value in enumerate(built.args)),
        *built.kwargs.items(),
    ]
    if built.instance is not None:
        for prefix, module in built.instance.named_modules():
            own = [item for item in vars(module).items() if item[0] not in _REGISTRIES]
            held += [(f"{prefix}.{name}" if prefix else name, value) for name, value in own]
    for name, value in held:
        for path, generator in _generators(value, name, 0):
            if generator.device.type == "cpu":
                found[path] = generator.get_state()
    return found


def left_elsewhere(
    expected: Mapping[str, tuple[torch.Tensor, torch.Tensor]], got: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
) -> list[str]:
    """The generators that began alike in two runs, (before, after) a call, and did not end alike."""
    return [
        name
        for name, (before, after) in expected.items()
        if name in got and torch.equal(before, got[name][0]) and not torch.equal(after, got[name][1])
    ]


def _generators(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Generator]]:
    if isinstance(value, torch.Generator):
        yield path, value
    elif depth < _DEPTH and isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _generators(item, f"{path}[{key!r}]", depth + 1)
    elif depth < _DEPTH and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _generators(item, f"{path}[{number}]", depth + 1)
