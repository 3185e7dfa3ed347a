"""Every generator that model code draws from, set to one seed: the same seed gives the same numbers again."""

from __future__ import annotations

import random
import sys

import torch


def reseed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")  # not imported for it: submitted code that uses it has imported it
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
