"""Which parameters get a gradient: `None`, exactly zero or something, for several seeds, and how large it is.

What a module keeps with a graph (an auxiliary loss in an attribute) is differentiated together with what it returns: a
parameter that trains through it is not lost. This module must not judge, nor look for where a gradient ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients.experiment import Experiment, Output, Variable, rms
from gradproof_probe.gradients.probing import random_direction, random_like
from gradproof_probe.trees import tensors

Make = Callable[[int, torch.dtype | None], Experiment]
Fate = Literal["flows", "zero", "none"]
_REGISTRIES: Final = ("_parameters", "_buffers", "_modules")
# What an output must move by, of its size, when a parameter that autograd does not connect with it moves. Without a
# connection the true difference is 0 to the bit; float32 inside a float64 run rounds at 1e-7.
MOVED: Final = 1e-5
# Steps, in units of the parameter's root mean square. Rounding and decisions only answer to large ones.
STEPS: Final = (1e-2, 1.0, -3.0, 10.0)


@dataclass(slots=True)
class Run:
    """One forward and backward with fresh parameters, inputs and cotangents."""

    experiment: Experiment
    differentiable: bool
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # of the modules, as they were called

    def fate(self, name: str) -> Fate:
        gradient = self.gradients.get(name)
        if gradient is None:
            return "none"
        return "flows" if bool(gradient.any()) else "zero"


def one_run(make: Make, seed: int, precision: torch.dtype | None) -> Run:
    """Raises `ForwardError`, `BackwardError`, `ExpressionError`."""
    experiment = make(seed, precision)
    order: list[str] = []
    with _noting_order(experiment.instance, order):
        live = live_outputs(experiment)
    run = Run(experiment, bool(live), order=order)
    if live:
        generator = torch.Generator().manual_seed(seed + 17)
        cotangents = [random_like(item.value, generator) for item in live]
        # Of the inputs as well: the hooks of a module run on the way to them.
        found = experiment.gradients(live, cotangents)
        run.gradients = {
            variable.name: None if gradient is None else gradient.detach()
            for variable, gradient in zip(experiment.variables, found, strict=True)
            if variable.kind == "parameter"
        }
    return run


def live_outputs(experiment: Experiment) -> list[Output]:
    """What one call returns or leaves in an attribute that gradients can flow back from. Raises `ForwardError`."""
    returned = experiment.run()
    seen = {id(item.value) for item in returned}
    kept = [
        Output(name, value)
        for name, value in _kept(experiment.instance)
        if id(value) not in seen and value.grad_fn is not None
    ]
    return [item for item in [*returned, *kept] if item.value.requires_grad and item.value.numel()]


def _kept(module: torch.nn.Module | None) -> list[tuple[str, torch.Tensor]]:
    if module is None:
        return []
    return [
        (f"self.{prefix}{'.' if prefix else ''}{name}{path}", value)
        for prefix, item in module.named_modules()
        for name, kept in vars(item).items()
        if name not in _REGISTRIES
        for path, value in tensors(kept)
        if value.is_floating_point() or value.is_complex()
    ]


@contextmanager
def _noting_order(module: torch.nn.Module | None, order: list[str]) -> Iterator[None]:
    if module is None:
        yield
        return
    names = {id(item): name for name, item in module.named_modules()}

    def note(item: torch.nn.Module, _inputs: Any) -> None:
        name = names.get(id(item))
        if name is not None and name not in order:
            order.append(name)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def alone(experiment: Experiment, variable: Variable) -> Iterator[None]:
    """Nothing else requires grad for a while: then `requires_grad` says whether a tensor is connected with it."""
    others = [item.leaf for item in experiment.variables if item is not variable]
    for leaf in others:
        leaf.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    try:
        yield
    finally:
        for leaf in others:
            leaf.requires_grad_(True)  # noqa: FBT003


def moving_step(experiment: Experiment, variable: Variable, wanted: Sequence[str]) -> float | None:
    """The smallest step of this parameter that moves one of the outputs; None if none does.

    `wanted`: paths of outputs. None as well where two equal calls differ. Leaves the experiment at its base point.
    """
    base = _values(experiment, wanted)
    if base is None or _differ(base, _values(experiment, wanted)):
        return None
    try:
        for step in STEPS:
            displace(experiment, variable, step)
            moved = _values(experiment, wanted)
            if moved is not None and _differ(base, moved):
                return step
    finally:
        experiment.put_back()
    return None


def displace(experiment: Experiment, variable: Variable, step: float) -> None:
    """Move one variable by `step` root mean squares in a direction of random signs."""
    generator = torch.Generator().manual_seed(experiment.seed + 29)
    direction = random_direction(variable.base, generator, rms(variable.base))
    experiment.place([direction if item is variable else None for item in experiment.variables], step)


def _values(experiment: Experiment, wanted: Sequence[str]) -> dict[str, torch.Tensor] | None:
    try:
        found = {item.path: item.value.detach().clone() for item in experiment.run() if item.path in wanted}
    except Exception:
        return None
    return found


def _differ(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor] | None) -> bool:
    if second is None:
        return True
    for path, value in first.items():
        other = second.get(path)
        if other is None or other.shape != value.shape:
            continue
        if not bool(torch.isfinite(value).all() & torch.isfinite(other).all()):
            continue
        if value.numel() and float((value - other).abs().max()) > MOVED * max(float(value.abs().max()), 1e-12):
            return True
    return False
