"""What inductor compiled for a repository, kept for later runs of the same origin.

Everything in it was written by submitted code. Here it is one opaque file for each origin: it comes out of a sandbox
as bytes, is bounded, stored and shown read-only to later sandboxes of that origin and of no other, and is never
unpacked, unpickled or executed on this side. Whatever goes wrong costs the time that it would have saved: nothing here
raises for it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from services.reuse.origins import Origin

log = structlog.get_logger(__name__)

# Of one origin. A transformer's layer takes 0.4 MB, a vision transformer of 50 operations 1.1 MB.
ARCHIVE_LIMIT: Final = 32 * 2**20
_SUFFIX: Final = ".kernels"
_COMING: Final = ".coming-"
# What was lent this lately may not be opened by its sandbox yet; what is half written for longer than a sandbox lives
# was left by a worker that was killed.
_IN_USE_S: Final = 60.0
_ABANDONED_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Amount:
    """How many origins have something kept, and how many bytes."""

    origins: int
    size: int


class KeptKernels:
    """What is kept of one origin, in a `directory` that has no more than `limit` bytes once something was added.

    `surroundings` says what compiled code depends on beside the submitted source. Safe with several workers: a file
    is whole or not there, and of two that end at the same time the later one stays.
    """

    def __init__(self, directory: Path, limit: int, origin: Origin, surroundings: str) -> None:
        self._directory = directory
        self._limit = limit
        self._origin = origin
        self._surroundings = surroundings

    def lent(self) -> Path | None:
        """The archive to start from, marked as used now; None if there is none."""
        for name in (self._origin.own, self._origin.base):
            path = None if name is None else self._path(name)
            if path is not None and _size(path) is not None:
                with contextlib.suppress(OSError):
                    os.utime(path, follow_symlinks=False)
                return path
        return None

    def coming(self) -> Coming:
        """Takes what a sandbox hands out."""
        return Coming(self._directory, self._path(self._origin.own), self._limit)

    def _path(self, name: str) -> Path:
        key = sha256(f"{name}\n{self._surroundings}".encode()).hexdigest()
        return self._directory / f"{key}{_SUFFIX}"


class Coming:
    """An archive on its way: goes to a file of its own until `keep` puts it into its place, or `drop` takes it away."""

    def __init__(self, directory: Path, place: Path, limit: int) -> None:
        self._directory = directory
        self._place = place
        self._limit = limit
        self._file: int | None = None
        self._path = Path()
        self._size = 0
        self._refused = ""

    def receive(self, data: bytes) -> None:
        """Take the next bytes. More than an archive may have is not kept, and no part of it."""
        self._size += len(data)
        if self._size > min(ARCHIVE_LIMIT, self._limit):
            self._refused = "it is larger than it may be"
        if self._refused:
            return
        try:
            if self._file is None:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file, name = tempfile.mkstemp(prefix=_COMING, dir=self._directory)
                self._path = Path(name)
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._refused = str(error)

    def keep(self) -> None:
        """All of it has come."""
        if self._file is not None and not self._refused:
            try:
                os.fchmod(self._file, 0o644)  # for the uid of a sandbox, which is not ours; the directory is ours alone
                self._path.replace(self._place)
            except OSError as error:
                self._refused = str(error)
        if self._refused:
            log.info("kernels_not_kept", reason=self._refused)
        self.drop()
        _clear_old(self._directory, self._limit)

    def drop(self) -> None:
        """Leave nothing behind; what was kept stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def amount(directory: Path) -> Amount:
    """What is kept in a directory."""
    sizes = [size for path in _entries(directory, _SUFFIX) if (size := _size(path)) is not None]
    return Amount(len(sizes), sum(sizes))


def _clear_old(directory: Path, limit: int) -> None:
    """Take away what was not used for longest, until the rest is within the limit."""
    now = time.time()
    found: list[tuple[float, int, Path]] = []
    for path in _entries(directory, ""):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if path.name.startswith(_COMING) and now - status.st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)
            elif path.name.endswith(_SUFFIX):
                found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if total <= limit or now - used < _IN_USE_S:
            return
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            total -= size


def _entries(directory: Path, suffix: str) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.name.endswith(suffix)]
    except OSError:
        return []


def _size(path: Path) -> int | None:
    """Bytes of a regular file that may be one of ours; None for everything else."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_size <= ARCHIVE_LIMIT else None
