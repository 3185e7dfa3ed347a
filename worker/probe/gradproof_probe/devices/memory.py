"""The memory of a device: how much of it a check may take, and what is said when it does not suffice.

Running out of memory says nothing about the code: with other sizes, or on another device, it would have come through.
The bound guards the device against accidents; code that means ill can lift it, and gets the device for itself alone.
"""

from __future__ import annotations

from typing import Final

import torch

# What CUDA, cuBLAS and cuDNN say, each in its own words.
_WORDS: Final = ("out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")
# Errors that code raises out of others: more than a few are a cycle.
_DEEPEST: Final = 10


def bound_memory(limit: int) -> None:
    """No more than `limit` bytes of the CUDA device for this process; 0: no bound."""
    if limit:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), 0)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the device had no memory left, also where the code has wrapped that into an error of its own."""
    for _ in range(_DEEPEST):
        if error is None:
            return False
        if isinstance(error, torch.cuda.OutOfMemoryError) or any(word in str(error) for word in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def ran_out(kind: str) -> bool:
    """Whether the device had no memory left at some time in this process, even if the code went on."""
    return kind == "cuda" and torch.cuda.memory_stats().get("num_ooms", 0) > 0
