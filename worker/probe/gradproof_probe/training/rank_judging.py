"""What two ranks came to, compared with what one process comes to: numbers and the cause. It must not run anything.

A constant factor is told apart from a gradient in another direction. Without knowing whether a caller adds or averages,
a factor is a fault only if neither would make it right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from gradproof_probe.training.distributed import WORLD

Tensors = Mapping[str, torch.Tensor]
EQUAL: Final = 1e-4  # relative, in float32: two orders of summation differ by 1e-6, the faults by half and more
OF_UPDATES: Final = 1e-3  # a difference of weights has lost digits
_NOTHING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Opinion:
    """`fault`: whether it fails; `cause` is empty where there is nothing to say. `undecided`: the evidence is open."""

    text: str
    cause: str = ""
    fault: bool = False
    undecided: bool = False
    numbers: dict[str, Any] = field(default_factory=dict)


def under(prefix: str, values: Tensors) -> dict[str, torch.Tensor]:
    """Those whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def apart(first: Tensors, second: Tensors) -> float:
    """The norm of the difference over that of the second."""
    names = [name for name in second if name in first and first[name].shape == second[name].shape]
    if len(names) != len(second) or len(first) != len(second):
        return float("inf")
    a, b = _flat(first, names), _flat(second, names)
    return float((a - b).norm() / b.norm().clamp_min(_NOTHING))


def factor(first: Tensors, second: Tensors) -> tuple[float, float]:
    """k and what is left over, relative, where the first is k times the second."""
    names = [name for name in second if name in first and first[name].shape == second[name].shape]
    if not names:
        return 0.0, float("inf")
    a, b = _flat(first, names), _flat(second, names)
    if float(b.norm()) <= _NOTHING or float(a.norm()) <= _NOTHING:
        return 0.0, float("inf")
    k = float(a @ b / (b @ b))
    return k, float((a - k * b).norm() / a.norm())


def mean(parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) / len(parts) for name in parts[0]}


def is_nothing(values: Tensors) -> bool:
    return not values or all(float(value.norm()) <= _NOTHING for value in values.values() if value.numel())


def _flat(values: Tensors, names: Sequence[str]) -> torch.Tensor:
    return torch.cat([values[name].detach().to(torch.float64).flatten() for name in names])


# --- functions that average gradients ------------------------------------------------------------------------------


def of_averaging(ranks: Sequence[Tensors], *, adds: bool) -> Opinion:
    """`adds`: it says itself that it is a sum, or its file divides elsewhere."""
    local = [under("local ", values) for values in ranks]
    after = [under("gradient ", values) for values in ranks]
    if is_nothing(local[0]):
        return Opinion("it was given no parameter with a gradient", undecided=True)
    wanted = mean(local)
    names = list(wanted)
    status = [
        {name: _status(got.get(name), wanted[name], own[name]) for name in names}
        for got, own in zip(after, local, strict=True)
    ]
    kinds = {kind for of_rank in status for kind in of_rank.values()}
    error = max(apart(got, wanted) for got in after)
    numbers: dict[str, Any] = {"error": error, "ranks": WORLD}
    if kinds == {"mean"}:
        return Opinion(f"after it each rank has the average of the gradients, to {error:.1e}", numbers=numbers)
    if kinds == {"own"}:
        return Opinion("it changed no gradient", undecided=True)
    if kinds == {"sum"}:
        if adds:
            return Opinion("after it each rank has the sum of the gradients, as it says", "sum", numbers=numbers)
        text = f"after it each rank has the sum of the gradients: with {WORLD} ranks, {WORLD} times the average"
        return Opinion(text, "sum_not_averaged", fault=True, numbers=numbers | {"factor": float(WORLD)})
    if set(status[0].values()) <= {"mean", "sum"} and any(kind in ("own", "other") for kind in status[1].values()):
        text = "only rank 0 has the result: the gradients of the ranks differ, and so will their parameters"
        return Opinion(text, "ranks_differ", fault=True, numbers=numbers)
    left = [name for name in names if all(of_rank[name] == "own" for of_rank in status)]
    if left and kinds <= {"mean", "own"}:
        text = f"{len(left)} of {len(names)} gradients are left as each rank has them: {', '.join(left[:4])}"
        return Opinion(text, "gradients_left_out", fault=True, numbers=numbers | {"left_out": left[:20]})
    k, rest = factor(after[0], wanted)
    if rest < EQUAL and apart(after[1], after[0]) < EQUAL:
        text = f"after it the gradients are {k:.4g} times the average of the ranks"
        return Opinion(text, "wrong_divisor", fault=True, numbers=numbers | {"factor": k})
    if apart(after[1], after[0]) > EQUAL:
        return Opinion("after it the gradients of the ranks differ", "ranks_differ", fault=True, numbers=numbers)
    return Opinion("after it the ranks agree, on something else than the average", undecided=True, numbers=numbers)


def _status(got: torch.Tensor | None, wanted: torch.Tensor, own: torch.Tensor) -> str:
    if got is None or got.shape != wanted.shape:
        return "other"
    for kind, value in (("mean", wanted), ("own", own), ("sum", wanted * WORLD)):
        if float((got - value).norm() / value.norm().clamp_min(_NOTHING)) < EQUAL:
            return kind
    return "other"


# --- losses --------------------------------------------------------------------------------------------------------


def of_loss(ranks: Sequence[Tensors], alone: Tensors) -> Opinion:
    """Gradients of two ranks, averaged, against those of one process with the whole batch."""
    whole, again = under("whole gradient ", alone), under("again gradient ", alone)
    halves = [under(f"half {part} gradient ", alone) for part in range(WORLD)]
    both = [under("gradient ", values) for values in ranks]
    if not whole or any(set(part) != set(both[0]) for part in (*both, *halves)):
        return Opinion("it returns no scalar that can be differentiated", undecided=True)
    if is_nothing(whole):
        return Opinion("the gradient is zero", undecided=True)
    if apart(again, whole) > EQUAL:
        return Opinion("it draws random numbers: two runs of one process differ", undecided=True)
    inputs = all(name.startswith("input ") for name in whole)
    # The gradients of inputs lie in the rank that has the sample; averaging comes later, with those of parameters.
    together = {n: torch.cat([p[n] for p in both]) / WORLD for n in whole} if inputs else mean(both)
    singly = {n: torch.cat([p[n] for p in halves]) / WORLD for n in whole} if inputs else mean(halves)
    if any(together[name].shape != whole[name].shape for name in whole):
        return Opinion("its inputs can't be shared out among ranks", undecided=True)
    k, rest = factor(together, whole)
    numbers: dict[str, Any] = {"factor": k, "left_over": rest, "ranks": WORLD}
    if rest < EQUAL:
        if abs(k - 1) < EQUAL * 10:
            return Opinion(f"the average gradient of two ranks is that of one process, to {rest:.1e}", numbers=numbers)
        if abs(k - 1 / WORLD) < EQUAL * 10:
            text = f"two ranks give the gradient of one process if theirs are added; averaged, 1/{WORLD} of it"
            return Opinion(text, "sum_over_ranks", numbers=numbers)
        if abs(k - WORLD) < EQUAL * 10:
            text = f"the gradients of two ranks, averaged, are {k:.4g} times those of one process with the whole batch"
            return Opinion(text, "loss_scaled_by_world_size", fault=True, numbers=numbers)
        return Opinion(f"two ranks give {k:.4g} times the gradient of one process", undecided=True, numbers=numbers)
    error = apart(together, whole)
    numbers["error"] = error
    if apart(together, singly) < EQUAL:
        text = "each rank has the gradient of its own samples alone: what the others send has no part in it"
        return Opinion(text, "ranks_by_themselves", numbers=numbers)
    text = (
        f"the gradients of two ranks, averaged, differ by {error:.2g} of their size from those of one process with the "
        "whole batch: no gradient comes back through what is gathered from the other ranks"
    )
    return Opinion(text, "gradient_lost_between_ranks", fault=True, numbers=numbers)


# --- training steps ------------------------------------------------------------------------------------------------


def of_step(ranks: Sequence[Tensors], alone: Tensors) -> Opinion:
    both = [under("update ", values) for values in ranks]
    whole = under("whole update ", alone)
    halves = [under(f"half {part} update ", alone) for part in range(WORLD)]
    if is_nothing(whole) or is_nothing(both[0]):
        return Opinion("the step changed no parameter", undecided=True)
    drift = apart(both[1], both[0])
    numbers: dict[str, Any] = {"between_ranks": drift, "ranks": WORLD}
    if drift > OF_UPDATES:
        text = f"after one step the parameters of the ranks differ: the updates by {drift:.2g} of their size"
        return Opinion(text, "ranks_drift", fault=True, numbers=numbers)
    if apart(under("again update ", alone), whole) > OF_UPDATES:
        return Opinion("after one step the ranks agree; it draws random numbers", numbers=numbers)
    k, rest = factor(both[0], whole)
    numbers |= {"factor": k, "left_over": rest}
    if rest < OF_UPDATES and abs(k - 1) < OF_UPDATES:
        return Opinion(f"two ranks take the step of one process with the whole batch, to {rest:.1e}", numbers=numbers)
    of_means = apart(mean(halves), whole) < OF_UPDATES
    if of_means and rest < OF_UPDATES and abs(k - WORLD) < OF_UPDATES * WORLD:
        text = f"two ranks take a step {k:.4g} times that of one process: gradients are added, not averaged"
        return Opinion(text, "sum_not_averaged", fault=True, numbers=numbers)
    if of_means and rest < OF_UPDATES and abs(k - 1 / WORLD) < OF_UPDATES:
        text = f"two ranks take a step {k:.4g} times that of one process: gradients are divided once too often"
        return Opinion(text, "averaged_twice", fault=True, numbers=numbers)
    if of_means and rest < OF_UPDATES:
        return Opinion(f"two ranks take a step {k:.4g} times that of one process", undecided=True, numbers=numbers)
    text = (
        "after one step the ranks agree; their step is not that of one process with the whole batch, nor need it be "
        "with this loss or optimizer"
    )
    return Opinion(text, "depends_on_batch", numbers=numbers)


# --- tensors -------------------------------------------------------------------------------------------------------


def of_tensors(ranks: Sequence[Tensors], *, averages: bool) -> Opinion:
    """`averages`: it calls itself a mean."""
    given = [under("given", values) for values in ranks]
    outputs = [under("output", values) for values in ranks]
    after = [under("after", values) for values in ranks]
    results = outputs if outputs[0] else after
    floating = [
        name for name, value in given[0].items() if value.is_floating_point() and float(value.norm()) > _NOTHING
    ]
    if not floating or not results[0]:
        return Opinion("it gives no tensor that could be compared", undecided=True)
    agree = all(
        results[0][name].shape == results[1][name].shape
        and float((results[0][name] - results[1][name]).norm()) <= EQUAL * max(float(results[0][name].norm()), _NOTHING)
        for name in results[0]
        if name in results[1] and results[0][name].is_floating_point()
    )
    pairs = [
        (value, given[0][name], given[1][name])
        for value in results[0].values()
        for name in floating
        if value.shape == given[0][name].shape
    ]
    averaged = [_like(value, (first + second) / WORLD) for value, first, second in pairs]
    added = [_like(value, first + second) for value, first, second in pairs]
    numbers = {"ranks": WORLD, "ranks_agree": agree}
    if averages and added and any(added) and not any(averaged):
        text = f"it calls itself an average, and gives the sum over the ranks: {WORLD} times the average"
        return Opinion(text, "sum_not_averaged", fault=True, numbers=numbers | {"factor": float(WORLD)})
    if any(averaged):
        return Opinion("it gives the average over the ranks", numbers=numbers)
    if agree:
        return Opinion("both ranks have the same result", numbers=numbers)
    return Opinion("the ranks have results of their own; what they should be is not known", undecided=True)


def _like(first: torch.Tensor, second: torch.Tensor) -> bool:
    return float((first - second).norm()) <= EQUAL * max(float(second.norm()), _NOTHING)


# --- modules -------------------------------------------------------------------------------------------------------


def of_module(ranks: Sequence[Tensors], alone: Tensors) -> Opinion:
    """Modules built with other random numbers in each rank, and then given equal parameters and buffers."""
    same = [under("same ", values) for values in ranks]
    gradients = [under("gradient ", values) for values in ranks]
    halves = [under(f"half {part} gradient ", alone) for part in range(WORLD)]
    whole = under("whole gradient ", alone)
    floating = [{n: v for n, v in values.items() if v.is_floating_point()} for values in same]
    numbers: dict[str, Any] = {"ranks": WORLD}
    if floating[0] and not is_nothing(floating[0]):
        numbers["between_ranks"] = apart(floating[1], floating[0])
        if numbers["between_ranks"] > EQUAL:
            text = (
                "with equal parameters, buffers and inputs the ranks give different outputs "
                f"(by {numbers['between_ranks']:.2g} of their size): it keeps something random that is neither a "
                "parameter nor a buffer, so that nothing makes it equal"
            )
            return Opinion(text, "random_state_differs", fault=True, numbers=numbers)
    if is_nothing(whole) or is_nothing(gradients[0]):
        return Opinion("it has no gradient to average", undecided=True, numbers=numbers)
    numbers["from_its_halves"] = apart(gradients[0], mean(halves))
    numbers["from_one_process"] = apart(gradients[0], whole)
    buffers = [under("buffer ", values) for values in ranks]
    numbers["buffers_differ"] = [
        name for name, value in buffers[0].items() if name in buffers[1] and not torch.equal(value, buffers[1][name])
    ][:20]
    if numbers["from_one_process"] < EQUAL:
        error = numbers["from_one_process"]
        return Opinion(f"the average gradient of two ranks is that of one process, to {error:.1e}", numbers=numbers)
    if numbers["from_its_halves"] < EQUAL:
        text = (
            f"two ranks differ from one process by {numbers['from_one_process']:.2g}, and agree with its halves: it "
            "draws random numbers, or looks at all samples of a batch (batch statistics), of which a rank has its own"
        )
        return Opinion(text, "depends_on_batch", numbers=numbers)
    return Opinion(
        "the gradients of the ranks are neither those of the whole batch nor of its halves",
        undecided=True,
        numbers=numbers,
    )
