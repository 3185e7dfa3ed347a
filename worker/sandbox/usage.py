"""The watch over a run's memory where no control group can count it.

Looks at the process tree now and then, so a quick allocation may pass the limit between two looks; a run in a control
group needs none of this.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_EVERY_S: Final = 0.5
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat after the name in brackets: 1 is the parent (field 4), 21 the resident pages (field 24).
_PARENT: Final = 1
_RESIDENT: Final = 21


class MemoryWatch:
    """Called with the pid that a run began with; remembers the most memory it saw."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next = 0.0
        self.peak: int | None = None

    def __call__(self, pid: int) -> str | None:
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _EVERY_S
        used = resident_memory(pid)
        self.peak = max(self.peak or 0, used)
        return f"{used} bytes of memory in use; {self._limit} are allowed" if used > self._limit else None


def resident_memory(root: int) -> int:
    """Resident bytes of `root` and all its descendants; shared pages count once for each process."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[_PARENT])
        resident[int(entry.name)] = int(fields[_RESIDENT]) * _PAGE
    return sum(pages for pid, pages in resident.items() if _descends(pid, root, parents))


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != root:
        pid = parents.get(pid, 0)
    return pid == root


def processes_of_this_user() -> int:
    """How many threads run under our uid: RLIMIT_NPROC counts them all, whoever started them."""
    ours = os.getuid()
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == ours:
                    count += len(os.listdir(entry / "task"))  # noqa: PTH208 - names only, no Path objects
            except OSError:
                continue
    return count
