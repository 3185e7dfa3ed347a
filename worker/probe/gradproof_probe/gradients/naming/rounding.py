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
    if not item.is_wrong or item.scale == 0:
        return None
    a, r = item.a, item.r
    parts = [a.real, a.imag] if a.is_complex() else [a]
    told = r.abs() > 1e-6 * item.scale
    relative = (item.d.abs() / r.abs().clamp_min(1e-300))[told]
    if not relative.numel() or float(relative.median()) > 0.05:
        return None
    for name, dtype, unit in _TYPES:
        fits = all(bool((part.to(dtype).to(part.dtype) == part).all()) for part in parts)
        # Representable by accident: integers and halves are. Then the derivative would be too.
        if fits and (r.is_complex() or not bool((r.to(dtype).to(r.dtype) == r).all())):
            return _named(item, name, unit, "every element is a number of that type")
    # Rounded on the way: errors of that size and of both signs.
    if not r.is_complex() and float(relative.max()) < 0.1:
        signs = torch.sign(item.d * r)[told & item.wrong]
        mixed = signs.numel() >= 4 and 0.15 < float((signs > 0).to(torch.float64).mean()) < 0.85
        middle = float(relative.median())
        for name, _, unit in reversed(_TYPES):
            if mixed and unit / 64 < middle < unit * 64 and float(relative.median()) * 1e4 > float(relative.max()):
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
    """A small error of one sign, everywhere: another epsilon than forward's."""
    if item.r.is_complex() or item.r.numel() < 4 or not item.is_wrong:
        return None
    told = item.r.abs() > 1e-6 * item.scale
    relative = (item.d / torch.where(told, item.r, 1.0))[told]
    if relative.numel() < 4 or float(relative.abs().max()) > _FAMILIAR:
        return None
    if not (bool((relative > 0).all()) or bool((relative < 0).all())):
        return None
    return Named(
        "different_epsilon",
        f"the gradient for {item.name} is off by a small part everywhere, {words.number(float(relative.abs().min()))} "
        f"to {words.number(float(relative.abs().max()))}, in one direction",
        {"relative_from": float(relative.abs().min()), "relative_to": float(relative.abs().max())},
        "an epsilon or a constant differs between forward and backward, or stands at another place in the formula",
    )
