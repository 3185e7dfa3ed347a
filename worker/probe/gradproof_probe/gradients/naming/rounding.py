"""Errors of the size of a rounding: a gradient that went through a narrower type, or an epsilon that differs."""

from __future__ import annotations

from typing import Final

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named

# The narrowest first: what fits bfloat16 fits float32 too. Half a unit in the last place of each.
_TYPES: Final[tuple[tuple[str, torch.dtype, float], ...]] = (
    ("bfloat16", torch.bfloat16, 2.0**-9),
    ("float16", torch.float16, 2.0**-12),
    ("float32", torch.float32, 2.0**-25),
)
_FAMILIAR: Final = 1e-3  # an epsilon changes a gradient by less than this part, or it isn't called one


def rounded(item: Difference) -> Named | None:
    """Every element is a number of a narrower type, and the derivative's are not."""
    if not item.is_wrong or item.scale == 0:
        return None
    a, r = item.a, item.r
    relative = _relative(item)
    if not relative.numel() or float(relative.median()) > 0.05:
        return None
    mine = [a.real, a.imag] if a.is_complex() else [a]
    theirs = [r.real, r.imag] if r.is_complex() else [r]
    for name, dtype, unit in _TYPES:
        # Integers and halves are representable by accident. Then those of the derivative are too.
        if _fits(mine, dtype) and not _fits(theirs, dtype):
            return _named(item, name, unit, "every element is a number of that type")
    return None


def _fits(parts: list[torch.Tensor], dtype: torch.dtype) -> bool:
    return all(bool((part.to(dtype).to(part.dtype) == part).all()) for part in parts)


def _relative(item: Difference) -> torch.Tensor:
    told = item.r.abs() > 1e-6 * item.scale
    return (item.d.abs() / item.r.abs().clamp_min(1e-300))[told]


def rounded_on_the_way(item: Difference) -> Named | None:
    """Small errors of both signs: something inside was rounded, and the result was not."""
    if not item.is_wrong or item.r.is_complex():
        return None
    relative = _relative(item)
    if relative.numel() < 4:
        return None
    signs = torch.sign(item.d * item.r)[item.wrong]
    mixed = 0.1 < float((signs > 0).to(torch.float64).mean()) < 0.9
    middle, largest = float(relative.median()), item.largest / item.scale
    for name, _, unit in reversed(_TYPES):
        # Cancellation enlarges what was rounded; errors of bfloat16's size have other causes as well.
        room = 32 if name == "float32" else 2
        if mixed and unit / (2 * room) < middle < unit * room and largest < unit * room:
            return _named(item, name, unit, f"relative errors around {words.number(middle)}")
    return None


def _named(item: Difference, name: str, unit: float, why: str) -> Named:
    return Named(
        "rounded",
        f"the gradient for {item.name} is rounded to {name}: {why}",
        {"dtype": name, "unit": 2 * unit, "largest_difference": item.largest},
        f"look for a cast to {name} (`.float()`, `.half()`, a literal dtype, a saved tensor of another dtype)",
    )


def epsilon(item: Difference) -> Named | None:
    """A small error everywhere that is no rounding: another epsilon than forward's."""
    if item.r.is_complex() or item.r.numel() < 4 or not item.is_wrong:
        return None
    relative = float(item.d.norm() / item.r.norm().clamp_min(1e-300))
    if relative > _FAMILIAR or not bool(item.wrong[item.telling].to(torch.float64).mean() > 0.8):
        return None
    return Named(
        "different_epsilon",
        f"the gradient for {item.name} is off by a small part everywhere, {words.number(relative)} of its size",
        {"relative": relative},
        "an epsilon or a constant differs between forward and backward, or stands at another place in the formula",
    )
