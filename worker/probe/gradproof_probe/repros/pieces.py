"""What a stand-alone repro is built from: small functions whose source text goes into the script as it stands.

Each needs torch, some modules of the standard library and its neighbours here alone, and must read well to somebody
who has never seen Gradproof. A *variable* is a floating or complex tensor among the arguments; they are numbered.
"""

from __future__ import annotations

import inspect
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch


def reseed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def is_variable(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return value.is_floating_point() or value.is_complex()


def variables(args: Sequence[Any]) -> list[torch.Tensor]:
    return [arg for arg in args if is_variable(arg)]


def tensors(value: Any) -> list[torch.Tensor]:
    """The floating tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        return variables([value])
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, list | tuple):
        value = list(getattr(value, "__dict__", {}).values())
    return list(dict.fromkeys(tensor for item in value for tensor in tensors(item)))


def own(value: Any, dtype: torch.dtype) -> Any:
    """A contiguous copy of a tensor that the repository's code made; floating ones in `dtype`."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value
    if is_variable(value):
        value = value.to(dtype.to_complex() if value.is_complex() else dtype)
    return value.detach().clone(memory_format=torch.contiguous_format)


def promoted(value: Any, dtype: torch.dtype) -> Any:
    """The same in `dtype`, every floating tensor in it a leaf that requires grad."""
    if isinstance(value, dict):
        return {key: promoted(item, dtype) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(promoted(item, dtype) for item in value)
    return own(value, dtype).requires_grad_() if is_variable(value) else value


def recorded(function: Any, run: Callable[[], Any]) -> list[Any]:
    """The arguments of the first call of an autograd.Function that `run` makes."""
    calls: list[list[Any]] = []
    forward = inspect.getattr_static(function, "forward")
    # setup_context apart from forward: then forward isn't given a context.
    skip = 1 if function.setup_context is torch.autograd.Function.setup_context else 0

    def watching(*args: Any) -> Any:
        copies = [
            arg.detach().clone().requires_grad_(arg.requires_grad) if is_variable(arg) else arg for arg in args[skip:]
        ]
        calls.append(copies)
        return forward.__func__(*args)

    function.forward = staticmethod(watching)
    try:
        run()
    finally:
        function.forward = forward
    return calls[0]


def leaves(args: Sequence[Any], wanted: Sequence[int] | None = None) -> list[Any]:
    """The same arguments; the variables (or only the `wanted` ones) require grad. One leaf for one tensor."""
    made = {id(arg): arg.detach() for arg in variables(args)}
    found = [made[id(arg)] if is_variable(arg) else arg for arg in args]
    for number, leaf in enumerate(variables(found)):
        if wanted is None or number in wanted:
            leaf.requires_grad_()
    return found


def shared(args: Sequence[Any]) -> list[Any]:
    """The first variable of each rank and length of rows in the place of all others like it."""
    first: dict[Any, torch.Tensor] = {}
    return [first.setdefault((arg.dim(), arg.shape[-1:], arg.dtype), arg) if is_variable(arg) else arg for arg in args]


def distinct(args: Sequence[Any]) -> list[int]:
    """The numbers of the variables, without those that are the same tensor as an earlier one."""
    found = variables(args)
    return [number for number, arg in enumerate(found) if all(arg is not other for other in found[:number])]


def handed(args: Sequence[Any], layout: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.contiguous) -> list[Any]:
    """What the call is given: clones, as it may write to them; one clone for one tensor."""
    clones = {id(arg): layout(arg.clone()) for arg in variables(args)}
    return [clones[id(arg)] if is_variable(arg) else arg for arg in args]


def other_values(args: Sequence[Any]) -> list[Any]:
    """Other numbers of the same shapes; positive where they are all positive."""
    return [
        arg.detach().flip(tuple(range(arg.dim()))) * (0.7 if not arg.is_complex() and bool((arg >= 0).all()) else -0.7)
        if is_variable(arg) and arg.numel()
        else arg
        for arg in args
    ]


def gradients(
    outputs: Sequence[torch.Tensor],
    args: Sequence[Any],
    incoming: Sequence[torch.Tensor | None],
    **options: Any,
) -> list[torch.Tensor | None]:
    """What autograd returns for each variable; None where it returns nothing. Outputs without incoming are left out."""
    pairs = [(o, v) for o, v in zip(outputs, incoming, strict=True) if v is not None and o.requires_grad and o.numel()]
    wanted = list(dict.fromkeys(arg for arg in variables(args) if arg.requires_grad))
    found = torch.autograd.grad([o for o, _ in pairs], wanted, [v for _, v in pairs], allow_unused=True, **options)
    dense = [g.to_dense() if g is not None and g.layout != torch.strided else g for g in found]
    by_leaf = dict(zip(map(id, wanted), dense, strict=True))
    return [by_leaf.get(id(arg)) for arg in variables(args)]


def in_another_thread(work: Callable[[], Any]) -> Any:
    result: list[Any] = []

    def run() -> None:
        try:
            result.extend([work(), None])
        except Exception as error:
            result.extend([None, error])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if result[1] is not None:
        raise result[1]
    return result[0]


def derivative(
    change: Callable[[float], float], size: float, shares: Sequence[float], rounding: float
) -> tuple[float, float]:
    """Of f at 0, where change(h) = f(h) - f(-h): central differences, extrapolated, and what they are off by.

    Several steps, each a share of `size`. Off by what the last extrapolation changed and by what `rounding` of f makes
    of it; the best one is taken.
    """
    best = (float("nan"), float("inf"))
    for share in shares:
        wide, middle, narrow = (change(share * size / n) / (2 * share * size / n) for n in (1, 2, 4))
        rough, fine = middle + (middle - wide) / 3, narrow + (narrow - middle) / 3
        error = abs(fine - rough) + rounding / (share * size)
        if error < best[1]:
            best = (fine + (fine - rough) / 15, error)
    return best


def weighted_change(
    weights: Sequence[torch.Tensor | None], above: Sequence[torch.Tensor | None], below: Sequence[torch.Tensor | None]
) -> float:
    """weights . (above - below); what doesn't change drops out exactly."""
    total = 0.0
    for weight, a, b in zip(weights, above, below, strict=True):
        if weight is not None and a is not None and b is not None:
            wide = torch.complex128 if a.is_complex() else torch.float64
            total += float((weight.detach().to(wide).conj() * (a.detach().to(wide) - b.detach().to(wide))).sum().real)
    return total


def rounding_of(weights: Sequence[torch.Tensor | None], values: Sequence[torch.Tensor | None]) -> float:
    """By how much weights . values may be off for rounding alone: two units of each term."""
    total = 0.0
    for weight, value in zip(weights, values, strict=True):
        if weight is not None and value is not None:
            terms = (weight.detach().abs() * value.detach().abs()).double()
            total += 2 * torch.finfo(value.dtype).eps * float(terms.nan_to_num(0.0, 0.0, 0.0).sum())
    return total


def root_mean_square(tensor: torch.Tensor) -> float:
    return float(tensor.detach().abs().double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()) or 0.1


def farthest(
    expected: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor | None]
) -> tuple[float, int, tuple[int, ...], complex, complex]:
    """Where they differ most: by what share of the largest gradient, for which variable, at which index, and both."""
    pairs = []
    for number, (e, g) in enumerate(zip(expected, got, strict=True)):
        some = g if e is None else e
        if some is not None and some.numel():
            wide = torch.complex128 if some.is_complex() else torch.float64
            none = torch.zeros(some.shape, dtype=wide)
            pairs.append(
                (number, none if e is None else e.detach().to(wide), none if g is None else g.detach().to(wide))
            )
    sizes = [float(e.abs().nan_to_num(0, 0, 0).max()) for _, e, _ in pairs]
    found: Any = (0.0, 0, (), 0.0, 0.0)
    for (number, e, g), size in zip(pairs, sizes, strict=True):
        apart = (g - e).abs().masked_fill(g.isnan() & e.isnan(), 0.0).nan_to_num(float("inf"), float("inf"))
        index = tuple(int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
        share = float(apart[index]) / ((size + 1e-4 * max(sizes)) or 1.0)
        if share > found[0]:
            found = (share, number, index, e[index].item(), g[index].item())
    return found
