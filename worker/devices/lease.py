"""One holder for a GPU on a machine: a locked file, named by the device's UUID.

The kernel keeps the lock for as long as its holder lives and not a moment longer, however it ends: a killed worker
leaves nothing to clean up. All users of the machine share the directory, so the files can be opened by each of them;
they hold nothing but who has the device, for people. Containers do not share it: there the lease in the database, which
`worker.devices.duty` takes beside this one, keeps two workers apart.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_MACHINE_WIDE: Final = Path("/run/lock")
_READABLE: Final = 512


class DeviceLock:
    """A held lock. `release` it, or end: both free the device."""

    def __init__(self, uuid: str, descriptor: int) -> None:
        self.uuid = uuid
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let others have the device. May be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def lock_directory(asked: Path | None) -> Path:
    """Where the locks lie: as asked, or /run/lock, or the directory for temporary files where there is none."""
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        return asked
    if os.access(_MACHINE_WIDE, os.W_OK | os.X_OK):
        return _MACHINE_WIDE
    return Path(tempfile.gettempdir())


def try_lock(uuid: str, directory: Path) -> DeviceLock | None:
    """The lock of this device, or None while somebody else, in whichever process, holds it."""
    descriptor = _opened(_file(uuid, directory))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)
    return DeviceLock(uuid, descriptor)


def holder(uuid: str, directory: Path) -> int | None:
    """The process that says it holds this device; None while nobody does. Takes the lock for a moment itself."""
    try:
        descriptor = os.open(_file(uuid, directory), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(ValueError, TypeError, KeyError):
            return int(json.loads(os.pread(descriptor, _READABLE, 0))["pid"])
        return 0
    finally:
        os.close(descriptor)
    return None


def _file(uuid: str, directory: Path) -> Path:
    return directory / f"gradproof-{uuid}.lock"


def _opened(file: Path) -> int:
    """An existing file is opened without O_CREAT: in a sticky directory the kernel forbids that for another's file."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(file, flags)
        except FileNotFoundError:
            with suppress(FileExistsError):
                descriptor = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # whatever the mask is: the next holder may be another user
                return descriptor
