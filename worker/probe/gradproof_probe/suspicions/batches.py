"""Samples of one batch that must not know each other, and shapes that broadcast where nobody meant it.

One sample of every input is changed: what belongs to the other samples must stay as it is. In evaluation mode, where
no layer of torch mixes samples.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built
from gradproof_probe.suspicions.bench import Bench, Seen
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors, transform

_TOLERANCE: Final = 1e-5


class _Tensors:
    def __init__(self) -> None:
        self.calls = 0
        self.before: list[tuple[str, torch.Tensor]] = []
        self.after: list[tuple[str, torch.Tensor]] = []

    def __call__(self, role: str, value: Any) -> Any:
        if role == "before":
            self.calls += 1
        if role in ("before", "after"):
            kept = self.before if role == "before" else self.after
            kept += [(k, v.detach().clone()) for k, v in sorted(value.items()) if isinstance(v, torch.Tensor)]
        return value


class Mixing:
    """GP718, GP721, GP722, GP725, GP726, GP734, GP735."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        size = 0
        runs: list[tuple[Seen, _Tensors]] = []

        def another(built: Built) -> None:
            built.args = [_with_another_first(value, size) for value in built.args]
            built.kwargs = {name: _with_another_first(value, size) for name, value in built.kwargs.items()}

        for change in (None, another):
            passing = _Tensors()
            with bench.watching(suspect, passing):
                seen = bench.call(training=False, backward=False, change=change)
            if not passing.calls:
                return not_reached("no call came to this line")
            if seen.error is not None or seen.built is None:
                return not_reached(f"the call raises in evaluation mode: {seen.words}")
            sizes = {t.shape[0] for _, t in tensors([seen.built.args, seen.built.kwargs]) if t.ndim > 0}
            if change is None and (len(sizes) != 1 or min(sizes) < 2):
                return not_reached("the inputs have no common first axis of two or more, so no sample can be told")
            size = next(iter(sizes))
            runs.append((seen, passing))
        (plain, at), (changed, also_at) = runs
        if _mixed_names(at.before, also_at.before, size):
            return held("the samples are mixed before this line already")
        here = _mixed_names(at.after, also_at.after, size)
        outputs = [
            _mixed(a, b, size) for a, b in zip(plain.outputs, changed.outputs, strict=False) if a.shape == b.shape
        ]
        if here or any(outputs):
            where = f"in {here[0]}" if here else "in the output"
            return confirmed(
                f"when only the first sample of the batch changes, what belongs to others changes too {where}, and "
                "nothing of that kind comes to this line",
                mixed=here[:4],
            )
        if all(torch.equal(a, b) for a, b in zip(plain.outputs, changed.outputs, strict=False) if a.shape == b.shape):
            return not_reached("the outputs do not depend on the sample that was changed")
        if None in outputs or not outputs:
            return not_reached("the outputs have no axis of samples, so it can't be told whether they are mixed")
        apart = "when only the first sample of the batch changes, everything of the others stays as it is"
        if bench.recipe.source == "synthesised":
            return not_reached(f"{apart}; but the sizes of the inputs are a guess, and others may not keep them apart")
        return held(apart)


class BroadcastLoss:
    """GP713: two tensors that become a larger one together."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        shapes: list[list[torch.Size]] = []
        current: list[torch.Size] = []

        def watch(role: str, value: Any) -> Any:
            if role == "part" and isinstance(value, torch.Tensor):
                current.append(value.shape)
            elif role == "result":
                shapes.append(list(current))
                current.clear()
            return value

        with bench.watching(suspect, watch):
            seen = bench.call(backward=False)
        if not shapes:
            return not_reached(f"no call came to this line{': ' + seen.words if seen.error else ''}")
        for listed in shapes:
            for number, first in enumerate(listed):
                for second in listed[number + 1 :]:
                    if _grows(first, second):
                        return confirmed(
                            f"shapes {tuple(first)} and {tuple(second)} meet here and are broadcast to "
                            f"{tuple(torch.broadcast_shapes(first, second))}: every element with every other",
                            shapes=[list(first), list(second)],
                        )
        # The harness guessed at least one of them, and its author does not know what callers bring.
        return not_reached("the shapes that the harness gives fit each other, which says nothing of other callers")


class ImplicitDimension:
    """GP715: the axis that torch chooses, or that a batch of one takes away."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        ranks: dict[str, list[tuple[int, int]]] = {"as it is": [], "of one": []}
        operands: list[torch.Tensor] = []
        sums_first = []

        def watcher(key: str) -> Any:
            def watch(role: str, value: Any) -> Any:
                if role == "part" and isinstance(value, torch.Tensor):
                    operands.append(value)
                elif role == "result" and isinstance(value, torch.Tensor) and operands:
                    ranks[key].append((operands[-1].ndim, value.ndim))
                    if value.is_floating_point() and value.ndim > 1 and value.shape == operands[-1].shape:
                        total = (value.exp() if bool((value <= 0).all()) else value).detach().sum(0)
                        sums_first.append(bool(torch.allclose(total, torch.ones_like(total), atol=1e-4)))
                    operands.clear()
                return value

            return watch

        def one(built: Built) -> None:
            built.args = [transform(value, _first_alone) for value in built.args]
            built.kwargs = {name: transform(value, _first_alone) for name, value in built.kwargs.items()}

        with bench.watching(suspect, watcher("as it is")):
            seen = bench.call(backward=False)
        if not ranks["as it is"]:
            return not_reached(f"no call came to this line{': ' + seen.words if seen.error else ''}")
        if any(sums_first):
            return confirmed("torch chose the first axis here: the values add up to 1 over the samples of the batch")
        with bench.watching(suspect, watcher("of one")):
            bench.call(backward=False, change=one)
        pairs = zip(ranks["as it is"], ranks["of one"], strict=False)
        if any(lone[0] == many[0] and lone[1] < many[1] for many, lone in pairs):
            return confirmed("for a batch of one sample the axis of samples is dropped here as well")
        return held("the axis that is meant by the shapes here is not the one of the samples")


def _grows(first: torch.Size, second: torch.Size) -> bool:
    try:
        together = torch.broadcast_shapes(first, second).numel()
    except RuntimeError:
        return False
    # A scalar, or one number for each row, is no slip: both have to have grown.
    return len(first) != len(second) and together > max(first.numel(), second.numel()) > 1


def _first_alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].clone() if tensor.ndim else tensor


def _with_another_first(value: Any, size: int) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or tensor.shape[0] != size:
            return tensor
        changed = tensor.clone()
        if tensor.is_floating_point() or tensor.is_complex():
            generator = torch.Generator().manual_seed(3)
            noise = torch.randn(changed[0].shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
            changed[0] = tensor[0] + noise
        elif tensor.dtype == torch.bool:
            pattern = torch.arange(max(changed[0].numel(), 1)) % 2 == 0
            changed[0] = pattern[: changed[0].numel()].reshape(changed[0].shape)
        else:
            changed[0] = tensor[1]  # a value that occurs: indices must stay within their range
        return changed

    return transform(value, change)


def _mixed_names(first: list[tuple[str, torch.Tensor]], second: list[tuple[str, torch.Tensor]], size: int) -> list[str]:
    pairs = zip(first, second, strict=False)
    return [name for (name, a), (_, b) in pairs if a.shape == b.shape and _mixed(a, b, size)]


def _mixed(first: torch.Tensor, second: torch.Tensor, size: int) -> bool | None:
    """Whether more than the first sample changed; None where no axis is that of the samples."""
    axes = [axis for axis in range(first.ndim) if first.shape[axis] == size]
    if not axes:
        return None
    if first.is_floating_point() or first.is_complex():
        scale = max(float(first.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()), 1e-12)
        equal = ((first - second).abs() <= _TOLERANCE * scale) | (first == second)
        changed = ~(equal | (first.isnan() & second.isnan()))
    else:
        changed = first != second
    if not bool(changed.any()):
        return False
    return not any(not bool(changed.narrow(axis, 1, size - 1).any()) for axis in axes)
