"""How the tensors of a situation are made from ordinary ones: values, sizes, ranks, memory layouts, cotangents.

The engine calls these functions, and a stand-alone repro carries their source text, so that both make the
same numbers. Therefore each one needs torch and its neighbours here alone, draws from a generator of its own and never
from the global one, and touches no autograd graph: what it is given is a plain value. It may return that very tensor.
At a thousand elements each takes some 10 microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def make_values(kind: str, number: float, base: torch.Tensor) -> torch.Tensor:
    """Other values in the place of `base`. A row runs along the last axis. Complex: real and imaginary part each."""
    if base.numel() == 0 or kind == "ordinary":
        return base
    if base.is_complex():
        return torch.complex(make_values(kind, number, base.real), make_values(kind, number, base.imag))
    if not base.is_floating_point():
        return base
    rows = base.reshape(-1, base.shape[-1] if base.dim() > 1 else 1)
    if kind in ("some_zero", "zero_row"):
        made = rows.clone(memory_format=torch.contiguous_format)
        (made.view(-1)[::3] if kind == "some_zero" else made[0]).zero_()
    elif kind == "equal_rows":
        made = rows[:1].expand(rows.shape).clone(memory_format=torch.contiguous_format)
    elif kind == "masked":
        made = rows.clone(memory_format=torch.contiguous_format)
        made.view(-1)[::3] = float("-inf")
    elif kind == "one_hot":
        made = one_hot_rows(base.reshape(-1, base.shape[-1] if base.dim() else 1))
    elif kind == "around":
        made = around(number, base)
    else:
        made = recomputed_values(kind, number, base)
    return made.reshape(base.shape)


def recomputed_values(kind: str, number: float, base: torch.Tensor) -> torch.Tensor:
    """Those values that are a formula of the given ones."""
    if kind == "jittered":
        size = 1e-3 * float(base.double().square().mean().sqrt())
        return base + size * random_normal(base, base.numel())
    if kind == "scaled":
        return base * number
    if kind == "shifted":
        return base + number
    if kind == "positive":
        return base.abs()
    if kind == "negative":
        return -base.abs()
    if kind == "rounded":
        return (base / (number or 1.0)).round() * (number or 1.0)
    if kind == "constant":
        return torch.full_like(base, number, memory_format=torch.contiguous_format)
    if kind == "sorted":
        return base.sort(dim=-1).values
    raise ValueError(f"unknown kind of values: {kind}")


def make_cotangent(kind: str, number: float, like: torch.Tensor, seed: int) -> torch.Tensor:
    """A gradient to pull back through an output like `like`: contiguous. Random ones are normal, in float64."""
    zeros = torch.zeros_like(like, memory_format=torch.contiguous_format).detach()
    if kind == "zeros" or like.numel() == 0:
        return zeros
    if kind == "ones":
        return zeros.fill_(1)
    if kind == "one_hot":
        zeros.view(-1)[like.numel() // 2] = 1
        return zeros
    if kind == "around":
        return around(number, zeros)
    if kind == "constant":
        return zeros.fill_(number) if number else zeros + random_normal(zeros.view(-1)[:1], seed)[0]
    return changed_cotangent(kind, number, random_normal(zeros, seed))


def changed_cotangent(kind: str, number: float, drawn: torch.Tensor) -> torch.Tensor:
    """Those cotangents that are a formula of random numbers."""
    if kind == "random":
        return drawn
    if kind == "scaled":
        return drawn * number
    if kind in ("positive", "negative"):
        parts = torch.view_as_real(drawn) if drawn.is_complex() else drawn
        parts = parts.abs() if kind == "positive" else -parts.abs()
        return torch.view_as_complex(parts) if drawn.is_complex() else parts
    if kind == "zero_rows":
        drawn.view(-1, drawn.shape[-1] if drawn.dim() > 1 else 1)[1::2] = 0
        return drawn
    raise ValueError(f"unknown kind of cotangent: {kind}")


def resized(tensor: torch.Tensor, resize: Sequence[tuple[int, int]], generator_seed: int) -> torch.Tensor:
    """Dimensions of each old size become as long as the new one: the values are cut or repeated.

    The repetitions of floating values are drawn towards zero by up to a fifth, so that no two blocks are the same and
    signs, zeros, infinities and upper bounds stay. Integers stay valid indices, masks stay masks.
    """
    lengths = dict(resize)
    shape = [lengths.get(length, length) for length in tensor.shape]
    if tensor.layout != torch.strided or shape == list(tensor.shape):
        return tensor
    if tensor.numel() == 0:
        made = tensor.new_zeros(shape)
        return random_normal(made, generator_seed) if tensor.is_floating_point() or tensor.is_complex() else made
    made = tensor
    for dim, length in enumerate(shape):
        if length < tensor.shape[dim]:
            made = made.narrow(dim, 0, length)
        elif length > tensor.shape[dim]:
            made = made.index_select(dim, torch.arange(length, device=tensor.device) % tensor.shape[dim])
    if made.numel() == 0 or all(new <= old for new, old in zip(shape, tensor.shape, strict=True)):
        return made.clone(memory_format=torch.contiguous_format)
    given = tuple(slice(0, length) for length in tensor.shape)
    kept = made[given]
    made = drawn_in(made, generator_seed)
    made[given] = kept
    return made


def changed_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """1: a leading dimension of size 2, the second block as `resized` repeats; -1: the first of the leading ones."""
    if rank > 0:
        return torch.stack([tensor, drawn_in(tensor, 1)])
    if rank < 0 and tensor.dim() and tensor.shape[0]:
        return tensor[0].clone(memory_format=torch.contiguous_format)
    return tensor


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in other memory; the tensor itself where its shape doesn't allow the layout.

    What fills the gaps is finite, so that reading it gives a wrong number, not one that is missing. `expanded` alone
    changes values: take them from what is returned.
    """
    if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.dim() == 0:
        return tensor
    if layout == "transposed":
        return transposed(tensor)
    if layout == "strided":
        return strided(tensor)
    if layout == "offset":
        return offset(tensor)
    if layout == "sliced":
        return sliced(tensor)
    if layout == "expanded":
        return expanded(tensor)
    return channels_last(tensor) if layout == "channels_last" else tensor.contiguous()


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """First and last axis change places in memory; strided where that changes nothing."""
    made = tensor.transpose(0, -1).contiguous().transpose(0, -1)
    return strided(made) if made.is_contiguous() else made


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Every second element of wider memory."""
    return torch.stack([tensor, filling(tensor)], dim=-1)[..., 0]


def offset(tensor: torch.Tensor) -> torch.Tensor:
    """All but the first element of wider rows, as the backward of cat hands gradients on."""
    return torch.cat([filling(tensor)[..., :1], tensor], dim=-1)[..., 1:] if tensor.dim() else tensor


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, but not from the start of its memory: the later part of a batch."""
    return torch.cat([filling(tensor)[:1], tensor])[1:] if tensor.dim() else tensor


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Stride 0: over all axes if all values are equal, as the backward of sum hands gradients on.

    Otherwise over the first axis that is longer than 1; the values are then those of its first slice.
    """
    if tensor.numel() < 2:
        return tensor
    first = tensor[(0,) * tensor.dim()].clone()
    if bool((tensor == first).all()):
        return first.expand(tensor.shape)
    axis = next(dim for dim, length in enumerate(tensor.shape) if length > 1)
    return tensor.narrow(axis, 0, 1).clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats[tensor.dim()]) if tensor.dim() in formats else tensor


def filling(tensor: torch.Tensor) -> torch.Tensor:
    """What lies beside the values in wider memory: other numbers, finite, and valid indices."""
    return 1 - 2 * tensor if tensor.is_floating_point() or tensor.is_complex() else torch.zeros_like(tensor)


def other_entries(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    """Integers and booleans in another order, or all the same. What isn't meant for the type stays as it is."""
    mask = tensor.dtype == torch.bool
    if tensor.numel() == 0 or (kind != "reversed" and (kind in ("inverted", "all", "none", "row_none")) != mask):
        return tensor
    if kind == "reversed":
        return tensor.flip(tuple(range(tensor.dim())))
    if kind == "sorted":
        return tensor.reshape(-1).sort().values.reshape(tensor.shape)
    if kind == "inverted":
        return ~tensor
    if kind == "distinct":
        highest = max(int(tensor.max()), 0)
        return (torch.arange(tensor.numel()) % (highest + 1)).to(tensor.dtype).reshape(tensor.shape)
    made = tensor.clone(memory_format=torch.contiguous_format)
    if kind == "row_none":
        made.view(-1, tensor.shape[-1] if tensor.dim() else 1)[0] = False
        return made
    if kind == "zeros":
        return made.zero_()
    return made.fill_(made.view(-1)[0] if kind == "equal" else kind == "all")


def broadcastable(what: str, tensor: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """One input of another shape that still broadcasts with `largest`; itself where that isn't possible."""
    if what == "raised":
        return changed_rank(tensor, 1)
    if what == "leading":
        return changed_rank(tensor, -1)
    if what == "single":
        return tensor.reshape(-1)[:1].reshape(()).clone() if tensor.numel() else tensor
    if what == "full":
        sizes = zip(reversed(tensor.shape), reversed(largest.shape), strict=False)
        if tensor.dim() > largest.dim() or not all(size in (1, full) for size, full in sizes):
            return tensor
        return drawn_in(tensor.expand(largest.shape), 3).contiguous()
    axis = int(what.removeprefix("axis "))
    return tensor.narrow(axis, 0, 1).clone() if axis < tensor.dim() and tensor.shape[axis] > 1 else tensor


def made_complex(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor whose real part is the given one, and the imaginary part half of it backwards."""
    return torch.complex(tensor, 0.5 * tensor.flip(tuple(range(tensor.dim()))))


def around(number: float, like: torch.Tensor) -> torch.Tensor:
    """`number` exactly, less, more, in turn; less and more by 1 % to 30 % of it (of 1, if it is zero)."""
    count = torch.arange(like.numel(), dtype=torch.float64, device=like.device)
    # The golden section spreads the distances evenly without drawing any.
    distance = (0.01 + 0.29 * ((0.618034 * count) % 1.0)) * (abs(number) or 1.0)
    side = 1 - (count + 1) % 3
    made = (number + side * distance).reshape(like.shape)
    return (torch.complex(made, made) if like.is_complex() else made).to(like.dtype)


def one_hot_rows(rows: torch.Tensor) -> torch.Tensor:
    """One element of each row 1: the middle one in the first row, the next one in the next."""
    count, length = rows.shape
    place = (torch.arange(count, device=rows.device) + length // 2) % length
    return torch.zeros_like(rows, memory_format=torch.contiguous_format).scatter_(1, place[:, None], 1.0)


def drawn_in(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Floating values drawn towards zero by up to a fifth, each by another share; anything else a copy."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.clone(memory_format=torch.contiguous_format)
    share = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (tensor * (1 - 0.2 * share).to(tensor.device)).to(tensor.dtype)


def random_normal(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Drawn in double precision, so that every dtype gets the same numbers but for rounding."""
    wide = torch.complex128 if like.is_complex() else torch.float64
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=wide)
    return drawn.to(device=like.device, dtype=like.dtype)
