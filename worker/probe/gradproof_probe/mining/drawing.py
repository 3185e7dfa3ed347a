"""A tensor that was seen, as an expression that draws another one like it.

Like it in what the code may rely on: shape, kind of numbers, range, and structure (rows that sum to one, unit length,
symmetric, orthogonal, sorted). Never its very numbers where they are floating: what an author types into an example
(ones, 0.5, the identity) lies on kinks and clamps more often than not. `exact` gives the numbers after all, for calls
that only run with them. Nothing here draws a random number or changes a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

LITERALS: Final = 64  # elements that are written out; a 4x4 matrix for each of four images, still one line
CHANCE: Final = 6.9  # -log of one in a thousand: what random numbers show as rarely as that was meant
LOOKED_AT: Final = 2**16  # elements; larger tensors are judged by their beginning, and have no structure
CLOSE: Final = 1e-4  # float32 sums of up to a thousand terms are off by less

Shape = tuple[int, ...]
Resize = Callable[[Shape], Shape]


class UndrawableError(ValueError):
    """No expression can stand for this tensor; the text says why."""


def tensor_expression(tensor: torch.Tensor, *, exact: bool, resize: Resize) -> str:
    """Raise `UndrawableError`. `resize` maps the shape that was seen to the one that is wanted."""
    if tensor.layout == torch.sparse_coo:
        return f"{tensor_expression(tensor.to_dense(), exact=exact, resize=resize)}.to_sparse()"
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UndrawableError(f"a tensor of layout {tensor.layout}")
    if tensor.is_meta:
        raise UndrawableError("a tensor without data")
    shape, seen = resize(tuple(tensor.shape)), tensor.detach().cpu()
    if shape != tuple(tensor.shape):
        seen = seen[tuple(slice(0, size) for size in shape)]
        shape = tuple(seen.shape)
    if seen.is_complex():
        real = tensor_expression(seen.real, exact=exact, resize=_same)
        imaginary = tensor_expression(seen.imag, exact=exact, resize=_same)
        return f"torch.complex({real}, {imaginary})"
    if seen.numel() == 0:
        return f"torch.zeros({shape}{_dtype(seen)})"
    if seen.dtype == torch.bool:
        return _mask(seen, shape)
    if not seen.is_floating_point():
        return _whole(seen, shape)
    return _floating(seen, shape, exact=exact)


def _same(shape: Shape) -> Shape:
    return shape


def _dtype(tensor: torch.Tensor) -> str:
    """float32 and float64 follow the default dtype, which the checks set."""
    if tensor.dtype in (torch.float32, torch.float64):
        return ""
    return f", dtype={tensor.dtype}"


def _literal(tensor: torch.Tensor) -> str:
    values = tensor.double().tolist() if tensor.is_floating_point() else tensor.tolist()
    implied = tensor.dtype in (torch.int64, torch.bool)
    return f"torch.tensor({_numbers(values)}{'' if implied else _dtype(tensor)})"


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return _float(value) if isinstance(value, float) else repr(value)


def _float(value: float) -> str:
    """Six digits, and still a float: `torch.tensor([1])` would be an integer."""
    if not math.isfinite(value):
        return f"float('{value}')"
    text = f"{value:.6g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _mask(mask: torch.Tensor, shape: Shape) -> str:
    if bool(mask.all()) or not bool(mask.any()):
        return f"torch.{'ones' if bool(mask.all()) else 'zeros'}({shape}, dtype=torch.bool)"
    if len(shape) >= 2:
        for name in ("tril", "triu"):
            for diagonal in (0, 1, -1):
                ones = torch.ones(shape, dtype=torch.bool)
                if torch.equal(mask, getattr(ones, name)(diagonal)):
                    return f"torch.ones({shape}, dtype=torch.bool).{name}({diagonal})"
    if shape and shape[-1] >= 2 and mask[..., 0].all() and not (mask[..., 1:] & ~mask[..., :-1]).any():
        lengths = mask.sum(-1, keepdim=True)
        if lengths.numel() <= LITERALS:
            return f"(torch.arange({shape[-1]}) < {_literal(lengths)})"
    if mask.numel() <= LITERALS:
        return _literal(mask)
    return f"(torch.rand({shape}) < {max(0.1, min(0.9, float(mask.float().mean()))):.2g})"


def _whole(tensor: torch.Tensor, shape: Shape) -> str:
    """Integers choose (classes, indices, lengths): they are kept where they are few, their range where they aren't."""
    low, high = int(tensor.min()), int(tensor.max())
    kind = "" if tensor.dtype == torch.int64 else f", dtype={tensor.dtype}"
    if low == high and (low in (0, 1) or tensor.numel() > 8):
        return f"torch.full({shape}, {low}, dtype={tensor.dtype})"
    if len(shape) == 1 and shape[0] > 1:
        count = torch.arange(low, low + shape[0])
        if torch.equal(tensor.long(), count):
            return f"torch.arange({low}, {low + shape[0]}{kind})"
        if low == 0 and torch.equal(tensor.long().sort().values, count):
            return f"torch.randperm({shape[0]}{kind})"
    if tensor.numel() <= LITERALS:
        return _literal(tensor)
    if shape[-1] >= 2 and low == 0 and high == 1 and bool((tensor.sum(-1) == 1).all()):
        return f"torch.nn.functional.one_hot(torch.randint({shape[-1]}, {shape[:-1]}), {shape[-1]}).to({tensor.dtype})"
    if low >= 0 and high > 3 and _is_sorted(tensor, shape):
        return f"torch.randint({low}, {high + 1}, {shape}{kind}).sort(-1).values"
    return f"torch.randint({low}, {high + 1}, {shape}{kind})"


def _floating(tensor: torch.Tensor, shape: Shape, *, exact: bool) -> str:
    if bool(tensor.isnan().any()):
        raise UndrawableError("a tensor with NaN in it")
    if bool(tensor.isinf().any()):
        return _with_infinities(tensor, shape)
    if exact:
        return _exactly(tensor, shape)
    structure = next(_structures(tensor, shape), None) if tensor.numel() <= LOOKED_AT else None
    text = structure or _by_range(tensor, shape)
    return f"({text}).to({tensor.dtype})" if _dtype(tensor) else text


def _with_infinities(tensor: torch.Tensor, shape: Shape) -> str:
    """A mask that is added: its finite part is zero as a rule."""
    infinite = tensor.isinf()
    value = float(tensor[infinite][0])
    if bool((tensor[infinite] != value).any()):
        raise UndrawableError("a tensor with both infinities in it")
    return f"torch.zeros({shape}).masked_fill({_mask(infinite, shape)}, float('{value}'))"


def _exactly(tensor: torch.Tensor, shape: Shape) -> str:
    first = float(tensor.reshape(-1)[0])
    if bool((tensor == first).all()):
        return (
            f"torch.full({shape}, {_float(first)}{_dtype(tensor)})"
            if first
            else f"torch.zeros({shape}{_dtype(tensor)})"
        )
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        eye = torch.eye(shape[-1]).expand(shape)
        if torch.equal(tensor.to(eye.dtype), eye):
            return f"torch.eye({shape[-1]}{_dtype(tensor)}).repeat({(*shape[:-2], 1, 1)})"
    if tensor.numel() <= LITERALS:
        return _literal(tensor)
    steps = torch.linspace(first, float(tensor.reshape(-1)[-1]), tensor.numel()).reshape(shape)
    if torch.allclose(tensor.to(steps.dtype), steps, rtol=1e-4, atol=1e-5):
        last = float(tensor.reshape(-1)[-1])
        return f"torch.linspace({first:.6g}, {last:.6g}, {tensor.numel()}{_dtype(tensor)}).reshape({shape})"
    raise UndrawableError("a large tensor whose numbers follow no simple rule")


def _structures(tensor: torch.Tensor, shape: Shape) -> Iterator[str]:
    values = tensor.float()
    low, high = float(values.min()), float(values.max())
    whole = bool((values == values.round()).all())
    if len(shape) >= 2 and shape[-1] == shape[-2] and 2 <= shape[-1] <= 64:
        yield from _square(values, shape)
    if whole and low == 0 and high == 1 and tensor.numel() >= 8 and 0.05 < float(values.mean()) < 0.95:
        yield from _classes(values, shape)
    if low >= 0 and high <= 1 and low != high and not whole:
        for dim in (-1, 1):
            if len(shape) > abs(dim) - (dim < 0) and shape[dim] >= 2 and _near(values.sum(dim), 1.0):
                yield f"torch.randn({shape}).softmax({dim})"
    for dim in (-1, 1):
        if (
            len(shape) >= 2
            and 2 <= shape[dim] <= 4096
            and low != high
            and not whole
            and _near(values.norm(dim=dim), 1.0)
        ):
            yield f"torch.nn.functional.normalize(torch.randn({shape}), dim={dim})"
    if low != high and _is_sorted(values, shape):
        yield f"({_by_range(tensor, shape)}).sort(-1).values"


def _is_sorted(values: torch.Tensor, shape: Shape) -> bool:
    """Whether rows are sorted that hardly are so by chance: two of four numbers are in 1 of 576."""
    if not shape or shape[-1] < 2:
        return False
    rows = math.prod(shape[:-1])
    return rows * math.lgamma(shape[-1] + 1) > CHANCE and bool((values[..., 1:] >= values[..., :-1]).all())


def _classes(values: torch.Tensor, shape: Shape) -> Iterator[str]:
    for dim in (-1, 1):
        if len(shape) >= 2 and shape[dim] >= 2 and _near(values.sum(dim), 1.0):
            rest = [size for at, size in enumerate(shape) if at != dim % len(shape)]
            text = f"torch.nn.functional.one_hot(torch.randint({shape[dim]}, {tuple(rest)}), {shape[dim]}).float()"
            yield text if dim % len(shape) == len(shape) - 1 else f"{text}.movedim(-1, {dim})"
    yield f"torch.randint(0, 2, {shape}).float()"


def _square(values: torch.Tensor, shape: Shape) -> Iterator[str]:
    size = shape[-1]
    last = values[..., -1, :]
    scale = float(values.abs().max()) or 1.0
    flat = bool((values == values[..., :1, :1]).all())  # what is the same everywhere is symmetric by chance
    if _near(values @ values.mT - torch.eye(size), 0.0):
        yield f"torch.linalg.qr(torch.randn({shape}))[0]"
    elif bool((last[..., :-1] == 0).all()) and bool((last[..., -1] == 1).all()) and size in (3, 4):
        # A transformation of homogeneous coordinates: near the one that was given, its last row as it must be.
        noise = f"torch.randn({shape}) * torch.tensor([[0.05]] * {size - 1} + [[0.0]])"
        around = _literal(values) if values.numel() <= LITERALS else f"torch.eye({size})"
        yield f"{around} * (1 + {noise}) + {noise}"
    elif not flat and _near((values - values.mT) / scale, 0.0):
        if bool((torch.linalg.eigvalsh(values) > -CLOSE * scale).all()):
            yield f"(lambda m: m @ m.mT / {size} + torch.eye({size}))(torch.randn({shape}))"
        elif bool((values.diagonal(dim1=-2, dim2=-1) == 0).all()):
            yield f"(lambda m: (m + m.mT) * (1 - torch.eye({size})))(torch.rand({shape}))"
        else:
            draw = "rand" if bool((values >= 0).all()) else "randn"
            yield f"(lambda m: m + m.mT)(torch.{draw}({shape}))"
    elif not flat and bool((values.triu(1) == 0).all()):
        yield f"torch.randn({shape}).tril(-1) + torch.eye({size}) * (1 + torch.rand({shape}))"


def _by_range(tensor: torch.Tensor, shape: Shape) -> str:
    values = tensor.reshape(-1)[:LOOKED_AT].float()
    low, high = float(values.min()), float(values.max())
    if tensor.numel() <= LITERALS and low != high and _typed_in(values):
        # Numbers that somebody chose (boxes, points, camera matrices): near them, zeros where zeros were.
        return f"{_literal(tensor.float())} * (1 + 0.05 * torch.rand({shape}))"
    if low == high and low not in (0, 1):
        return f"{low:.3g} * (0.9 + 0.2 * torch.rand({shape}))"
    if low >= 0 and high <= 1:
        return f"torch.rand({shape})" if low < 1 or shape else f"torch.rand({shape}) + 0.5"
    if low >= 0 or high <= 0:
        return f"{low:.3g} + {high - low:.3g} * torch.rand({shape})" if low else f"{high:.3g} * torch.rand({shape})"
    if low >= -1 and high <= 1 and high - low > 1 and tensor.numel() > 16:
        return f"(2 * torch.rand({shape}) - 1)"
    mean, spread = float(values.mean()), float(values.std()) if values.numel() > 1 else 1.0
    if abs(mean) < spread and 0.2 < spread < 5:
        return f"torch.randn({shape})"
    around = f"{mean:.3g} + " if abs(mean) > 0.5 * spread else ""
    return f"{around}{spread:.2g} * torch.randn({shape})"


def _typed_in(values: torch.Tensor) -> bool:
    """Whether all have at most two decimals: no random draw does that."""
    hundredths = values.double() * 100
    return bool(((hundredths - hundredths.round()).abs() < 1e-3).all())


def _near(values: torch.Tensor, wanted: float) -> bool:
    return values.numel() > 0 and bool(((values - wanted).abs() < CLOSE).all())
