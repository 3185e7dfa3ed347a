"""Half and double precision: what overflows, what torch refuses, and what is of another dtype than the rest."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors, transform

_OVERFLOW: Final = re.compile(r"without overflow|out of range|overflow", re.IGNORECASE)
_SLACK: Final = 1
# Inputs of ordinary size and up to a thousand times that: what layers without a norm in front of them see.
_FACTORS: Final = tuple(2.0**power for power in range(13))


def _cast(dtype: torch.dtype, factor: float = 1.0) -> Any:
    def change(built: Built) -> None:
        def convert(tensor: torch.Tensor) -> torch.Tensor:
            return (tensor * factor).to(dtype) if tensor.is_floating_point() else tensor

        if built.instance is not None:
            built.instance.to(dtype)
        built.args = [transform(value, convert) for value in built.args]
        built.kwargs = {name: transform(value, convert) for name, value in built.kwargs.items()}

    return change


class _Values:
    """The floating tensors that pass the place."""

    def __init__(self) -> None:
        self.calls = 0
        self.parts: list[torch.Tensor] = []
        self.results: list[torch.Tensor] = []

    def __call__(self, role: str, value: Any) -> Any:
        if role == "before":
            self.calls += 1
        elif role in ("part", "result"):
            kept = self.parts if role == "part" else self.results
            kept += [tensor.detach().clone() for _, tensor in tensors(value) if tensor.is_floating_point()]
        return value


class HalfOverflow:
    """GP118, GP126: a number that float16 can't hold, where the result of the whole would fit."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        reached = False
        for factor in _FACTORS:
            if not bench.more():
                return not_reached("time ran out")
            half = _Values()
            with bench.watching(suspect, half):
                seen = bench.call(backward=False, change=_cast(torch.float16, factor))
            reached = reached or bool(half.calls)
            at_line = seen.place is not None and (
                seen.place.path == suspect.path
                and suspect.line - _SLACK <= seen.place.line <= suspect.end_line + _SLACK
            )
            if seen.error is not None and at_line and _OVERFLOW.search(str(seen.error)):
                return confirmed(f"in float16 this line raises: {seen.words}", error=seen.words)
            if not half.calls:
                return not_reached(f"in float16 no call came to this line{': ' + seen.words if seen.error else ''}")
            spilt = [value for value in [*half.parts, *half.results] if bool(value.isinf().any())]
            if not spilt:
                continue
            wide = _Values()
            with bench.watching(suspect, wide):
                bench.call(backward=False, change=_cast(torch.float32, factor))
            whole = wide.results
            if whole and all(bool((value.abs() < torch.finfo(torch.float16).max).all()) for value in whole):
                return confirmed(
                    f"in float16 a value on this line overflows for inputs {factor:g} times as large as ordinary ones, "
                    f"where in float32 the result is at most {max(float(v.abs().max()) for v in whole):.4g}",
                    factor=factor,
                )
            return held(f"in float16 this line overflows only where its result does (inputs times {factor:g})")
        return (
            held("in float16 nothing overflows here up to inputs 4096 times as large")
            if reached
            else not_reached("no call came to this line")
        )


class OtherDtype:
    """GP603, GP610: a value that does not have the dtype of the module and its inputs."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        # What numpy makes is float64: that shows in a float32 run. What torch makes is float32: in a float64 one.
        dtype = torch.float32 if suspect.rule == "GP610" else torch.float64
        values = _Values()
        with bench.watching(suspect, values):
            seen = bench.call(backward=False, change=_cast(dtype))
        if not values.calls:
            return not_reached(f"no call came to this line{': ' + seen.words if seen.error else ''}")
        others = {str(value.dtype) for value in values.results if value.dtype != dtype}
        if others:
            said = f", and the call raises: {seen.words}" if seen.error else ""
            return confirmed(f"in a call in {dtype} what this line makes is {', '.join(sorted(others))}{said}")
        return held(f"in a call in {dtype} what this line makes is {dtype} too")
