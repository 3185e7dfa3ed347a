"""A gradient that ends where it should go on: detach, item, numpy, torch.tensor, a decision without slope.

Three things have to hold at the place: what goes in carries a gradient, what comes out carries none, and what comes
out still decides the output. The last is found out by moving it a little and calling again.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from gradproof_probe.nan_search.constructions import GIVEN, Construction
from gradproof_probe.suspicions.bench import Bench, Seen, close
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors

_DEPTH: Final = 4
_MOST_MOVED: Final = 6
# The value is replaced under a condition only: that it is whole without it says nothing.
_ON_A_BRANCH: Final = ("GP208",)
_STRETCH: Final = {1: 1.01, 2: 1.5, 3: -0.5}
_SHIFT: Final = {1: 0.01, 2: 1.0, 3: -1.0}


class Flow:
    """What passes the place: whether a gradient goes in and comes out; moves what comes out by `nudge`."""

    def __init__(self) -> None:
        self.calls = 0
        self.cut = 0
        self.kept = 0
        self.nudge = 0
        self._going_in = False

    def __call__(self, role: str, value: Any) -> Any:
        if role == "before":
            self._going_in = False
        elif role in ("part", "callee"):
            self._going_in = self._going_in or (torch.is_grad_enabled() and carries(value))
        elif role == "result":
            self.calls += 1
            went_in, self._going_in = self._going_in, False
            if carries(value):
                self.kept += 1
            elif went_in:
                self.cut += 1
                return moved(value, self.nudge) if self.nudge else value
        return value


class Cut:
    """The rules of `CUT_RULES`."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        reached = 0
        moved_nothing = 0
        alive = False
        kept = False
        for construction in bench.constructions():
            flow = Flow()
            with bench.watching(suspect, flow):
                seen = bench.call(construction=construction)
                reached += flow.calls
                kept = kept or bool(flow.kept)
                if flow.cut and seen.phase != "constructor":
                    found = self._reaches_the_output(bench, flow, seen, construction)
                    if found is not None:
                        return found
                    moved_nothing += 1
                    alive = alive or any(v is not None and bool(v.any()) for v in seen.gradients.values())
            # Saturated or rounded values may not show it at the first inputs.
            if moved_nothing >= _MOST_MOVED or (reached and not kept and construction is GIVEN):
                break
        if not reached:
            return not_reached("no call came to this line")
        if moved_nothing and not alive:
            return not_reached("what leaves this line without a gradient was moved, but no output moves with anything")
        if moved_nothing:
            return held("what leaves this line without a gradient was moved, and the outputs stayed as they were")
        if kept and suspect.rule in _ON_A_BRANCH:
            return not_reached("no input led to the constant that replaces the value here")
        if kept:
            return held("what comes out of this line still carries its gradient")
        return held("no gradient goes into this line")

    def _reaches_the_output(self, bench: Bench, flow: Flow, seen: Seen, construction: Construction) -> Answer | None:
        where = "" if construction is GIVEN else f", for {construction.description}"
        if seen.error is None and not seen.outputs:
            return confirmed(
                f"a value that carries a gradient goes into this line, and the call then returns no tensor{where}",
                input=construction.description,
            )
        for nudge in (1, 2, 3):
            flow.nudge = nudge
            other = bench.call(construction=construction, backward=False)
            flow.nudge = 0
            if not seen.outputs or len(other.outputs) != len(seen.outputs):
                continue
            if all(close(a, b, 1e-7) for a, b in zip(other.outputs, seen.outputs, strict=True)):
                continue
            lost = [name for name in seen.without_gradient() if seen.gradients]
            whose = f"; no gradient reaches {', '.join(lost[:3])}" if lost else ""
            return confirmed(
                "a value that carries a gradient goes into this line and comes out without one, and moving what comes "
                f"out changes the output{whose}{where}",
                shown_by="no gradient" if lost and construction is GIVEN else "",
                without_gradient=lost[:8],
                output_moved_by=_distance(other, seen),
                input=construction.description,
            )
        return None


def _distance(first: Seen, second: Seen) -> float:
    pairs = zip(first.outputs, second.outputs, strict=True)
    found = [
        float((a.to(torch.float64) - b.to(torch.float64)).abs().max())
        for a, b in pairs
        if a.shape == b.shape and a.numel() and not a.is_complex()
    ]
    return max((value for value in found if math.isfinite(value)), default=0.0)


def carries(value: Any) -> bool:
    """Whether a gradient can flow back through the value; distributions carry that of their parameters."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, torch.distributions.Distribution):
        return any(isinstance(item, torch.Tensor) and item.requires_grad for item in vars(value).values())
    if isinstance(value, list | tuple | dict):
        return any(tensor.requires_grad for _, tensor in tensors(value))
    receiver = getattr(value, "__self__", None)
    return isinstance(receiver, torch.Tensor) and receiver.requires_grad


def moved(value: Any, nudge: int, depth: int = 0) -> Any:
    """Another value of the same kind: a little away for 1, further up for 2, down for 3 (where it may be rounded).

    Whole numbers go up by one for 1, down by one for 2, and to 0 for 3.
    """
    if depth > _DEPTH:
        return value
    if isinstance(value, torch.Tensor):
        return _moved_tensor(value, nudge)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return {1: value + 1, 2: value - 1}.get(nudge, 0)
    if isinstance(value, float):
        return value * _STRETCH[nudge] + _SHIFT[nudge]
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(moved(item, nudge, depth + 1) for item in value)
    if type(value).__module__ == "numpy":
        return _moved_array(value, nudge)
    return value


def _moved_tensor(value: torch.Tensor, nudge: int) -> torch.Tensor:
    plain = value.detach()
    if plain.is_floating_point() or plain.is_complex():
        generator = torch.Generator().manual_seed(nudge)
        noise = torch.rand(plain.shape, generator=generator, dtype=torch.float64).to(plain.dtype)
        # Not the same for all: what is invariant to a shift or a scale must show as well.
        return plain * _STRETCH[nudge] + _SHIFT[nudge] * noise
    if plain.dtype == torch.bool:
        return ~plain
    if nudge == 1 and plain.numel() > 1 and not bool((plain == plain.flatten()[0]).all()):
        return plain.flatten().roll(1).reshape(plain.shape)  # keeps within the range that indices must keep
    return {1: plain + 1, 2: plain - 1}.get(nudge, torch.zeros_like(plain))


def _moved_array(value: Any, nudge: int) -> Any:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind in ("f", "c"):
        return (value * _STRETCH[nudge] + _SHIFT[nudge]).astype(value.dtype)
    if kind in ("i", "u"):
        return {1: value + 1, 2: value - 1}.get(nudge, value * 0)
    return ~value if kind == "b" else value
