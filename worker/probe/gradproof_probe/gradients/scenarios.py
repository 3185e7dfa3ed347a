"""What a backward may not do, whatever its formula: write to what it was given, depend on memory layout, bend.

Neither gradcheck nor opcheck looks at the layout of grad_output (checks facts 0.3), and a factor in front of it is
invisible to them when the loss is a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gradproof_probe.gradients.experiment import BackwardError, Experiment, Output, differentiable
from gradproof_probe.gradients.probing import random_like
from gradproof_probe.trees import tensors

# Bitwise for one thread and the same operations in the same order; layouts change the order of sums.
SAME: Final = 1e-9
SINGLE_SAME: Final = 1e-3
LARGEST: Final = 2_000_000  # elements of one output: layouts of more cost more than they tell


@dataclass(frozen=True, slots=True)
class Side:
    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


def side_effects(experiment: Experiment, generator: torch.Generator) -> Side | None:
    """Two backward passes over one graph: the cotangent, the saved inputs and the result have to stay the same.

    A second pass that raises says nothing by itself: freeing state after the first one is a legitimate saving.
    Raises `ForwardError`; a `BackwardError` of the first pass is the caller's to judge, when it takes its own.
    """
    experiment.put_back()
    raw, arguments = experiment.run_raw()
    outputs = differentiable(
        [Output(path, value) for path, value in tensors(raw) if value.is_floating_point() or value.is_complex()]
    )
    cotangents = [random_like(output.value, generator) for output in outputs]
    kept = [item.clone() for item in cotangents]
    given = [(path, value, value.detach().clone()) for path, value in tensors(arguments)]
    results = [(output.path, output.value, output.value.detach().clone()) for output in outputs]
    try:
        first = experiment.gradients(outputs, cotangents, retain=True)
    except BackwardError:
        return None
    for number, (now, before) in enumerate(zip(cotangents, kept, strict=True)):
        if not _same(now, before):
            change = float((now - before).abs().max())
            return Side(
                "grad_output_mutated",
                f"backward writes to the gradient that it is given (output {number})",
                {"change": change},
            )
    for path, now, before in [*given, *results]:
        if not _same(now.detach(), before):
            what = "an input" if any(path is item[0] for item in given) else "an output"
            return Side("saved_tensor_mutated", f"backward writes to {what} of the forward", {"where": path})
    try:
        second = experiment.gradients(outputs, kept, retain=True)
    except BackwardError as error:
        if "modified by an inplace operation" in str(error.cause):
            return Side("saved_tensor_mutated", "backward writes to a tensor that it saved: a second pass raises")
        return None
    floor = _noise(first)
    for variable, one, other in zip(experiment.variables, first, second, strict=True):
        if one is not None and other is not None and not _close(one, other, SAME, floor):
            return Side(
                "backward_not_repeatable",
                f"two backward passes over the same graph give different gradients for {variable.name}",
                {"change": float((one - other).abs().max())},
            )
    return None


def layouts(experiment: Experiment, generator: torch.Generator, *, rounding: float = 0.0) -> Side | None:
    """The same cotangent values in other memory: transposed, every second element, one value expanded.

    `rounding`: of one evaluation, where it is coarser than float64's: sums in another order then differ by as much.
    """
    outputs = differentiable(experiment.run())
    if any(output.value.numel() > LARGEST for output in outputs):
        return None
    dense = [random_like(output.value, generator) for output in outputs]
    constant = [torch.ones_like(output.value, memory_format=torch.contiguous_format) for output in outputs]
    for name, change, values in (
        ("transposed", _transposed, dense),
        ("strided", _strided, dense),
        ("expanded", _expanded, constant),
    ):
        other = [change(value) for value in values]
        if all(item.is_contiguous() for item in other):
            continue
        expected = experiment.gradients(differentiable(experiment.run()), [value.contiguous() for value in values])
        try:
            found = experiment.gradients(differentiable(experiment.run()), other)
        except BackwardError as error:
            return Side(
                "grad_output_layout",
                f"backward raises for a {name} gradient of the same values: {_text(error.cause)}",
                {"layout": name},
            )
        narrow = rounding > SAME or any(item.dtype == torch.float32 for item in dense)
        tolerance = max(SINGLE_SAME, 64 * rounding) if narrow else SAME
        floor = _noise(expected)
        for variable, one, two in zip(experiment.variables, expected, found, strict=True):
            if one is not None and two is not None and not _close(one, two, tolerance, floor):
                return Side(
                    "grad_output_layout",
                    f"for a {name} gradient of the same values, backward returns another gradient for {variable.name}",
                    {"layout": name, "difference": float((one - two).abs().max())},
                )
    return None


def linearity(experiment: Experiment, generator: torch.Generator, *, rounding: float = 0.0) -> Side | None:
    """backward(-2 v + w) = -2 backward(v) + backward(w), for random v, and w random, all ones, and a single one.

    Together with probes along random v this says of every incoming gradient what a comparison of whole Jacobians says
    (`torch.autograd.gradcheck` walks all unit vectors), at the cost of a handful of backward passes for any size.
    """

    def pull(cotangents: list[torch.Tensor]) -> list[torch.Tensor | None]:
        return experiment.gradients(differentiable(experiment.run()), cotangents)

    outputs = differentiable(experiment.run())
    v = [random_like(output.value, generator) for output in outputs]
    try:
        of_v, doubled = pull(v), pull([2 * item for item in v])
        floor = _noise(of_v)
        for number, w in enumerate(_others(outputs, generator)):
            of_w = pull(w)
            both = pull([-2 * a + b for a, b in zip(v, w, strict=True)])
            for variable, one, two, twice, mixed in zip(experiment.variables, of_v, of_w, doubled, both, strict=True):
                if one is None or two is None or twice is None or mixed is None:
                    continue
                tolerance = SINGLE_SAME if one.dtype == torch.float32 else max(1e-7, 64 * rounding)
                if number == 0 and _constant(one, two, twice, tolerance):
                    return Side(
                        "ignores_grad_output",
                        f"the gradient for {variable.name} doesn't depend on the incoming gradient",
                    )
                if not _close(mixed, -2 * one + two, tolerance, floor):
                    return Side(
                        "not_linear",
                        f"the gradient for {variable.name} isn't linear in the incoming gradient",
                        {"difference": float((mixed + 2 * one - two).abs().max())},
                    )
    except BackwardError:
        return None
    return None


def _others(outputs: Sequence[Output], generator: torch.Generator) -> list[list[torch.Tensor]]:
    single = [torch.zeros_like(output.value, memory_format=torch.contiguous_format).detach() for output in outputs]
    if single:
        single[0].view(-1)[single[0].numel() // 2] = 1
    return [
        [random_like(output.value, generator) for output in outputs],
        [torch.ones_like(output.value).detach() for output in outputs],
        single,
    ]


def _constant(one: torch.Tensor, two: torch.Tensor, twice: torch.Tensor, tolerance: float) -> bool:
    return _close(one, twice, tolerance, 0.0) and _close(one, two, tolerance, 0.0) and bool(one.any())


def _transposed(value: torch.Tensor) -> torch.Tensor:
    if value.dim() < 2:
        return _strided(value)
    return value.transpose(0, -1).contiguous().transpose(0, -1)


def _strided(value: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0:
        return value.clone()
    wide = value.new_full((*value.shape, 2), float("nan"))
    wide[..., 0] = value
    return wide[..., 0]


def _expanded(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[:1].reshape(()).expand(value.shape) if value.numel() else value


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float, floor: float) -> bool:
    """`floor`: the absolute difference below which values are noise beside the other gradients."""
    if a.shape != b.shape:
        return False
    if a.numel() == 0 or torch.equal(a, b):
        return True
    # A gradient that isn't finite is a fault of its own, and the same one in both: NaN differs from itself.
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    a, b = a.nan_to_num(), b.nan_to_num()
    scale = max(float(a.abs().max()), float(b.abs().max()))
    return bool((a - b).abs().max() <= tolerance * scale + floor)


def _noise(gradients: Sequence[torch.Tensor | None]) -> float:
    """A bias before batch norm has a true gradient of zero: what it gets is rounding of the large ones around it."""
    sizes = [
        float(item.nan_to_num(posinf=0.0, neginf=0.0).abs().max())
        for item in gradients
        if item is not None and item.numel()
    ]
    unit = max((torch.finfo(item.dtype).eps for item in gradients if item is not None), default=0.0)
    return 64 * unit * max(sizes, default=0.0)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
