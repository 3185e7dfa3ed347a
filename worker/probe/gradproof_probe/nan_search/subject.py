"""The function under search, called again and again with other inputs under the same conditions, and in other dtypes.

A fault that the call raises ends the attempt, not the search. This module must not know which inputs are worth trying.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import default_dtype
from gradproof_probe.importing import describe_error
from gradproof_probe.nan_search.notices import listening
from gradproof_probe.seeding import reseed
from gradproof_probe.state import ModuleState
from gradproof_probe.trees import tensors, transform

_COTANGENT_SEED: Final = 7
Observer = Callable[[Sequence[tuple[str, torch.Tensor]]], AbstractContextManager[Any]]


@dataclass(slots=True)
class Leaf:
    """A tensor that gradients are asked for: a floating input, or a parameter."""

    name: str
    tensor: torch.Tensor
    is_input: bool


@dataclass(slots=True)
class Inputs:
    """Arguments by position and by name; `slots` names them for people."""

    args: list[Any]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()

    def slots(self) -> list[int | str]:
        return [*range(len(self.args)), *self.kwargs]

    def get(self, slot: int | str) -> Any:
        return self.args[slot] if isinstance(slot, int) else self.kwargs[slot]

    def name(self, slot: int | str) -> str:
        if isinstance(slot, str):
            return slot
        return self.names[slot] if slot < len(self.names) else f"input {slot}"

    def replaced(self, slot: int | str, value: Any) -> Inputs:
        args, kwargs = list(self.args), dict(self.kwargs)
        if isinstance(slot, int):
            args[slot] = value
        else:
            kwargs[slot] = value
        return Inputs(args, kwargs, self.names)

    def transformed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        return Inputs(
            [transform(value, change) for value in self.args],
            {name: transform(value, change) for name, value in self.kwargs.items()},
            self.names,
        )


@dataclass(slots=True)
class Evaluation:
    """One forward, and its backward once `differentiate` has been called."""

    outputs: list[torch.Tensor]
    leaves: list[Leaf]
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    # The backward raised: there is no gradient to look at.
    refused: bool = False
    # What the code itself warned of.
    warned: list[str] = field(default_factory=list)

    @property
    def differentiable(self) -> list[torch.Tensor]:
        return [output for output in self.outputs if output.requires_grad and output.numel()]

    @property
    def finite_outputs(self) -> bool:
        return all(finite(output) for output in self.outputs)

    def bad_leaves(self) -> list[Leaf]:
        return [
            leaf
            for leaf, gradient in zip(self.leaves, self.gradients, strict=False)
            if gradient is not None and not finite(gradient)
        ]

    def differentiate(self) -> None:
        """With random weights on the outputs; places that hold an intended infinity get none."""
        wanted = self.differentiable
        if not wanted or not self.leaves:
            self.gradients = [None] * len(self.leaves)
            return
        cotangents = [
            torch.where(output.detach().isfinite(), cotangent, torch.zeros_like(cotangent))
            for output, cotangent in zip(wanted, _cotangents(wanted), strict=True)
        ]
        try:
            found = torch.autograd.grad(wanted, [leaf.tensor for leaf in self.leaves], cotangents, allow_unused=True)
        except Exception:
            self.refused = True
            self.gradients = [None] * len(self.leaves)
            return
        self.gradients = [None if g is None else (g.to_dense() if g.layout != torch.strided else g) for g in found]


class Subject:
    """`call` in one dtype. `module` is what holds the parameters and the state to be put back, if there is one."""

    def __init__(
        self,
        call: Callable[..., Any],
        module: torch.nn.Module | None,
        *,
        seed: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.dtype = dtype
        self.error = ""  # of the last call that raised
        self._call = call
        self._module = module
        self._seed = seed
        self._state = ModuleState(module)
        self._parameters = (
            [] if module is None else [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        )

    @property
    def called(self) -> Any:
        """The module, or else the function."""
        return self._module or self._call

    def in_dtype(self, dtype: torch.dtype) -> Subject | None:
        """The same function with parameters and inputs of `dtype`; None if it can't be copied."""
        if self._module is None:
            return Subject(self._call, None, seed=self._seed, dtype=dtype)
        if self._call is not self._module:
            return None
        try:
            self._state.restore()
            module: Any = copy.deepcopy(self._module)
            module.to(dtype)
        except Exception:
            return None
        return Subject(module, module, seed=self._seed, dtype=dtype)

    def run(
        self,
        inputs: Inputs,
        shifts: Mapping[str, torch.Tensor] | None = None,
        observer: Observer | None = None,
    ) -> Evaluation | None:
        """The outputs, or None if the call raises. `shifts` are added to the leaves of these names.

        `observer` is given what the call depends on, by name (parameters have none), and watches the call.
        """
        self._state.restore()
        reseed(self._seed)
        leaves: list[Leaf] = []
        moved = dict(shifts or {})
        called = Inputs(
            [transform(value, self._maker(inputs.name(i), leaves, moved)) for i, value in enumerate(inputs.args)],
            {name: transform(value, self._maker(name, leaves, moved)) for name, value in inputs.kwargs.items()},
        )
        called = called.transformed(torch.Tensor.clone)
        watching = nullcontext() if observer is None else observer(self._dependencies(called))
        leaves += [Leaf(name, parameter, is_input=False) for name, parameter in self._parameters]
        try:
            with self._shifted(moved), self._default_dtype(), listening() as warned, watching:
                result = self._call(*called.args, **called.kwargs)
        except Exception as error:
            self.error = describe_error(error)
            return None
        found = [value for _, value in tensors(result) if value.is_floating_point() or value.is_complex()]
        strided = [value for value in found if value.layout == torch.strided]
        return Evaluation(strided, leaves, warned=warned)

    def _dependencies(self, called: Inputs) -> list[tuple[str, torch.Tensor]]:
        given = [(str(slot), tensor) for slot in called.slots() for _, tensor in tensors(called.get(slot))]
        return [*given, *(("", parameter) for _, parameter in self._parameters)]

    def _maker(
        self, name: str, leaves: list[Leaf], shifts: Mapping[str, torch.Tensor]
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        def make(tensor: torch.Tensor) -> torch.Tensor:
            value = tensor.detach()
            if not (value.is_floating_point() or value.is_complex()) or value.layout != torch.strided:
                return value
            if self.dtype is not None:
                value = value.to(self.dtype.to_complex() if value.is_complex() else self.dtype)
            count = sum(leaf.name.partition(".")[0] == name for leaf in leaves)
            label = f"{name}.{count}" if count else name
            value = value + shifts[label].to(value.dtype) if label in shifts else value.clone()
            leaf = Leaf(label, value.requires_grad_(), is_input=True)
            leaves.append(leaf)
            return leaf.tensor

        return make

    @contextmanager
    def _shifted(self, shifts: Mapping[str, torch.Tensor]) -> Iterator[None]:
        moved = [(p, p.detach().clone(), shifts[name]) for name, p in self._parameters if name in shifts]
        with torch.no_grad():
            for parameter, _, shift in moved:
                parameter.add_(shift.to(parameter.dtype))
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value, _ in moved:
                    parameter.copy_(value)

    def _default_dtype(self) -> Any:
        # Constants that the code makes follow the default dtype: only float64 has to be asked for.
        return default_dtype(torch.float64 if self.dtype == torch.float64 else torch.get_default_dtype())


def finite(tensor: torch.Tensor) -> bool:
    # A sum is one pass and overflows only where elements are near the largest number: then the slow way decides.
    value = tensor.detach()
    return bool(value.sum().isfinite().all()) or bool(value.isfinite().all())


def _cotangents(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(_COTANGENT_SEED)
    return [
        torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype).to(output.device)
        for output in outputs
    ]


def weighted(outputs: Sequence[torch.Tensor]) -> float:
    """The sum of all outputs under the weights of the backward: what differences are taken of."""
    total = 0.0
    for output, weight in zip(outputs, _cotangents(outputs), strict=True):
        product = weight * output.detach()
        total += float(product.real.sum() if product.is_complex() else product.sum())
    return total
