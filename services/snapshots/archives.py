"""Reads an uploaded archive into a tree: .zip, .tar, .tar.gz (.tgz), or a single .py.

The kind is told by the file name and must be borne out by the content. Only regular files and directories are
accepted: one link, device or unacceptable name refuses the whole archive, with the name of the member, since an honest
archive of source code can be made without it. A top-level directory that everything lies in, as forges make it, is
taken off the paths, unless it is itself the package.

Kept is every file that could matter to an import, data files included, up to `Limits.kept_file`; caches, version
control and installed packages are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Final

from services.snapshots.archive_budget import ArchiveBudget
from services.snapshots.building import TreeBuilder
from services.snapshots.errors import ArchiveUnsupportedError, PathRefusedError, PythonFileTooLargeError
from services.snapshots.gzip_stream import GzipStream
from services.snapshots.limits import DEFAULT_LIMITS, Limits, size_text
from services.snapshots.model import Source, SourceTree
from services.snapshots.paths import shown
from services.snapshots.tar_reader import TarReader
from services.snapshots.zip_reader import ZipReader

_Read = Callable[[BinaryIO, str, TreeBuilder, ArchiveBudget], None]


def read_archive(stream: BinaryIO, filename: str, *, limits: Limits = DEFAULT_LIMITS) -> SourceTree:
    """The tree in an archive.

    `stream` is seekable and is read from its start; `filename` is the uploader's name for it, without directories.
    Raises a kind of `SnapshotRefusedError`: `ArchiveError` for the archive, `PathRefusedError` for a member's name,
    `PythonFileTooLargeError`, `TooManyFilesError`, `EmptyTreeError`.
    """
    read = _reader(filename)
    builder = TreeBuilder(limits)
    try:
        stream.seek(0)
        read(stream, filename, builder, ArchiveBudget(limits))
        return builder.finish(Source("archive"), strip=True)
    except BaseException:
        builder.close()
        raise


def _read_zip(stream: BinaryIO, _: str, builder: TreeBuilder, budget: ArchiveBudget) -> None:
    ZipReader(stream, builder, budget).read()


def _read_tar(stream: BinaryIO, _: str, builder: TreeBuilder, budget: ArchiveBudget) -> None:
    TarReader(_Counted(stream, budget), builder, budget).read()


def _read_tar_gz(stream: BinaryIO, _: str, builder: TreeBuilder, budget: ArchiveBudget) -> None:
    TarReader(GzipStream(stream, budget), builder, budget).read()


def _read_python(stream: BinaryIO, filename: str, builder: TreeBuilder, budget: ArchiveBudget) -> None:
    if "/" in filename:
        raise PathRefusedError(
            f"the name of a single file has a directory: {shown(filename)}",
            member=shown(filename),
            reason="a directory",
        )
    limit = budget.limits.kept_file
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise PythonFileTooLargeError(
            f"{shown(filename)} has more than {size_text(limit)}", member=shown(filename), limit=limit
        )
    path = builder.admit(filename, len(data))
    if path is not None:
        builder.add(path, data)


_READERS: Final[tuple[tuple[str, _Read], ...]] = (
    (".zip", _read_zip),
    (".tar", _read_tar),
    (".tar.gz", _read_tar_gz),
    (".tgz", _read_tar_gz),
    (".py", _read_python),
)


def _reader(filename: str) -> _Read:
    for suffix, read in _READERS:
        if filename.lower().endswith(suffix):
            return read
    raise ArchiveUnsupportedError(
        f"{shown(filename)} does not end in .zip, .tar, .tar.gz or .py", filename=shown(filename)
    )


class _Counted:
    """A stream whose bytes count as both read and produced: an archive without compression."""

    def __init__(self, stream: BinaryIO, budget: ArchiveBudget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, count: int) -> bytes:
        data = self._stream.read(count)
        self._budget.consume(len(data))
        self._budget.produce(len(data))
        return data
