"""From both gradients of every input to the slip that makes the one of the other, in a sentence with numbers.

The rules go from the simple to the far-fetched: a factor before a formula, a formula before a term that couples rows.
A rule speaks only if what it says explains all of the difference up to rounding, so the first that speaks is right or
at least equal to what is. Where none does, the worst coordinate is told and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.conditions import conditional
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.formula import formula, returned_formula, two_terms
from gradproof_probe.gradients.naming.incoming import constant, misused
from gradproof_probe.gradients.naming.order import reordered
from gradproof_probe.gradients.naming.pairs import Evidence, GradientPair, Named, PullBack
from gradproof_probe.gradients.naming.places import local, mostly_wrong, scattered
from gradproof_probe.gradients.naming.reductions import composed
from gradproof_probe.gradients.naming.rounding import epsilon, rounded, rounded_on_the_way
from gradproof_probe.gradients.naming.slots import exchanged, misplaced, other_outputs
from gradproof_probe.gradients.naming.terms import broken_invariance, collapsed, coupled, mixed, slice_ratios
from gradproof_probe.gradients.naming.whole import conjugate, missing, no_dependence, not_finite, ratio, scaled

__all__ = ["Evidence", "GradientPair", "Named", "PullBack", "name_cause"]

Rule = Callable[[Difference], Named | None]

_FIRST: Final[tuple[Rule, ...]] = (not_finite, missing)
_RULES: Final[tuple[Rule, ...]] = (
    conjugate,
    reordered,
    rounded,
    no_dependence,
    other_outputs,
    local,
    formula,
    constant,
    collapsed,
    slice_ratios,
    coupled,
    two_terms,
    composed,
    mixed,
    returned_formula,
    mostly_wrong,
    rounded_on_the_way,
    scattered,
    epsilon,
    misused,
    broken_invariance,
)


def name_cause(evidence: Evidence) -> Named:
    """The cause of the wrong gradients, with the situation it takes to see it."""
    return conditional(evidence.situation, _pattern(_in_double(evidence)))


def _in_double(evidence: Evidence) -> Evidence:
    """Everything on the CPU and in double precision: rules combine the tensors freely."""
    return replace(
        evidence,
        pairs=tuple(
            replace(
                pair,
                value=_double(pair.value),
                analytic=_double(pair.analytic),
                reference=_double(pair.reference),
            )
            for pair in evidence.pairs
        ),
        cotangents=tuple(_double(item) for item in evidence.cotangents),
        outputs=tuple(_double(item) for item in evidence.outputs),
    )


def _double(values: torch.Tensor) -> torch.Tensor:
    # `to` keeps strides: they tell of an incoming gradient whose memory was misread.
    return values.detach().to("cpu", torch.complex128 if values.is_complex() else torch.float64)


def _pattern(evidence: Evidence) -> Named:
    differences = [Difference(pair, evidence) for pair in evidence.pairs]
    wrong = [item for item in differences if item.is_wrong or not_finite(item)]
    if not wrong:
        return Named(
            "wrong_gradient",
            "the gradient differs along random directions, at no single coordinate looked at",
            {},
            "look at how much of backward the differing directions share: the sum of many small errors",
        )
    # Where more elements say the same, a rule can be surer: a factor of a bias of two elements may be an accident.
    wrong.sort(key=lambda item: (-min(int(item.telling.sum()), 8), item.pair.ordinal))
    named = _first(_FIRST, wrong) or exchanged(wrong) or _first((ratio,), wrong)
    named = named or misplaced(wrong, evidence) or _first(_RULES, wrong)
    named = named or _unnamed(max(wrong, key=lambda item: item.largest))
    right = [item.name for item in differences if item not in wrong]
    return replace(named, numbers={**named.numbers, "wrong": [item.name for item in wrong], "right": right})


def _first(rules: Sequence[Rule], wrong: Sequence[Difference]) -> Named | None:
    """What the first rule says that says anything of any of the gradients."""
    for rule in rules:
        for item in wrong:
            named = rule(item)
            if named is not None:
                return _for_all(named, rule, item, wrong)
    return None


def _for_all(named: Named, rule: Rule, item: Difference, wrong: Sequence[Difference]) -> Named:
    """The same slip at several inputs is said once."""
    rest = [other for other in wrong if other is not item]
    if not rest:
        return named
    alike = []
    for other in rest:
        said = rule(other)
        if said is not None and said.cause == named.cause and said.numbers.get("ratio") == named.numbers.get("ratio"):
            alike.append(other.name)
    others = [other.name for other in rest if other.name not in alike]
    text = named.text
    if alike:
        text += f"; likewise for {words.listing(alike)}"
    if others:
        text += f"; also wrong, in another way: {words.listing(others)}"
    return replace(named, text=text)


def _unnamed(item: Difference) -> Named:
    if item.r.numel() == 1 and item.r[0] != 0:
        return scaled(item, complex(item.a[0] / item.r[0]))
    place = item.worst()
    returned, derivative = item.analytic[place].item(), item.reference[place].item()
    count = int(item.wrong.sum())
    return Named(
        "wrong_gradient",
        f"the gradient for {item.name} is wrong at {count} of {item.r.numel()} elements, most at {words.place(place)}: "
        f"{words.number(returned)} returned, {words.number(derivative)} is the derivative",
        {"index": list(place), "wrong_elements": count, "compared": item.r.numel()},
        "no simple slip makes the one of the other: differentiate forward again, step by step",
    )
