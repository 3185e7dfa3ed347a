"""Slips that do the same to every element: no gradient at all, a factor, a sign, a conjugate that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.shapes import spreads

_NOT_FINITE_HINT: Final = "look for a division, logarithm or root of something that can be zero, or inf - inf"
_MISSING_HINT: Final = (
    "backward returns zeros in this place, or multiplies by a mask or a saved tensor that is zero everywhere"
)
_SIGN_HINT: Final = "look for a minus sign too many or too few in the product that makes this gradient"
_SCALE_HINT: Final = "look for a constant factor that forward applies and backward doesn't, or the other way round"


def not_finite(item: Difference) -> Named | None:
    """NaN or infinite where the derivative is a number."""
    bad = ~torch.isfinite(item.analytic) & torch.isfinite(item.reference)
    count = int(bad.sum())
    if not count:
        return None
    first = item.index(int(bad.reshape(-1).nonzero()[0]))
    value = item.analytic[first].item()
    return Named(
        "not_finite",
        f"the gradient for {item.name} is {value} at {words.place(first)} "
        f"({count} of {bad.numel()} elements), where the derivative is {words.number(item.reference[first].item())}",
        {"elements": count, "of": bad.numel(), "index": list(first)},
        _NOT_FINITE_HINT,
    )


def missing(item: Difference) -> Named | None:
    """Zero everywhere."""
    if not item.is_wrong or bool((item.a.abs() > 1e-12 * item.scale).any()):
        return None
    if not item.complete and not item.narrowed and bool((item.analytic.nan_to_num().abs() > 1e-12 * item.scale).any()):
        return None
    largest = float(item.r.abs().max())
    hint = _MISSING_HINT
    if not item.narrowed and _zero_for_ones(item):
        # Zeros by rounding, not by decree.
        if bool(item.analytic.any()):
            return Named(
                "ignores_grad_output",
                f"the gradient for {item.name} is zero, as it would be if all ones came in (derivatives up to "
                f"{words.number(largest)})",
                {"largest_derivative": largest, "as_if": "all ones"},
                "backward must use grad_output element by element, whatever it is: not assume ones, not reduce it",
            )
        hint += "; it would also be zero if grad_output were taken for all ones"
    return Named(
        "missing_gradient",
        f"the gradient for {item.name} is zero, though the output depends on it (derivatives up to "
        f"{words.number(largest)})",
        {"largest_derivative": largest},
        hint,
    )


def _zero_for_ones(item: Difference) -> bool:
    """After a normalisation the derivative of the plain sum is zero: backward may have taken that."""
    if item.evidence.pull_back is None:
        return False
    ones = tuple(torch.ones_like(g) for g in item.evidence.cotangents)
    return bool((item.evidence.pull_back(ones)[item.place].abs() <= 1e-9 * item.scale).all())


def no_dependence(item: Difference) -> Named | None:
    """A gradient where the derivative is zero everywhere: a surrogate, or a gradient in the wrong place."""
    if not item.is_wrong or bool((item.r.abs() > max(item.floor, 1e-12 * item.scale)).any()):
        return None
    largest = float(item.a.abs().max())
    return Named(
        "unexpected_gradient",
        f"the output doesn't change with {item.name}, but it gets a gradient of up to {words.number(largest)}",
        {"largest": largest},
        "the gradient belongs to another input, or forward detaches, rounds or compares what backward takes for smooth",
    )


def ratio(item: Difference) -> Named | None:
    """One factor for every element."""
    factor = constant_ratio(item)
    if factor is None:
        return None
    return scaled(item, factor)


def constant_ratio(item: Difference) -> complex | None:
    """The c with analytic = c · derivative, if there is one and enough elements to tell."""
    power = float((item.r.abs() ** 2).sum())
    if not item.is_wrong or not power:
        return None
    factor = complex((item.a * item.r.conj()).sum() / power)
    if not item.explains(item.a - (factor if factor.imag else factor.real) * item.r, item.a):
        return None
    # A single element always has a ratio: that is a finding only if the number means something.
    count = int((item.r.abs() > 1e-6 * float(item.r.abs().max())).sum())
    if count < 2 and not (abs(factor + 1) < 1e-6 or words.meaning(factor.real, item.pair, item.evidence)):
        return None
    return factor if abs(factor) > 1e-9 else None


def scaled(item: Difference, factor: complex) -> Named:
    if abs(factor.imag) > 1e-6 * abs(factor):
        return Named(
            "scaled_gradient",
            f"the gradient for {item.name} is the derivative times {words.number(factor)}",
            {"ratio": [factor.real, factor.imag]},
            "a factor i, or a conjugate of it, is lost: the factor of a linear complex function is conjugated",
        )
    value = factor.real
    if abs(value + 1) < 1e-6:
        return Named("wrong_sign", f"the gradient for {item.name} has the wrong sign", {"ratio": -1.0}, _SIGN_HINT)
    tolerance = max(1e-6, 3 * item.floor / max(item.scale, 1e-300))
    said = words.meaning(value, item.pair, item.evidence, tolerance)
    numbers = {"ratio": value, "meaning": said}
    start = f"the gradient for {item.name} is {words.number(value)} times the derivative"
    if said == "1 / the incoming gradient":
        return Named(
            "ignores_grad_output",
            f"{start}, 1 / the incoming gradient: it is not multiplied by what comes in",
            numbers,
            "multiply by grad_output: a loss is often scaled, weighted or summed after this function",
        )
    if said == "the incoming gradient":
        return Named(
            "scaled_gradient",
            f"{start}, the incoming gradient: it is multiplied twice",
            numbers,
            "grad_output is multiplied into a factor that holds it already",
        )
    return Named(
        "scaled_gradient",
        f"{start}{_plain(value, said)}",
        numbers,
        _scale_hint(value, said),
    )


def _plain(value: float, said: str) -> str:
    if not said or said in {"2", "3", "4"}:
        return ""
    return f" ({'minus ' if value < 0 else ''}{said})"


def _scale_hint(value: float, said: str) -> str:
    if " for n = " in said:
        form, _, which = said.partition(" for n = ")
        which = which.partition(", ")[2]
        if form == "1 / n":
            return f"look for a mean where a sum belongs, or a division by {which} that forward doesn't do"
        if form == "n":
            return f"look for a sum where a mean belongs: forward divides by {which}, backward doesn't"
        if "root" in form:
            return f"look for the factor 1 / the root of {which}: it belongs into the gradient exactly once"
        if form in {"n / (n - 1)", "(n - 1) / n"}:
            return "forward and backward differ in the divisor of the variance, n or n - 1"
    if said == "2" or (said == "1/2" and value > 0):
        return "look for a factor 2: the derivative of a square, a term added twice, or one of two equal terms"
    return _SCALE_HINT


def conjugate(item: Difference) -> Named | None:
    """Complex slips."""
    if not item.reference.is_complex() or not item.is_wrong:
        return None
    if item.explains(item.a - item.r.conj()):
        return Named(
            "missing_conjugate",
            f"the gradient for {item.name} is the complex conjugate of the derivative",
            {},
            "a gradient is grad_output times the conjugate of the derivative: look for a `.conj()` that is missing",
        )
    if item.explains(item.a + item.r.conj()):
        return Named(
            "missing_conjugate",
            f"the gradient for {item.name} is minus the complex conjugate of the derivative",
            {},
            "look for a `.conj()` that is missing and a sign",
        )
    for name, values in _complex_factors(item):
        if item.explains((item.a * values.conj() - item.r * values) / values.abs().clamp_min(1e-300)):
            return Named(
                "missing_conjugate",
                f"the gradient for {item.name} has {name} as a factor where its complex conjugate belongs",
                {"factor": name},
                f"a gradient is grad_output times the conjugate of the derivative: use {name}.conj()",
            )
    if not bool(item.a.imag.any()) and bool((item.r.imag.abs() > 1e-3 * item.scale).any()):
        right = item.explains(item.a.real - item.r.real + 0j)
        return Named(
            "dropped_part",
            f"the gradient for {item.name} has lost its imaginary part: the real part is "
            f"{'right' if right else 'wrong too'}",
            {"lost": "imaginary"},
            "look for `.real`, `.abs()` or a cast to a real dtype",
        )
    middle = item.d.mean()
    if item.d.numel() >= 3 and item.explains(item.d - middle):
        return Named(
            "constant_offset",
            f"the gradient for {item.name} is the derivative plus {words.number(complex(middle))} at every element",
            {"constant": [float(middle.real), float(middle.imag)]},
            "something is added that is the same for every element",
        )
    for part, values, lost in (("imaginary", 1j * item.r.imag, "real"),):
        if item.explains(item.a - values):
            return Named(
                "dropped_part",
                f"the gradient for {item.name} has lost its {lost} part: the {part} part is right",
                {"lost": lost},
                "look for `.real`, `.imag`, `.abs()` or a cast to a real dtype",
            )
    return None


def _complex_factors(item: Difference) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that the derivative may be a product with, at the known coordinates."""
    evidence = item.evidence
    named = [(pair.name, pair.value) for pair in evidence.pairs] + [("output", output) for output in evidence.outputs]
    for name, tensor in named:
        if tensor.is_complex():
            for values in spreads(tensor, item.shape):
                yield name, item.pick(values)
