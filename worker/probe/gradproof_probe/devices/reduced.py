"""Products whose operands keep fewer bits than float32 has, computed on the CPU: what TF32 and its like would give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

PRODUCTS: Final = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution", "convolution_backward"),
        *("_convolution", "linear", "linear_backward", "mkldnn_linear", "_addmm_activation"),
    }
)
# TF32 keeps 10 of float32's 23 bits of the fraction of each operand of a product.
_TF32_DROPPED_BITS: Final = 13

Rounding = Callable[[torch.Tensor], torch.Tensor]


def as_tf32(value: torch.Tensor) -> torch.Tensor:
    """Rounded to TF32's 10 bits of fraction, to nearest."""
    bits = value.contiguous().view(torch.int32)
    half = 1 << (_TF32_DROPPED_BITS - 1)
    return ((bits + half) & ~((1 << _TF32_DROPPED_BITS) - 1)).view(torch.float32)


def as_bfloat16(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bfloat16).to(torch.float32)


def as_float16(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float16).to(torch.float32)


FORMATS: Final[dict[str, Rounding]] = {"TF32": as_tf32, "bfloat16": as_bfloat16, "float16": as_float16}


def rounded(values: Any, rounding: Rounding) -> Any:
    """The same structure with every float32 tensor rounded."""

    def change(value: Any) -> Any:
        return rounding(value) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value

    return tree_map(change, values)


class ReducedProducts(TorchDispatchMode):
    """While open, the operands of matrix products and convolutions are rounded first, where `enabled()`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, rounding: Rounding, enabled: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._rounding = rounding
        self._enabled = enabled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS and self._enabled():
            args = rounded(args, self._rounding)
        return func(*args, **(kwargs or {}))
