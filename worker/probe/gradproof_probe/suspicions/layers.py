"""Layers that are built, or called, for nothing: their parameters get no gradient."""

from __future__ import annotations

from typing import Any

import torch

from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors


class Unused:
    """GP719, GP724, GP728."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        found: list[Any] = []

        def watch(role: str, value: Any) -> Any:
            if role in ("result", "callee") and isinstance(value, torch.nn.Module | torch.nn.Parameter):
                found.append(value)
            return value

        with bench.watching(suspect, watch):
            seen = bench.call()
        if not found:
            return not_reached("no layer was built or called at this line")
        if seen.error is not None or not seen.gradients or seen.built is None or seen.built.instance is None:
            return not_reached(f"no gradient could be taken: {seen.words or 'nothing depends on a parameter'}")
        own = {id(p) for item in found for p in (item.parameters() if isinstance(item, torch.nn.Module) else [item])}
        names = [name for name, p in seen.built.instance.named_parameters() if id(p) in own and p.requires_grad]
        lost = [name for name in names if seen.gradients.get(name) is None]
        if lost:
            return confirmed(
                f"{len(lost)} of {len(names)} parameters of what is built here get no gradient: {', '.join(lost[:3])}",
                shown_by="no gradient",
                without_gradient=lost[:8],
            )
        if not names:
            return not_reached("what is built here has no parameters")
        return held(f"every parameter of what is built here gets a gradient ({len(names)} of them)")


class WrongLossInput:
    """GP123, GP124, GP141: probabilities where logits or their logarithms belong, or the other way round."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        given: list[tuple[str, torch.Tensor]] = []
        guessed = False
        inside: list[torch.Tensor] = []
        callee = ""

        def watch(role: str, value: Any) -> Any:
            nonlocal callee, guessed
            if role == "callee":
                callee = getattr(value, "__name__", "") or type(value).__name__
            elif role == "part":
                inside.extend(t for _, t in tensors(value) if t.is_floating_point() and t.numel() > 1)
            elif role == "result" and inside:
                given.append((callee.lower().replace("_", ""), inside[0].detach()))
                guessed = guessed or _is_argument(inside[0])
                inside.clear()
            return value

        with bench.watching(suspect, watch):
            seen = bench.call(backward=False)
        if not given:
            return not_reached(f"no call came to this line{': ' + seen.words if seen.error else ''}")
        for name, value in given:
            fault = _misfit(name, value)
            if fault:
                return confirmed(fault, function=name, least=float(value.min()), greatest=float(value.max()))
        if guessed:
            return not_reached("what goes in is an argument of the target, which the harness had to guess")
        return held("what goes in is of the kind that the function takes, at the inputs that were tried")


def _is_argument(value: torch.Tensor) -> bool:
    """Whether nothing was computed yet: the call is given clones of leaves."""
    return value.grad_fn is None or type(value.grad_fn).__name__.startswith("CloneBackward")


def _misfit(function: str, value: torch.Tensor) -> str:
    """What is wrong with the first operand of this function; empty if nothing is, or the function is unknown."""
    axis = 1 if value.ndim > 1 else 0
    within = bool((value >= 0).all()) and bool((value <= 1).all())
    adds_up = within and bool((value.sum(dim=axis) - 1).abs().max() < 1e-4)
    are_logarithms = bool((value.exp().sum(dim=axis) - 1).abs().max() < 1e-3)
    if "crossentropy" in function and "binary" not in function:
        wrong, said = adds_up, "what goes in adds up to 1 in every row: a softmax is taken of probabilities"
    elif "softmax" in function:
        wrong, said = adds_up, "what goes in adds up to 1 in every row already"
    elif "withlogits" in function:
        wrong, said = within, "what goes in lies between 0 and 1: a sigmoid is taken of probabilities"
    elif "sigmoid" in function:
        wrong, said = within, "what goes in lies between 0 and 1 already"
    elif "nll" in function:
        wrong, said = not are_logarithms, "logarithms of probabilities belong here, and what goes in is none"
    else:
        wrong, said = not within, "probabilities belong here, and what goes in lies outside 0 to 1"
        wrong = wrong and function in ("bceloss", "binarycrossentropy")
    return said if wrong else ""
