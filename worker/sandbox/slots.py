"""A uid of its own for each job that runs at the same time on this machine.

Two jobs under one uid could signal each other and would share per-user limits. A slot is a locked file; the lock is
handed to bwrap (`--sync-fd`), which holds it until the last process of the job is gone, even if the worker is killed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.sandbox.errors import SandboxUnavailableError

SLOTS: Final = 1024  # far above what one machine runs at a time
_MACHINE_WIDE: Final = Path("/run/gradproof-sandbox")


@dataclass(frozen=True, slots=True)
class Slot:
    """A uid (and the gid of the same number) that nobody else uses, for as long as `lock` is open somewhere."""

    uid: int
    lock: int


def slot_directory(data_dir: Path) -> Path:
    """Where the locks lie: one place for all workers of the machine, or below `data_dir` where /run is read-only.

    Raises SandboxUnavailableError if neither can be written.
    """
    try:
        _MACHINE_WIDE.mkdir(mode=0o700, exist_ok=True)
        if _MACHINE_WIDE.stat().st_uid == os.geteuid() and os.access(_MACHINE_WIDE, os.W_OK):
            return _MACHINE_WIDE
    except OSError:
        pass
    fallback = data_dir / "sandbox-slots"
    try:
        fallback.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailableError(f"there is no place for the locks of sandbox uids: {error}") from error
    return fallback


@contextmanager
def occupy(directory: Path, uid_base: int) -> Iterator[Slot]:
    """The lowest free slot. Raises SandboxUnavailableError when all of them are taken."""
    for number in range(SLOTS):
        uid = uid_base + number
        lock = os.open(directory / f"{uid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        try:
            yield Slot(uid, lock)
        finally:
            os.close(lock)
        return
    raise SandboxUnavailableError(f"all {SLOTS} sandbox uids from {uid_base} on are in use", uid_base=uid_base)
