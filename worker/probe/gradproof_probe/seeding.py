"""Every generator that model code draws from, set to one seed: the same seed gives the same numbers again."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def reseed(seed: int) -> None:
    """On a machine where no other device was used yet, only the CPU's generator of torch.

    `torch.manual_seed` notes a seed with a stack trace for each device that isn't initialised: 0.9 ms a call, where
    a small forward takes 0.03.
    """
    if torch.cuda.is_initialized() or hasattr(torch, "sim"):
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")  # not imported for it: submitted code that uses it has imported it
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def state() -> tuple[Any, ...]:
    """What the generators stand at, to be compared with `unchanged`."""
    numpy = sys.modules.get("numpy")
    return (
        torch.random.get_rng_state(),
        random.getstate(),
        None if numpy is None else numpy.random.get_state(legacy=False)["state"]["pos"],
    )


def unchanged(before: tuple[Any, ...]) -> bool:
    """Whether nothing was drawn since `before`."""
    now = state()
    return torch.equal(before[0], now[0]) and before[1:] == now[1:]
