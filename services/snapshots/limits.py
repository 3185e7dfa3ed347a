"""How much is accepted, in one place, for every way in.

The figures are those of the product's security review; they bound what a hostile input can cost, and honest
repositories stay far below them (vLLM, one of the largest PyTorch projects, has about 5,000 files and 60 MB).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one input. Sizes in bytes, times in seconds.

    `members` counts files and directories, also those that are left out later. `kept_file` bounds a file of a
    snapshot: a larger Python file refuses the input, any other larger file (weights, images) is left out. `ratio`
    bounds uncompressed by compressed bytes, once more than `ratio_floor` bytes came out: small files of zeros
    compress a thousandfold and harm nobody.
    """

    members: int = 20_000
    total: int = 200 * MB
    archive_member: int = 20 * MB
    kept_file: int = 5 * MB
    ratio: int = 100
    ratio_floor: int = 10 * MB
    seconds: float = 60.0


DEFAULT_LIMITS: Final = Limits()


class Deadline:
    """A moment on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return time.monotonic() >= self._end


def size_text(count: int) -> str:
    """A byte count for a person: `204,800 bytes`, `20 MB`."""
    return f"{count / MB:.0f} MB" if count >= 10 * MB else f"{count / MB:.1f} MB" if count >= MB else f"{count:,} bytes"
