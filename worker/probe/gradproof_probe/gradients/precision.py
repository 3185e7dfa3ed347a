"""Where a float64 run computes in less: then small steps see rounding, and only large ones a derivative."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Unit roundoff times a few: one cast, then sums of it.
COARSE: Final = {torch.float32: 2.5e-7, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(slots=True)
class Narrow:
    """The narrowest floating type that was computed in after wider ones had come in, and the operation."""

    dtype: torch.dtype | None = None
    operation: str = ""
    random: set[str] = field(default_factory=set)


class PrecisionTrace(TorchDispatchMode):
    """Notes casts of float64 values to narrower floats, and operations that draw random numbers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks; True would import torch._dynamo at the first operation (2 s in every child)."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.narrow = Narrow()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.narrow.random.add(str(func).partition(".")[2].partition(".")[0] or str(func))
        wide = any(isinstance(item, torch.Tensor) and item.dtype in (torch.float64, torch.complex128) for item in args)
        if wide and isinstance(result, torch.Tensor) and result.dtype in COARSE:
            current = self.narrow.dtype
            if current is None or COARSE[result.dtype] > COARSE[current]:
                self.narrow.dtype, self.narrow.operation = result.dtype, str(func)
        return result
