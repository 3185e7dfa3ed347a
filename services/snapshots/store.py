"""The content-addressed store: one directory a snapshot, named by its digest, written once and read-only.

This is the one place where the names of submitted files touch a file system: every file is created anew, relative to
the descriptor of its directory, never through a link. A snapshot appears whole, by a rename, or not at all, so any
number of writers may store the same tree at once. Files and directories are readable by everybody, because the uid of
a sandbox must read them, and writable by nobody.

What is stored again is as young as what is new, by the time stamp of its directory, and only what is old is discarded.
A lock makes the two exclude each other: a snapshot that `put` has found there is there, or was written anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from services.snapshots.errors import SnapshotDamagedError, SnapshotNotFoundError, SnapshotStoreError
from services.snapshots.model import Snapshot, SourceTree, tree_digest
from services.snapshots.owners import owner_lines
from services.snapshots.paths import shown

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_STAGING: Final = ".staging-"
_LOCK: Final = ".lock"
_STALE_AFTER_S: Final = 3600  # storing takes seconds; what is older was left by a writer that was killed
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY_MODE: Final = 0o555
_FILE_MODE: Final = 0o444


class SnapshotStore:
    """Snapshots below one directory, which is made when the first one comes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, tree: SourceTree) -> Snapshot:
        """Store a tree, unless it is stored already. Raises `SnapshotStoreError` when the store can't be written."""
        snapshot = Snapshot(
            digest=tree.digest,
            files=len(tree),
            lines=tree.lines,
            source=tree.source,
            stripped=tree.stripped,
            left_out=tree.left_out,
            owners=owner_lines(tree),
        )
        final = self._place(snapshot.digest)
        staging = self._directory / f"{_STAGING}{secrets.token_hex(8)}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if self._is_renewed(final):
                return snapshot
            self._remove_stale()
            staging.mkdir(mode=0o755)
            _write(tree, staging)
            _publish(staging, final)
        except OSError as error:
            raise SnapshotStoreError(
                f"the snapshot can't be stored in {self._directory}: {error.strerror or error}",
                directory=str(self._directory),
            ) from error
        finally:
            _remove(staging)
        return snapshot

    def discard(self, digest: str, *, unused_for: timedelta) -> bool:
        """Remove a snapshot that was last stored longer ago than that; False if it is not there, or younger.

        The caller knows that nothing refers to it.
        """
        place = self._place(digest)
        going = self._directory / f"{_STAGING}{secrets.token_hex(8)}"
        with self._alone(fcntl.LOCK_EX):
            try:
                age_s = time.time() - place.stat().st_mtime
            except FileNotFoundError:
                return False
            if age_s < unused_for.total_seconds():
                return False
            place.rename(going)
            os.utime(going)  # else a writer would take it for one that was left behind, and remove it as well
        _remove(going)
        return True

    def digests(self) -> tuple[str, ...]:
        """The digests of all snapshots, sorted."""
        if not self._directory.is_dir():
            return ()
        names = sorted(os.listdir(self._directory))  # noqa: PTH208 - names only, no Path objects
        return tuple(digest for digest in (f"sha256:{name}" for name in names) if _DIGEST.fullmatch(digest))

    def path(self, digest: str) -> Path:
        """The read-only directory of plain files. Raises `SnapshotNotFoundError`."""
        place = self._place(digest)
        if not place.is_dir():
            raise SnapshotNotFoundError(f"there is no snapshot {shown(digest)}", digest=shown(digest))
        return place

    def files(self, digest: str) -> tuple[str, ...]:
        """The relative POSIX paths of a snapshot's files, sorted. Raises `SnapshotNotFoundError`."""
        return tuple(sorted(path for path, _ in _walk(self.path(digest), digest)))

    def verify(self, digest: str) -> None:
        """Read everything again. Raises `SnapshotDamagedError` when it is not what the digest says."""
        contents = dict(_walk(self.path(digest), digest, read=True))
        if tree_digest((path, contents[path]) for path in sorted(contents)) != digest:
            raise SnapshotDamagedError(f"snapshot {digest} is damaged in the store", digest=digest)

    def _place(self, digest: str) -> Path:
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise SnapshotNotFoundError(f"not the digest of a snapshot: {shown(digest)}", digest=shown(digest))
        return self._directory / match[1]

    def _is_renewed(self, place: Path) -> bool:
        """Whether the snapshot is there; then it counts as stored just now."""
        with self._alone(fcntl.LOCK_SH):
            try:
                os.utime(place)
            except FileNotFoundError:
                return False
            return True

    @contextmanager
    def _alone(self, how: int) -> Iterator[None]:
        """Until the block ends, no other process is in a block that excludes this one."""
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield
        finally:
            os.close(lock)

    def _remove_stale(self) -> None:
        for entry in self._directory.glob(f"{_STAGING}*"):
            try:
                if time.time() - entry.stat().st_mtime > _STALE_AFTER_S:
                    _remove(entry)
            except FileNotFoundError:
                continue  # its writer was alive after all, and is done


def _write(tree: SourceTree, top: Path) -> None:
    """Write every file below `top`. Paths come sorted: the files of a directory, and of those in it, come together."""
    names: list[str] = []
    descriptors = [os.open(top, _OPEN_DIRECTORY)]
    try:
        for path, data in tree.items():
            *directories, name = path.split("/")
            while names != directories[: len(names)]:
                _close_directory(descriptors.pop())
                names.pop()
            for directory in directories[len(names) :]:
                os.mkdir(directory, mode=0o755, dir_fd=descriptors[-1])
                descriptors.append(os.open(directory, _OPEN_DIRECTORY, dir_fd=descriptors[-1]))
                names.append(directory)
            _write_file(descriptors[-1], name, data)
        while len(descriptors) > 1:
            _close_directory(descriptors.pop())
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _write_file(directory: int, name: str, data: bytes) -> None:
    with open(os.open(name, _CREATE, _FILE_MODE, dir_fd=directory), "wb", buffering=0) as file:  # noqa: PTH123
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fchmod(file.fileno(), _FILE_MODE)  # whatever the umask


def _close_directory(descriptor: int) -> None:
    try:
        os.fchmod(descriptor, _DIRECTORY_MODE)
    finally:
        os.close(descriptor)


def _publish(staging: Path, final: Path) -> None:
    """Give the finished tree its name; when another writer was faster, theirs is the same."""
    staging.chmod(_DIRECTORY_MODE)  # a rename within one directory does not write to what is renamed
    try:
        staging.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _remove(directory: Path) -> None:
    """Remove a tree of read-only directories, if it is there."""
    if not directory.is_dir():
        return
    for place, _, _ in os.walk(directory):
        Path(place).chmod(0o755)
    shutil.rmtree(directory)


def _walk(top: Path, digest: str, *, read: bool = False) -> Iterator[tuple[str, bytes]]:
    """Each file below `top` with the SHA-256 of its content (empty unless `read`); links and the like are damage."""
    pending = [""]
    while pending:
        relative = pending.pop()
        for entry in sorted(os.listdir(top / relative)):  # noqa: PTH208
            path = f"{relative}/{entry}" if relative else entry
            mode = (top / path).lstat().st_mode
            if stat.S_ISDIR(mode):
                pending.append(path)
            elif stat.S_ISREG(mode):
                yield path, _sha256(top / path) if read else b""
            else:
                raise SnapshotDamagedError(f"snapshot {digest} holds {shown(path)}, which is no file", digest=digest)


def _sha256(path: Path) -> bytes:
    with open(os.open(path, _OPEN_FILE), "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "sha256").digest()
