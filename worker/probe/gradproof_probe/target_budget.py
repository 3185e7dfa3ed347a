"""What targets of a batch share. Apart from `target_process`, which imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """In seconds: what the batch has left to share of inductor's time, and what the search for a harness may take."""

    inductor_s: float
    harness_s: float
