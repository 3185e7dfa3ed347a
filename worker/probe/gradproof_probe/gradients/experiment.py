"""A call as a function of its differentiable leaves, evaluated again and again under the same conditions.

Before every evaluation: the module's state is put back, every generator is reseeded, inputs are cloned (so that a
forward that writes to its input changes the clone). Numeric evaluation keeps autograd on: modules take other paths
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gradproof_probe.seeding import reseed
from gradproof_probe.state import ModuleState
from gradproof_probe.trees import tensors, transform


class ForwardError(Exception):
    """The forward raised; `cause` is what."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class BackwardError(Exception):
    """The backward raised; `cause` is what."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class Variable:
    """A leaf that a derivative is asked for. `base` is the value it is put back to."""

    name: str
    leaf: torch.Tensor
    kind: Literal["input", "parameter"]
    base: torch.Tensor
    ordinal: int = 0  # among the inputs, in the order of the arguments; stays when others are dropped

    @property
    def size(self) -> int:
        return self.leaf.numel()


@dataclass(slots=True)
class Output:
    path: str
    value: torch.Tensor


class Experiment:
    """`precision` says what the leaves are promoted to; None leaves every dtype as it is."""

    def __init__(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        instance: torch.nn.Module | None,
        *,
        seed: int,
        precision: torch.dtype | None = torch.float64,
        argument_names: Sequence[str] = (),
    ) -> None:
        self.call = call
        self.instance = instance
        self.seed = seed
        self.evaluations = 0
        # Whether the leaves stand elsewhere than at their base: what a frozen cut gives is recorded at the base.
        self.displaced = False
        self.variables: list[Variable] = []
        if instance is not None and precision is not None:
            instance.to(precision)
        self._args = [
            transform(value, self._leaf_maker(_name(argument_names, i), precision)) for i, value in enumerate(args)
        ]
        self._kwargs = {name: transform(value, self._leaf_maker(name, precision)) for name, value in kwargs.items()}
        if instance is not None:
            for name, parameter in instance.named_parameters():
                if parameter.requires_grad and _differentiable(parameter):
                    self.variables.append(Variable(name, parameter, "parameter", parameter.detach().clone()))
        self._state = ModuleState(instance)

    def _leaf_maker(self, name: str, precision: torch.dtype | None) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda tensor: self._leaf(tensor, name, precision)

    def _leaf(self, tensor: torch.Tensor, name: str, precision: torch.dtype | None) -> torch.Tensor:
        if not _differentiable(tensor) or tensor.layout != torch.strided:
            return tensor.detach()
        wide = tensor.detach()
        if precision is not None:
            wide = wide.to(precision.to_complex() if tensor.is_complex() else precision)
        # Strides may overlap (expand): a leaf that numbers are written to needs memory of its own.
        leaf = wide.clone(memory_format=torch.preserve_format).requires_grad_()
        count = sum(1 for variable in self.variables if variable.name == name)
        label = name if count == 0 else f"{name}.{count}"
        self.variables.append(Variable(label, leaf, "input", leaf.detach().clone(), len(self.variables)))
        return leaf

    @property
    def size(self) -> int:
        return sum(variable.size for variable in self.variables)

    def drop(self, variable: Variable) -> None:
        """Treat it as a constant from now on."""
        variable.leaf.requires_grad_(False)  # noqa: FBT003 - torch's own signature
        self.variables.remove(variable)

    def run(self, *, restore: bool = True) -> list[Output]:
        """Floating outputs with their paths. Raises `ForwardError`. `restore=False` keeps the last call's state."""
        return [
            Output(path, value)
            for path, value in tensors(self.run_raw(restore=restore)[0])
            if value.is_floating_point() or value.is_complex()
        ]

    def run_raw(self, *, restore: bool = True) -> tuple[Any, list[Any]]:
        """(the output as it is, the cloned arguments that the call was given)."""
        if restore:
            self._state.restore()
        reseed(self.seed)
        self.evaluations += 1
        args = [transform(value, torch.Tensor.clone) for value in self._args]
        kwargs = {name: transform(value, torch.Tensor.clone) for name, value in self._kwargs.items()}
        return self.call_with(args, kwargs), [args, kwargs]

    def call_with(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return self.call(*args, **kwargs)
        except Exception as error:
            raise ForwardError(error) from error

    def gradients(
        self,
        outputs: Sequence[Output],
        cotangents: Sequence[torch.Tensor],
        *,
        variables: Sequence[Variable] | None = None,
        retain: bool = False,
    ) -> list[torch.Tensor | None]:
        """Raises `BackwardError`. Sparse gradients come dense; None where autograd has none."""
        wanted = self.variables if variables is None else variables
        reseed(self.seed)
        try:
            found = torch.autograd.grad(
                [output.value for output in outputs],
                [variable.leaf for variable in wanted],
                list(cotangents),
                allow_unused=True,
                retain_graph=retain,
            )
        except Exception as error:
            raise BackwardError(error) from error
        return [None if item is None else (item.to_dense() if item.layout != torch.strided else item) for item in found]

    def place(self, directions: Sequence[torch.Tensor | None], step: float) -> None:
        """Set each variable to base + step x direction."""
        self.displaced = True
        with torch.no_grad():
            for variable, direction in zip(self.variables, directions, strict=True):
                if direction is not None:
                    variable.leaf.copy_(variable.base + step * direction)

    def put_back(self) -> None:
        self.displaced = False
        with torch.no_grad():
            for variable in self.variables:
                variable.leaf.copy_(variable.base)

    def rebase(self, generator: torch.Generator, size: float) -> None:
        """Move every variable's base by a random `size` of its root mean square: off a kink that it sits on."""
        for variable in self.variables:
            noise = torch.randn(variable.base.shape, generator=generator, dtype=torch.float64)
            variable.base = variable.base + (size * rms(variable.base) * noise).to(variable.base.dtype)
        self.put_back()


def differentiable(outputs: Sequence[Output]) -> list[Output]:
    return [output for output in outputs if output.value.requires_grad and output.value.numel()]


def rms(tensor: torch.Tensor) -> float:
    """Root mean square, 0.1 for zeros: a bias that starts at zero still has to be moved."""
    if tensor.numel() == 0:
        return 0.1
    value = float(tensor.detach().abs().to(torch.float64).square().mean().sqrt())
    return value if 0 < value < float("inf") else 0.1


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"input {index}"
