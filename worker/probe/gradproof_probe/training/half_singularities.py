"""Inputs that data sets hold (rows of zeros, equal rows, constant rows) at which only half precision is not finite.

An eps that float16 can't hold is zero there: what it protects in float32 is then divided by zero. The inputs are those
of the search for NaN; the same call in float32 has to be finite at them, and to fit. Only values count: the gradient at
a protected singularity is one over the eps, which float16 can't hold even where the protection is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.equivalence.observation import Mode
from gradproof_probe.harness.recipe import Built, build
from gradproof_probe.nan_search.birth import Birth, watch
from gradproof_probe.nan_search.constructions import GIVEN, Construction, constructions
from gradproof_probe.nan_search.domains import left
from gradproof_probe.nan_search.subject import Evaluation, Inputs
from gradproof_probe.nan_search.subject import Subject as Called
from gradproof_probe.training.autocasting import Subject, lost, under_autocast

MOST: Final = 24  # constructions, the joint ones first


@dataclass(frozen=True, slots=True)
class Singular:
    """`birth` is the operation that made the first value that isn't finite; `of` names what isn't."""

    construction: Construction
    birth: Birth | None
    of: str


def ordinary(subject: Subject, mode: Mode, dtype: torch.dtype, names: Sequence[str]) -> Singular | None:
    """What is not finite in half precision at the ordinary inputs, gradients too, and where that begins."""
    return _Pair(subject, mode, dtype, names, subject.seed).at(GIVEN, gradients=True)


def search(
    subject: Subject,
    mode: Mode,
    dtype: torch.dtype,
    names: Sequence[str],
    more: Callable[[], bool],
    *,
    half_inputs: bool = False,
) -> Singular | None:
    """The first input of ordinary kind at which only half precision isn't finite, with other parameters as well."""
    pair = _Pair(subject, mode, dtype, names, subject.seed, half_inputs=half_inputs)
    natural = [item for item in constructions(pair.given, ignoring=False, emptying=False) if _natural(item)]
    for construction in natural[:MOST]:
        if not more():
            return None
        found = pair.at(construction)
        if found is None:
            continue
        other = _Pair(subject, mode, dtype, names, subject.seed + 1, half_inputs=half_inputs)
        if other.at(construction) is not None:
            return found
    return None


def _natural(construction: Construction) -> bool:
    """Other values, not another size: a loss over pairs has none in a batch of one."""
    return construction.naturalness == "natural" and not any(edit.expression == "x[:1]" for edit in construction.edits)


class _Pair:
    """The target in half precision and in its own."""

    def __init__(
        self,
        subject: Subject,
        mode: Mode,
        dtype: torch.dtype,
        names: Sequence[str],
        seed: int,
        *,
        half_inputs: bool = False,
    ) -> None:
        built: Built = build(subject.resolved, subject.recipe, seed=seed)
        if built.instance is not None:
            built.instance.train(mode == "train")
        narrow: Any = under_autocast(dtype, half_inputs=half_inputs)(built.call)
        self._root = subject.source_root
        self._narrow = Called(narrow, built.instance, seed=subject.seed)
        self._plain = Called(built.call, built.instance, seed=subject.seed)
        self.given = Inputs(built.args, built.kwargs, tuple(names))

    def at(self, construction: Construction, *, gradients: bool = False) -> Singular | None:
        inputs = construction.build(self.given)
        if inputs is None or left(self.given, inputs) is not None:
            return None
        narrow = self._evaluated(self._narrow, inputs, gradients=gradients)
        if narrow is None or (narrow.finite_outputs and not narrow.bad_leaves()):
            return None
        plain = self._evaluated(self._plain, inputs, gradients=gradients)
        of = None if plain is None else _lost(narrow, plain)
        if of is None:
            return None
        watched = watch(self._narrow, inputs, self._root)
        births = [] if watched is None else (watched.forward if of == "an output" else watched.backward)
        return Singular(construction, births[0] if births else None, of)

    @staticmethod
    def _evaluated(called: Called, inputs: Inputs, *, gradients: bool) -> Evaluation | None:
        found = called.run(inputs)
        if found is not None and gradients:
            found.differentiate()
        return found


def _lost(narrow: Evaluation, plain: Evaluation) -> str | None:
    """What is finite in its own precision alone."""
    for low, wide in zip(narrow.outputs, plain.outputs, strict=False):
        if low.shape == wide.shape and lost(low.detach(), wide.detach()):
            return "an output"
    if not narrow.finite_outputs or not plain.finite_outputs:
        return None
    for leaf, grad, wide_grad in zip(narrow.leaves, narrow.gradients, plain.gradients, strict=False):
        if grad is not None and wide_grad is not None and lost(grad, wide_grad):
            return f"the gradient of `{leaf.name}`"
    return None
