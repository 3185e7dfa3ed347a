"""Whether a call passes through infinities or NaN on its way, forward or backward, though its results are finite.

An exponent of 1 / 0, set to nothing by a base below 1, is a formula outside its domain. This module must not judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.trees import tensors


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.passed = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the first operation imports the compiler (1 cpu s).
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Memory that nobody has written to yet may hold anything.
        if not self.passed and "empty" not in func._schema.name:
            self.passed = any(
                (made.is_floating_point() or made.is_complex()) and not bool(made.isfinite().all())
                for _, made in tensors(result)
            )
        return result


def passes_infinities(call: Callable[[], object]) -> bool:
    """False where the call raises, or can't be watched."""
    watch = _Watch()
    try:
        with watch:
            call()
    except Exception:
        return False
    return watch.passed
