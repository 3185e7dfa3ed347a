"""Every result rounded to fewer digits: what computing in a narrow type costs by itself, overflow and underflow apart.

It is the yardstick for a real narrow run: inputs, weights, each operation's result forward and backward, all rounded.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

# Significant bits, the hidden one included.
BITS: Final = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
Kind = Literal["fresh", "written", "view"]


class Rounding(TorchDispatchMode):
    """Results of float32 and float64 operations keep only the digits that `dtype` has; its range doesn't matter."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._bits = BITS[dtype]
        self._kinds: dict[Any, Kind] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks; True would import torch._dynamo at the first operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if kind == "view":
            return result
        if kind == "fresh":
            return tree_map_only(torch.Tensor, self._rounded, result)
        tree_map_only(torch.Tensor, lambda tensor: tensor.copy_(self._rounded(tensor)), result)
        return result

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        """By Veltkamp's splitting, which needs no look at exponents."""
        spare = BITS.get(tensor.dtype, 0) - self._bits
        if spare <= 0 or tensor.layout != torch.strided:
            return tensor
        big = tensor * float(2**spare + 1)
        found = big - (big - tensor)
        return torch.where(found.isfinite(), found, tensor)


def _kind(func: Any) -> Kind:
    aliases = [item.alias_info for item in func._schema.returns if item.alias_info is not None]
    if not aliases:
        return "fresh"
    return "written" if any(alias.is_write for alias in aliases) else "view"
