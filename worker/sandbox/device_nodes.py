"""The device nodes that a CUDA program needs to see, as this machine has them.

`/dev/nvidia-uvm` must exist before a job starts: the set-uid helper that would make it can't run inside.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Final

_SHARED: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_CARD: Final = re.compile(r"nvidia(\d+)")


def cuda_device_nodes(index: int | None = None, devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The nodes of every NVIDIA card, or of card `index` alone, with those that all cards share.

    Empty without a card: there is then nothing to show, and CUDA says so itself.
    """
    cards = sorted(
        entry
        for entry in devices.glob("nvidia*")
        if (match := _CARD.fullmatch(entry.name)) and (index is None or int(match.group(1)) == index)
    )
    if not cards:
        return ()
    shared = [devices / name for name in _SHARED]
    slices = sorted((devices / "nvidia-caps").glob("nvidia-cap*"))
    return tuple(str(node) for node in [*cards, *shared, *slices] if _is_device(node))


def _is_device(node: Path) -> bool:
    try:
        return stat.S_ISCHR(node.stat().st_mode)
    except OSError:
        return False
