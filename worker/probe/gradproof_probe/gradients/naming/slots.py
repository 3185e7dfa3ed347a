"""A right gradient in a wrong place: the derivative of another input, or of an output that it doesn't belong to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Evidence, Named


def exchanged(wrong: Sequence[Difference]) -> Named | None:
    """Two gradients in each other's place: one slip that explains both."""
    for place, one in enumerate(wrong):
        for two in wrong[place + 1 :]:
            if one.shape == two.shape and one.equals(two.reference) and two.equals(one.reference):
                return Named(
                    "swapped_gradients",
                    f"the gradients for {one.name} and {two.name} are in each other's place",
                    {"inputs": [one.pair.ordinal, two.pair.ordinal]},
                    "the returned tuple must be in the order of forward's arguments",
                )
    return None


def misplaced(wrong: Sequence[Difference], evidence: Evidence) -> Named | None:
    """The derivative of another input."""
    for item in wrong:
        for other in evidence.pairs:
            if other is item.pair or tuple(other.reference.shape) != item.shape:
                continue
            if bool((other.reference.nan_to_num().abs() > item.floor).any()) and item.equals(other.reference):
                return Named(
                    "swapped_gradients",
                    f"the gradient returned for {item.name} is the derivative for {other.name}",
                    {"input": item.pair.ordinal, "belongs_to": other.ordinal},
                    "the returned tuple must be in the order of forward's arguments, one gradient for each",
                )
    return None


def other_outputs(item: Difference) -> Named | None:
    """Cotangents of several outputs left out or taken for each other. Asks the reference."""
    evidence = item.evidence
    given = evidence.cotangents
    if evidence.pull_back is None or len(given) < 2 or not item.is_wrong:
        return None
    for left_out in range(len(given)):
        reduced = (*given[:left_out], torch.zeros_like(given[left_out]), *given[left_out + 1 :])
        if item.equals(evidence.pull_back(reduced)[item.place]):
            return Named(
                "missing_term",
                f"the gradient for {item.name} lacks what comes in through output {left_out}",
                {"output": left_out},
                f"backward doesn't use the incoming gradient of output {left_out}",
            )
        ones = (*given[:left_out], torch.ones_like(given[left_out]), *given[left_out + 1 :])
        if item.equals(evidence.pull_back(ones)[item.place]):
            return Named(
                "ignores_grad_output",
                f"the gradient for {item.name} is as if all ones came in through output {left_out}",
                {"output": left_out, "as_if": "all ones"},
                f"multiply by the incoming gradient of output {left_out}, element by element",
            )
    for one in range(len(given)):
        for two in range(one + 1, len(given)):
            if given[one].shape != given[two].shape:
                continue
            exchanged = list(given)
            exchanged[one], exchanged[two] = exchanged[two], exchanged[one]
            if item.equals(evidence.pull_back(tuple(exchanged))[item.place]):
                return Named(
                    "swapped_grad_outputs",
                    f"the gradient for {item.name} takes the incoming gradients of outputs {one} and {two} for each "
                    "other",
                    {"outputs": [one, two]},
                    "the arguments of backward come in the order of forward's outputs",
                )
    return None
