"""Every submodule alone, on the device and on the CPU, with the inputs that it gets in the whole: which differs first?

For what hides from `operations`: kernels that submitted code launches past torch's dispatcher, and code that asks on
which device it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.devices.errors import Judged, judged
from gradproof_probe.equivalence.observation import Mode, Observation, observe_built
from gradproof_probe.harness.recipe import Built, build
from gradproof_probe.trees import tensors, transform

_MOST: Final = 60


@dataclass(frozen=True, slots=True)
class Layer:
    """A submodule that differs by itself: in its outputs (`forward`), or in its gradients alone (`backward`)."""

    name: str
    kind: str
    phase: str
    worst: Judged


def first_layer(context: CheckContext, mode: Mode, device: str) -> Layer | None:
    """The innermost, first submodule whose results differ although its inputs do not."""
    for name, args, kwargs in _calls(context, mode):
        if time.monotonic() > context.deadline:
            return None
        try:
            worst = _judged(context, mode, device, name, args, kwargs)
        except Exception:  # noqa: S112 - what can't be called alone says nothing
            continue
        off = [one for one in worst if one.of_device > one.allowed and not one.blind]
        if off:
            forward = [one for one in off if not one.name.startswith("gradient")]
            kind = type(_submodule(context, name)).__name__
            return Layer(name, kind, "forward" if forward else "backward", (forward or off)[0])
    return None


def _calls(context: CheckContext, mode: Mode) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """(submodule, its arguments) in the order in which they end on the CPU."""
    built = build(context.resolved, context.recipe, seed=context.seed)
    found: list[tuple[str, list[Any], dict[str, Any]]] = []
    if built.instance is None:
        return found
    begun: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone()

    def entering(name: str) -> Callable[..., None]:
        def enter(_module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            kept = [transform(value, copied) for value in args], {k: transform(v, copied) for k, v in kwargs.items()}
            begun.setdefault(name, []).append(kept)

        return enter

    def leaving(name: str) -> Callable[..., None]:
        def leave(_module: Any, _args: Any, _output: Any) -> None:
            if begun.get(name) and len(found) < _MOST:
                found.append((name, *begun[name].pop()))

        return leave

    for name, module in built.instance.named_modules():
        if name:
            module.register_forward_pre_hook(entering(name), with_kwargs=True)
            module.register_forward_hook(leaving(name))
    observe_built(built, seed=context.seed, mode=mode)
    return found


def _judged(
    context: CheckContext, mode: Mode, device: str, name: str, args: list[Any], kwargs: dict[str, Any]
) -> list[Judged]:
    def run(**options: Any) -> Observation:
        module = _submodule(context, name)
        given = Built(module, list(args), dict(kwargs), module)
        return observe_built(given, seed=context.seed, mode=mode, **options)

    if not tensors([args, kwargs]):
        return []
    return judged(run(dtype=torch.float64), run(), [], run(device=device))


def _submodule(context: CheckContext, name: str) -> torch.nn.Module:
    built = build(context.resolved, context.recipe, seed=context.seed)
    assert built.instance is not None
    return built.instance.get_submodule(name)
