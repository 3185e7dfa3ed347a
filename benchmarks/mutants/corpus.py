"""The wrong Functions of a right one: every kind and slip that applies, and of these the ones that are truly wrong."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import torch

from benchmarks.mutants import functions
from benchmarks.mutants.draws import Inputs
from benchmarks.mutants.kinds import KINDS, Kind
from benchmarks.mutants.register import REGISTERED, Function, Right
from benchmarks.mutants.rewriting import form_of, with_edit, with_slip
from benchmarks.mutants.triggers import TRIGGERS, call, cotangents, leaves, required

FORMULA = "hand-written formula"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong Function, with all that is known about it. `causes`: the names that fit; empty where none does."""

    right: Right
    kind: str
    group: str
    function: Function
    causes: tuple[str, ...]
    trigger: str
    form: str
    slip: str = ""

    @property
    def name(self) -> str:
        """The class name: unique."""
        return self.function.__name__

    @property
    def formula(self) -> bool:
        """Whether it is a slip in this very formula, not one that any Function can have."""
        return self.kind == FORMULA

    def inputs(self, elements: int, seed: int = 0) -> Inputs:
        """Ordinary inputs: nothing about them betrays the fault."""
        return self.right.inputs(elements, "normal", seed)

    def truly_wrong(self) -> bool:
        """Whether its gradient differs from the right one in the situation that it is made for."""
        torch.manual_seed(0)
        return TRIGGERS[self.trigger](self.right, self.function)


@cache
def rights() -> tuple[Right, ...]:
    """Every right Function of every family."""
    for module in pkgutil.iter_modules(functions.__path__):
        importlib.import_module(f"{functions.__name__}.{module.name}")
    return tuple(sorted(REGISTERED, key=lambda right: (right.family, right.name)))


@dataclass(frozen=True, slots=True)
class Profile:
    """What the right Function does at ordinary inputs: positions of gradients, shapes, and of inputs among saved."""

    slots: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    saved: tuple[int | None, ...]
    kept_at: int | None
    outputs: int


def profile(right: Right) -> Profile:
    """By one call and one backward."""
    arguments = leaves(right.inputs(30))
    outputs = call(right, right.function, arguments)
    node = outputs[0].grad_fn
    kept = list(node.saved_tensors) if node is not None else []
    gradients = torch.autograd.grad(outputs, required(arguments), cotangents(outputs), allow_unused=True)
    positions = [i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor) and value.requires_grad]
    slots = [i for i, gradient in zip(positions, gradients, strict=True) if gradient is not None]
    saved = [next((at for at, tensor in enumerate(kept) if tensor is arguments[slot]), None) for slot in slots]
    watched = [*required(arguments), *outputs]
    kept_at = next((at for at, tensor in enumerate(kept) if any(tensor is value for value in watched)), None)
    shapes = tuple(tuple(arguments[slot].shape) for slot in slots)
    return Profile(tuple(slots), shapes, tuple(saved), kept_at, len(outputs))


def places(right: Right, kind: Kind, known: Profile) -> dict[str, str] | None:
    """What fills the kind's places for this Function; None where it doesn't apply."""
    fitting = [i for i in range(len(known.slots)) if not kind.needs("saved") or known.saved[i] is not None]
    if kind.needs("second_grad") and known.outputs < 2:
        return None
    if kind.needs("kept_at") and known.kept_at is None:
        return None
    pairs = list(itertools.permutations(fitting, 2))
    if kind.needs("other"):
        pairs = [(i, j) for i, j in pairs if known.shapes[i] == known.shapes[j]]
    choices = pairs if kind.needs("other") or kind.needs("sibling") else [(i, i) for i in fitting]
    if not choices:
        return None
    chosen, other = choices[zlib.crc32(f"{kind.name} {right.name}".encode()) % len(choices)]
    return {
        "slot": str(known.slots[chosen]),
        "other": str(known.slots[other]),
        "sibling": str(known.slots[other]),
        "saved": str(known.saved[chosen]),
        "saved_other": str(known.saved[other]),
        "kept_at": str(known.kept_at),
    }


def _any_kind(_: str) -> bool:
    return True


def candidates(
    right: Right, kinds: Iterable[Kind] = KINDS, wanted: Callable[[str], bool] = _any_kind
) -> Iterator[Mutant]:
    """Every kind that can be made of this Function, whether or not it changes anything."""
    known = profile(right)
    for kind in kinds:
        if not wanted(kind.name):
            continue
        words = places(right, kind, known)
        if words is None:
            continue
        function = with_edit(right, kind.name, kind.edit, words)
        form = form_of(right, kind.name, kind.edit)
        yield Mutant(right, kind.name, kind.group, function, kind.causes, kind.trigger, form)


def slips(right: Right) -> Iterator[Mutant]:
    """The hand-written slips in this Function's formulas."""
    for slip in right.slips:
        function = with_slip(right, slip)
        yield Mutant(right, FORMULA, "ordinary", function, slip.causes, slip.trigger, "text", slip.name)


def mutants(right: Right, wanted: Callable[[str], bool] = _any_kind) -> Iterator[Mutant]:
    """All that are truly wrong. One that changes nothing, or that raises in its own situation, is left out."""
    for mutant in itertools.chain(candidates(right, KINDS, wanted), slips(right) if wanted(FORMULA) else ()):
        if wrong(mutant):
            yield mutant


def wrong(mutant: Mutant) -> bool:
    """`truly_wrong`; one that raises isn't silently wrong, and no case for a gradient check."""
    try:
        return mutant.truly_wrong()
    except (RuntimeError, IndexError, TypeError, AttributeError, ValueError):
        return False
