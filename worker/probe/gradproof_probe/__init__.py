"""The only code of Gradproof that lives beside submitted code.

It finds targets in imported modules, builds inputs, runs checks and explains what they found. It needs torch (2.4 or
newer) and the standard library, and runs under any interpreter that has them. It must import nothing else of
Gradproof and must not be trusted: its parent validates every line that it writes.

`check_gradients`, `GradientReport` and `GradientError` are for a user's own test suite; they are loaded on first use,
so that importing `gradproof_probe.protocol` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproof_probe.library import GradientError, GradientReport, check_gradients

__all__ = ["GradientError", "GradientReport", "check_gradients"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gradproof_probe import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
