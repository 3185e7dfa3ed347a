"""What a target gives at its ordinary inputs, in a few numbers: so that fixed code can be held against the original.

Each tensor becomes its shape, its norm and its products with three fixed random directions: two tensors that differ
anywhere differ in these, and a report has room for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from gradproof_probe.suspicions.bench import Bench, Seen

# An eps of 1e-6 inside a formula moves values of ordinary size by less.
TOLERANCE: Final = 1e-4
_DIRECTIONS: Final = 3
_MOST_TENSORS: Final = 60
# A product with a random direction is the norm of a difference times a number around 1.
_SLACK: Final = 5.0


def ordinary_values(bench: Bench) -> dict[str, Any]:
    """By name of output and gradient; empty where the call raises."""
    return described(bench.call())


def described(seen: Seen) -> dict[str, Any]:
    """What was seen, in numbers. Gradients are left out if backward raised."""
    found: dict[str, Any] = {f"output {number}": value for number, value in enumerate(seen.outputs)}
    found |= {f"gradient of {name}": value for name, value in seen.gradients.items() if value is not None}
    return {name: _digest(value) for name, value in list(found.items())[:_MOST_TENSORS]}


def deviation(before: Mapping[str, Any], after: Mapping[str, Any], *, outputs_only: bool) -> str:
    """The first name at which the two don't agree; empty if there is none. Names that only one has are left out."""
    for name, first in before.items():
        second = after.get(name)
        if second is None or (outputs_only and not name.startswith("output")):
            continue
        if not _agree(first, second):
            return name
    return ""


def _digest(value: torch.Tensor) -> dict[str, Any]:
    wide = value.detach()
    wide = torch.view_as_real(wide.resolve_conj()) if wide.is_complex() else wide
    flat = wide.to(torch.float64).flatten()
    generator = torch.Generator().manual_seed(5)
    products = []
    for _ in range(_DIRECTIONS):
        direction = torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        products.append(float(flat @ direction))
    return {"shape": list(value.shape), "norm": float(flat.norm()), "products": products}


def _agree(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    if first["shape"] != second["shape"]:
        return False
    numbers = [first["norm"], second["norm"], *first["products"], *second["products"]]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return True  # an original that is not finite is nothing to be held against
    allowed = TOLERANCE * _SLACK * max(first["norm"], second["norm"], 1e-9)
    pairs = zip([first["norm"], *first["products"]], [second["norm"], *second["products"]], strict=True)
    return all(abs(a - b) <= allowed for a, b in pairs)
