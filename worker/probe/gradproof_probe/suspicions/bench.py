"""Builds the target and calls it, forward and backward, while one place of it may be watched.

Everything is built anew for each call, constructor included, so that one call can't spoil the next; what a call raises
is part of what was seen. This module must not know what any suspicion is about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, innermost
from gradproof_probe.harness.constructors import parameters_of
from gradproof_probe.harness.recipe import Built, ExpressionError, Recipe, build, construct, default_dtype
from gradproof_probe.harness.trial import NO_DERIVATIVE
from gradproof_probe.importing import Resolved, describe_error
from gradproof_probe.nan_search.constructions import GIVEN, Construction, constructions
from gradproof_probe.nan_search.subject import Inputs
from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.instrument import watching
from gradproof_probe.suspicions.suspect import Answer, Suspect, not_reached
from gradproof_probe.trees import tensors, transform

Change = Callable[[Built], None]
_MOST_CONSTRUCTIONS: Final = 60


@dataclass(slots=True)
class Seen:
    """`gradients` are by the name of the leaf, None where nothing came. `error` ended the call, or its backward."""

    built: Built | None = None
    outputs: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    changed_inputs: list[str] = field(default_factory=list)
    differentiable: bool = False
    phase: str = "constructor"
    error: BaseException | None = None
    place: Place | None = None

    @property
    def words(self) -> str:
        return "" if self.error is None else describe_error(self.error)[:300]

    def without_gradient(self) -> list[str]:
        """The leaves that got none, or nothing but zeros."""
        return [name for name, value in self.gradients.items() if value is None or not bool(value.any())]


@dataclass(frozen=True, slots=True)
class Bench:
    """One target with its harness. `deadline` is monotonic seconds."""

    resolved: Resolved
    recipe: Recipe
    source_root: Path
    seed: int
    deadline: float

    def built(self) -> Built:
        """Target and inputs, new. Raises `ExpressionError`."""
        return build(self.resolved, self.recipe, seed=self.seed)

    def more(self) -> bool:
        return time.monotonic() < self.deadline

    def watching(self, suspect: Suspect, watch: Callable[[str, Any], Any], *, rebind: str = "") -> Any:
        return watching(self.source_root, suspect, watch, rebind=rebind)

    def unreached(self, suspect: Suspect) -> Answer | None:
        """That no call comes to the line of a suspicion, at the ordinary inputs; None if one does."""
        came: list[str] = []

        def watch(role: str, value: Any) -> Any:
            came.append(role)
            return value

        with self.watching(suspect, watch):
            seen = self.call(backward=False)
        if "before" in came:
            return None
        return not_reached(f"no call came to this line{': ' + seen.words if seen.error else ''}")

    def constructed(self, *, dtype: torch.dtype = torch.float32) -> torch.nn.Module | None:
        """A new instance; None if the target is no module. Raises `ExpressionError`."""
        with default_dtype(dtype):
            return construct(self.resolved, self.recipe.constructor, seed=self.seed)

    def constructions(self) -> Iterator[Construction]:
        """The ordinary inputs, then what data sets and training bring."""
        yield GIVEN
        try:
            built = self.built()
        except ExpressionError:
            return
        made = constructions(self.inputs(built), ignoring=False, emptying=True)
        for number, construction in enumerate(made):
            if number >= _MOST_CONSTRUCTIONS or not self.more():
                return
            yield construction

    def call(
        self,
        *,
        construction: Construction = GIVEN,
        change: Change | None = None,
        training: bool = True,
        draw: int = 0,
        backward: bool = True,
        steps: int = 1,
        inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
        dtype: torch.dtype = torch.float32,
    ) -> Seen:
        """`draw` varies what the call itself draws at random, not how the target and its inputs are built.

        `change` may alter what was built. `steps` calls follow each other on one instance, a backward after each.
        `inside` surrounds each forward. In another `dtype` constants follow it.
        """
        seen = Seen()
        try:
            with default_dtype(dtype):
                built = self.built()
                seen.built = built
                if built.instance is not None:
                    built.instance.train(training)
                inputs = construction.build(self.inputs(built))
                if inputs is None:
                    return seen
                built.args, built.kwargs = inputs.args, inputs.kwargs
                if change is not None:
                    change(built)
                for number in range(steps):
                    self._step(seen, built, draw + number, backward=backward, inside=inside)
                if built.instance is not None:
                    seen.buffers = {name: value.detach().clone() for name, value in built.instance.named_buffers()}
        except ExpressionError as error:
            seen.error = error.cause
        except Exception as error:
            seen.error = error
        if seen.error is not None:
            seen.place = innermost(seen.error.__traceback__, self.source_root)
        return seen

    def _step(
        self,
        seen: Seen,
        built: Built,
        draw: int,
        *,
        backward: bool,
        inside: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        leaves: list[tuple[str, torch.Tensor]] = []

        def leaf(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
            def make(tensor: torch.Tensor) -> torch.Tensor:
                value = tensor.detach().clone()
                if value.is_floating_point() or value.is_complex():
                    leaves.append((name, value.requires_grad_()))
                return value

            return make

        given = self.inputs(built)
        args = [transform(value, leaf(given.name(number))) for number, value in enumerate(built.args)]
        kwargs = {name: transform(value, leaf(name)) for name, value in built.kwargs.items()}
        # Clones, so that a forward that writes to its input doesn't meet a leaf.
        args = [transform(value, torch.Tensor.clone) for value in args]
        kwargs = {name: transform(value, torch.Tensor.clone) for name, value in kwargs.items()}
        before = [tensor.detach().clone() for _, tensor in tensors([args, kwargs])]
        reseed(self.seed + 100 + draw)
        seen.phase = "forward"
        with inside():
            result = built.call(*args, **kwargs)
        found = [value for _, value in tensors(result)]
        seen.outputs = [value.detach().clone() for value in found]
        seen.changed_inputs = [
            path for (path, now), then in zip(tensors([args, kwargs]), before, strict=True) if not same(now, then)
        ]
        module = built.instance
        if module is not None:
            leaves += [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        live = [v for v in found if v.requires_grad and (v.is_floating_point() or v.is_complex())]
        seen.differentiable = bool(live) and bool(leaves)
        if not backward or not leaves:
            return
        seen.phase = "backward"
        if not live:
            seen.gradients = dict.fromkeys((name for name, _ in leaves), None)
            return
        cotangents = _cotangents(live, self.seed)
        reseed(self.seed + 200 + draw)
        try:
            values = torch.autograd.grad(live, [tensor for _, tensor in leaves], cotangents, allow_unused=True)
        except RuntimeError as error:
            if NO_DERIVATIVE.search(str(error)):
                return
            raise
        dense = [None if v is None else (v if v.layout == torch.strided else v.to_dense()).detach() for v in values]
        seen.gradients = {name: value for (name, _), value in zip(leaves, dense, strict=True)}

    def inputs(self, built: Built) -> Inputs:
        """The arguments, with their names."""
        return Inputs(list(built.args), dict(built.kwargs), self._names())

    def _names(self) -> tuple[str, ...]:
        value: Any = self.resolved.value
        kind = self.resolved.target.kind
        try:
            names = [p.name for p in parameters_of(value if kind == "function" else value.forward)]
        except (TypeError, ValueError, AttributeError):
            return ()
        if kind == "function":
            return tuple(names)
        return tuple(names[1:] if names[:1] == ["ctx"] else names)


def _cotangents(outputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + 11)
    return [
        torch.randn(o.shape, generator=generator, dtype=torch.complex128 if o.is_complex() else torch.float64)
        .to(o.dtype)
        .to(o.device)
        for o in outputs
    ]


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Bit for bit, NaN equal to NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_floating_point() or first.is_complex():
        return bool(((first == second) | (first.isnan() & second.isnan())).all())
    return bool(torch.equal(first, second))


def differs(first: Seen, second: Seen, *, tolerance: float = 1e-4, buffers: bool = False) -> str:
    """What is not the same in two calls, in words; empty if nothing is. Rounding is no difference."""
    if len(first.outputs) != len(second.outputs):
        return "the number of outputs"
    for number, (a, b) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if not close(a, b, tolerance):
            return f"output {number}" if len(first.outputs) > 1 else "the output"
    for name in dict.fromkeys([*first.gradients, *second.gradients]):
        a_gradient, b_gradient = first.gradients.get(name), second.gradients.get(name)
        if a_gradient is None and b_gradient is None:
            continue
        if a_gradient is None or b_gradient is None:
            other = b_gradient if a_gradient is None else a_gradient
            assert other is not None
            if bool(other.any()):
                return f"the gradient of {name}"
        elif not close(a_gradient, b_gradient, tolerance):
            return f"the gradient of {name}"
    if buffers:
        for name in first.buffers.keys() & second.buffers.keys():
            if not close(first.buffers[name], second.buffers[name], tolerance):
                return f"the buffer {name}"
    return ""


def close(first: torch.Tensor, second: torch.Tensor, tolerance: float) -> bool:
    if first.shape != second.shape:
        return False
    if not (first.is_floating_point() or first.is_complex()):
        return bool(torch.equal(first, second))
    a, b = first.detach().to(torch.complex128), second.detach().to(torch.complex128)
    both = ~(a.isfinite() | b.isfinite())
    a, b = a.masked_fill(both, 0), b.masked_fill(both, 0)
    scale = max(float(b.abs().max()) if b.numel() else 0.0, 1e-12)
    return not b.numel() or float((a - b).abs().max()) <= tolerance * scale
