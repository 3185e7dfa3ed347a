"""What targets of a batch share. Apart from `target_process`, which imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """What the batch has left to share, in seconds."""

    inductor_s: float
