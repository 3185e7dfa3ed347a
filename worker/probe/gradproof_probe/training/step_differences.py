"""What two runs of the same training steps don't have in common. It must not know how they were run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradproof_probe.equivalence.observation import norm, relative_error
from gradproof_probe.training.checkpointing import Steps


@dataclass(frozen=True, slots=True)
class Difference:
    """`kind`: output, gradient, buffer, attribute, input. `missing`: a gradient that does not come at all."""

    name: str
    kind: str
    relative: float
    missing: bool = False

    @property
    def text(self) -> str:
        if self.missing:
            return f"{self.name} is missing"
        size = "is another" if self.relative == float("inf") else f"differs by {self.relative:.1e} of its size"
        return f"{self.name} {size}"

    @property
    def attribute(self) -> str:
        """The last name of a plain attribute."""
        return self.name.rpartition(".")[2].rpartition(" ")[2]

    @property
    def of_input(self) -> bool:
        return self.kind == "gradient" and "gradient of input" in self.name


def differences(expected: Steps, got: Steps, limit: float) -> list[Difference]:
    """What differs by more than a share `limit` of its size, the worst first.

    A gradient is judged by the largest one of its step, should it be next to nothing itself; one that is missing is the
    same as one that is zero.
    """
    found: list[Difference] = []
    largest: dict[str, float] = {}
    for name, value in expected.values.items():
        step, _, what = name.partition(": ")
        if what.startswith("gradient"):
            largest[step] = max(largest.get(step, 0.0), norm(value))
    for name in dict.fromkeys([*expected.values, *got.values]):
        step, _, what = name.partition(": ")
        kind = what.split(" ", 1)[0].split("[", 1)[0].split(".", 1)[0]
        a, b = expected.values.get(name), got.values.get(name)
        if a is None or b is None:
            one = a if a is not None else b
            if kind != "gradient" or (one is not None and bool(one.any())):
                found.append(Difference(name, kind, float("inf"), missing=b is None))
            continue
        error = _error(a, b, largest.get(step, 0.0) if kind == "gradient" else 0.0)
        if error > limit:
            found.append(Difference(name, kind, error))
    for name in dict.fromkeys([*expected.kept, *got.kept]):
        error = _leaves_error(expected.kept.get(name, {}), got.kept.get(name, {}))
        if error > limit:
            found.append(Difference(name, "attribute", error))
    return sorted(found, key=lambda item: -item.relative)


def _error(expected: torch.Tensor, got: torch.Tensor, largest: float) -> float:
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return float("inf")
    if expected.is_floating_point() or expected.is_complex():
        bad, also_bad = ~torch.isfinite(expected), ~torch.isfinite(got)
        return float("inf") if not torch.equal(bad, also_bad) else relative_error(got, expected, largest)
    return 0.0 if torch.equal(expected, got) else float("inf")


def _leaves_error(expected: Mapping[str, Any], got: Mapping[str, Any]) -> float:
    if expected.keys() != got.keys():
        return float("inf")
    worst = 0.0
    for path, a in expected.items():
        b = got[path]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            worst = max(worst, _error(a.detach(), b.detach(), 0.0))
        elif isinstance(a, float) and isinstance(b, float):
            unequal = a != b and not (math.isnan(a) and math.isnan(b))
            worst = max(worst, abs(a - b) / max(abs(a), 1e-300) if unequal else 0.0)
        elif isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or a != b:
            worst = float("inf")
    return worst
