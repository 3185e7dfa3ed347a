"""What backward does to the incoming gradient before it uses it: drops it, averages it, cuts it, misreads its memory.

Where the derivative can be had for any cotangent, each such misuse is tried: if the derivative for *that* cotangent is
what was returned, the misuse is proven whatever the function is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.formula import constant_words
from gradproof_probe.gradients.naming.pairs import Named

_HINT: Final = (
    "backward must multiply by grad_output element by element, whatever it is: not assume ones, not reduce it"
)


def _memory(g: torch.Tensor) -> torch.Tensor | None:
    """What a reader sees who takes the tensor for contiguous; None if that is the same, or beyond the storage."""
    if g.is_contiguous() or g.numel() > g.untyped_storage().nbytes() // g.element_size() - g.storage_offset():
        return None
    strides, step = [], 1
    for size in reversed(g.shape):
        strides.append(step)
        step *= size
    return torch.as_strided(g, g.shape, strides[::-1], g.storage_offset()).clone()


_Misuse = tuple[str, Callable[[torch.Tensor], torch.Tensor | None]]

_MISUSES: Final[tuple[_Misuse, ...]] = (
    ("all ones", torch.ones_like),
    ("its sign", torch.sgn),
    ("its absolute value", lambda g: g.abs().to(g.dtype)),
    ("its square", lambda g: g * g),
    ("cut to ±1", lambda g: None if g.is_complex() else g.clamp(-1, 1)),
    ("cut to ±0.5", lambda g: None if g.is_complex() else g.clamp(-0.5, 0.5)),
    ("its positive part", lambda g: None if g.is_complex() else g.clamp_min(0)),
    ("divided by its norm", lambda g: g / g.norm() if g.numel() > 1 else None),
    ("its complex conjugate", lambda g: g.conj().resolve_conj() if g.is_complex() else None),
    ("read as if its memory were contiguous", _memory),
    ("transposed", lambda g: g.mT.contiguous() if g.dim() > 1 and g.shape[-1] == g.shape[-2] else None),
    ("reversed along its last axis", lambda g: g.flip(-1) if g.dim() and g.shape[-1] > 1 else None),
)


def constant(item: Difference) -> Named | None:
    """As if one number came in everywhere."""
    return _as_if(item, _MISUSES[:1])


def misused(item: Difference) -> Named | None:
    """Any of the other misuses."""
    return _as_if(item, _MISUSES[1:])


def _as_if(item: Difference, misuses: Sequence[_Misuse]) -> Named | None:
    evidence = item.evidence
    if evidence.pull_back is None or not item.is_wrong:
        return None
    for said, change in misuses:
        changed = [change(g) for g in evidence.cotangents]
        if all(new is None for new in changed):
            continue
        given = tuple(old if new is None else new for old, new in zip(evidence.cotangents, changed, strict=True))
        candidate = evidence.pull_back(given)[item.place]
        factor = _factor(item, candidate)
        if factor is None:
            continue
        times = "" if abs(factor - 1) < 1e-6 else f" (times {words.number(factor)})"
        if said == "all ones":
            said, times = constant_words(factor, item), ""  # noqa: PLW2901
        return Named(
            "ignores_grad_output",
            f"the gradient for {item.name} is what belongs to an incoming gradient that is {said}{times}",
            {"as_if": said, "ratio": factor},
            "use strides, `reshape` or `.contiguous()` before grad_output's memory is read"
            if "memory" in said
            else _HINT,
        )
    return None


def _factor(item: Difference, candidate: torch.Tensor) -> float | None:
    if candidate.is_complex():
        return 1.0 if item.equals(candidate) else None
    values = item.pick(candidate)
    power = float((values * values).sum())
    if not power or item.r.is_complex():
        return None
    factor = float((values * item.a).sum()) / power
    many = item.a.numel() >= 3 or abs(factor - 1) < 1e-9
    return factor if many and abs(factor) > 1e-12 and item.explains(item.a - factor * values) else None
