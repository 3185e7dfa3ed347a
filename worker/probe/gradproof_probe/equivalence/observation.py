"""Everything that a call leaves behind: outputs, gradients, buffers, changed inputs. Taken under fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from gradproof_probe.equivalence.generators import standing
from gradproof_probe.harness.recipe import Built, Recipe, build, default_dtype
from gradproof_probe.harness.trial import NO_DERIVATIVE
from gradproof_probe.importing import Resolved
from gradproof_probe.seeding import reseed, state
from gradproof_probe.trees import tensors, transform

Mode = Literal["train", "eval"]
UNIT: Final = 2.0**-23  # float32 machine epsilon
# eager and aot_eager were bitwise equal to eager in 14 of 14 models (checks facts §3). What differs by less than this
# share is another order of the same float32 operations, not another computation.
ROUNDING: Final = 16 * UNIT
# Share of the largest gradient below which a tensor's own norm is no scale: a bias before batch norm has a true
# gradient of zero, and noise over noise is not an error (checks facts §3, convnet).
FLOOR: Final = 1e-6

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(slots=True)
class Observation:
    """Named tensors, in order. Names begin with what they are: `output`, `gradient`, `buffer`, `input`.

    `python_random`: it drew from Python's random numbers, or NumPy's. `generators`: where each of torch's stood before
    and after each call.
    """

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    python_random: bool = False
    generators: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    device: str = "cpu"

    def gradient_norm(self) -> float:
        return max((norm(v) for k, v in self.values.items() if k.startswith("gradient")), default=0.0)

    def gradients(self) -> list[torch.Tensor]:
        return [value for name, value in self.values.items() if name.startswith("gradient")]


def norm(value: torch.Tensor) -> float:
    if value.is_complex():
        return float(value.to(torch.complex128).norm())
    return float(value.to(torch.float64).norm()) if value.numel() else 0.0


def observe(
    resolved: Resolved,
    recipe: Recipe,
    *,
    seed: int,
    mode: Mode,
    wrap: Wrap = lambda call: call,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    calls: int = 1,
    rewind: bool = False,
) -> Observation:
    """Build anew, call `calls` times in a row without putting anything back, and note everything after each call.

    `rewind`: buffers have the values of before the call while backward runs. Eager code saves what it computes with;
    what gives another gradient then reads a buffer again, after forward has changed it.

    `dtype` promotes module and floating inputs; `device` moves them there. Cotangents are drawn on the CPU in float64
    and then cast, so that every way gets the same.
    """
    # Built in its own precision first: the same expressions draw other numbers in float64.
    built = build(resolved, recipe, seed=seed)
    return observe_built(built, wrap=wrap, seed=seed, mode=mode, dtype=dtype, device=device, calls=calls, rewind=rewind)


def observe_built(
    built: Built,
    *,
    seed: int,
    mode: Mode,
    wrap: Wrap = lambda call: call,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    calls: int = 1,
    rewind: bool = False,
) -> Observation:
    """The same of what is built already: its module is moved and promoted, not copied."""
    with default_dtype(dtype or torch.get_default_dtype()):
        return _observe(built, wrap, seed=seed, mode=mode, dtype=dtype, device=device, calls=calls, rewind=rewind)


def _observe(
    built: Built,
    wrap: Wrap,
    *,
    seed: int,
    mode: Mode,
    dtype: torch.dtype | None,
    device: str | None,
    calls: int,
    rewind: bool,
) -> Observation:
    module = built.instance
    if module is not None:
        module.to(dtype=dtype) if dtype is not None else module
        module = module.to(device) if device is not None else module
        module.train(mode == "train")
    call = wrap(module if module is not None else built.call)
    buffers = [] if module is None else list(module.buffers())
    seen = Observation()

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.detach().clone()
        if moved.is_floating_point() and dtype is not None:
            moved = moved.to(dtype)
        moved = moved.to(device) if device is not None else moved
        return moved.requires_grad_() if moved.is_floating_point() or moved.is_complex() else moved

    for number in range(calls):
        prefix = "" if calls == 1 else f"call {number + 1}: "
        leaves = [transform(value, leaf) for value in built.args]
        named = {name: transform(value, leaf) for name, value in built.kwargs.items()}
        args = [transform(value, torch.Tensor.clone) for value in leaves]
        kwargs = {name: transform(value, torch.Tensor.clone) for name, value in named.items()}
        reseed(seed)
        before, stood = state(), standing(built)
        kept = [buffer.detach().clone() for buffer in buffers] if rewind else []
        output = call(*args, **kwargs)
        seen.python_random |= state()[1:] != before[1:]
        stands = standing(built)
        seen.generators |= {f"{prefix}{name}": (stood[name], stands[name]) for name in stands if name in stood}
        outputs = tensors(output)
        for path, value in outputs:
            seen.values[f"{prefix}output{path}"] = value.detach().clone()
        wanted = [(f"input{path}", value) for path, value in tensors([leaves, named]) if value.requires_grad]
        if module is not None:
            wanted += [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        with _rewound(buffers if rewind else [], kept):
            note_gradients(seen, prefix, [value for _, value in outputs], wanted, seed)
        for path, value in tensors([args, kwargs]):
            seen.values[f"{prefix}input{path} after"] = value.detach().clone()
        if module is not None:
            for name, value in module.named_buffers():
                seen.values[f"{prefix}buffer {name}"] = value.detach().clone()
    kinds = {value.device.type for _, value in outputs}
    seen.device = next(iter(kinds)) if len(kinds) == 1 else "mixed"
    return seen


@contextmanager
def _rewound(buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Iterator[None]:
    """The buffers with these values for a while, unnoticed by autograd's version counters."""
    now = [buffer.detach().clone() for buffer in buffers]
    _put(buffers, values)
    try:
        yield
    finally:
        _put(buffers, now)


def _put(buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        if buffer.shape == value.shape:
            buffer.data.copy_(value)


def note_gradients(
    seen: Observation, prefix: str, outputs: Sequence[torch.Tensor], wanted: list[tuple[str, torch.Tensor]], seed: int
) -> None:
    """Add the gradients of the outputs, with random cotangents, for each of the named tensors that they depend on."""
    live = [o for o in outputs if o.requires_grad and (o.is_floating_point() or o.is_complex())]
    if not live or not wanted:
        return
    generator = torch.Generator().manual_seed(seed + 11)
    cotangents = [
        torch.randn(o.shape, generator=generator, dtype=torch.complex128 if o.is_complex() else torch.float64)
        .to(o.dtype)
        .to(o.device)
        for o in live
    ]
    reseed(seed)
    try:
        found = torch.autograd.grad(live, [value for _, value in wanted], cotangents, allow_unused=True)
    except RuntimeError as error:
        if NO_DERIVATIVE.search(str(error)):
            return  # torch has none: the outputs are compared all the same
        raise
    for (name, _), gradient in zip(wanted, found, strict=True):
        if gradient is not None:
            dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
            seen.values[f"{prefix}gradient {name}"] = dense.detach().clone()


@dataclass(frozen=True, slots=True)
class Difference:
    """`relative` to the norm of the expected tensor, with the floor; infinite for another shape or missing tensor."""

    name: str
    relative: float
    text: str


def bitwise_differences(expected: Observation, got: Observation) -> list[Difference]:
    """Tensors that aren't the same bit for bit (NaN equals NaN), worst first."""
    found: list[Difference] = []
    scale = expected.gradient_norm()
    for name in dict.fromkeys([*expected.values, *got.values]):
        a, b = expected.values.get(name), got.values.get(name)
        if a is None or b is None:
            found.append(
                Difference(name, float("inf"), f"{name} is missing in {'eager' if a is None else 'the other'}")
            )
        elif a.shape != b.shape or a.dtype != b.dtype:
            said = f"{name}: {tuple(a.shape)} {a.dtype} in eager, {tuple(b.shape)} {b.dtype} in the other"
            found.append(Difference(name, float("inf"), said))
        elif not _equal(a, b):
            error = relative_error(
                b, a, scale if name.partition(": ")[2].startswith("gradient") or name.startswith("gradient") else 0.0
            )
            found.append(Difference(name, error, f"{name} differs by {error:.2e} of its size"))
    return sorted(found, key=lambda item: -item.relative)


def relative_error(value: torch.Tensor, reference: torch.Tensor, largest_gradient: float) -> float:
    """Norm of the difference over the norm of the reference, never less than `FLOOR` of the largest gradient."""
    if value.numel() == 0:
        return 0.0
    wide = torch.complex128 if value.is_complex() else torch.float64
    a, b = value.detach().cpu().to(wide), reference.detach().cpu().to(wide)
    both_bad = ~torch.isfinite(a) & ~torch.isfinite(b)
    a, b = a.masked_fill(both_bad, 0), b.masked_fill(both_bad, 0)
    error = float((a - b).norm())
    scale = max(norm(b), FLOOR * largest_gradient)
    if error == 0:
        return 0.0
    return error / scale if scale > 0 else float("inf")


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_floating_point() or a.is_complex():
        return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())
    return bool(torch.equal(a, b))
