"""What inductor compiled for this repository: taken over from an earlier run of it, handed out for the next.

The archive was written by submitted code, this commit's or an earlier one's. It is unpacked inside the sandbox alone,
in a child with bounds, into the scratch directory; one that is damaged or hostile costs this sandbox its warm start
and nothing else. Only regular files come out of it, under names as inductor gives them: stricter than the `data`
filter of tarfile, which some Pythons in use lack. What a run finds with code from an archive is no evidence against
the target: a difference is looked at again without it (`leave_aside`).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from gradproof_probe.processes import watch

# Set by the worker: where the archive is shown, and the descriptor that takes a new one.
_SHOWN: Final = "GRADPROOF_KEPT_KERNELS"
_DESCRIPTOR: Final = "GRADPROOF_ARCHIVE_FD"
# A vision transformer of 50 operations takes 4 MB in 200 files; all of it lies in the memory of the sandbox.
_BYTES: Final = 128 * 2**20
_FILE_BYTES: Final = 16 * 2**20
_FILES: Final = 20_000
# The worker keeps no archive that is larger than 32 MiB.
_ARCHIVE: Final = 30 * 2**20
_WITHIN_S: Final = 20.0
_DEPTH: Final = 5
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,200}[A-Za-z0-9_])?")
# Made anew where it is needed: the headers are lent apart, for all repositories.
_LEFT_OUT: Final = frozenset({"precompiled_headers", "locks"})
_CHUNK: Final = 2**20

# The cause of an answer that rests on them and has to be found without them.
DIFFERS_WARM: Final = "differs_with_kept_kernels"

_taken_over: frozenset[str] = frozenset()


class RefusedArchiveError(Exception):
    """An archive that this probe did not write."""


def take_over() -> None:
    """Put what an earlier run left where inductor looks. In the parent, which never reads a byte of it."""
    global _taken_over  # noqa: PLW0603 - a fact of the process, which its forks inherit
    shown = os.environ.get(_SHOWN)
    home = _home()
    if not shown or home is None:
        return
    until = time.monotonic() + _WITHIN_S
    place = Path(tempfile.mkdtemp(prefix="gradproof-kernels-"))
    try:
        end = watch(lambda _: unpack(Path(shown), place), deadline=lambda: until, on_line=lambda _: None)
        if end.clean:
            home.mkdir(parents=True, exist_ok=True)
            for entry in place.iterdir():
                if not (home / entry.name).exists():
                    entry.rename(home / entry.name)
            _taken_over = frozenset(islice(_files(home), _FILES))
    except OSError:
        return  # no warm start
    finally:
        shutil.rmtree(place, ignore_errors=True)


def output_descriptor() -> int | None:
    """Where a new archive goes. Taken out of the environment, and not inheritable: no child may write to it."""
    text = os.environ.pop(_DESCRIPTOR, "")
    try:
        descriptor = int(text)
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    except (ValueError, OSError):
        return None
    return descriptor


def hand_out(descriptor: int) -> None:
    """Write all that is cached as one archive, what is new first; nothing where nothing is new."""
    home = _home()
    if home is None:
        return
    found = set(islice(_files(home), _FILES))
    if found <= _taken_over:
        return
    order = sorted(found, key=lambda name: (name in _taken_over, name))
    with contextlib.suppress(OSError):
        pack(home, order, _Bounded(descriptor))


def is_warm() -> bool:
    """Whether this process may be given something that an earlier run compiled."""
    return bool(_taken_over)


def were_used() -> bool:
    """Whether it was: whether graphs were found compiled, or one of the files is loaded."""
    home = _home()
    if home is None or not _taken_over:
        return False
    if counted()["graphs_from_cache"]:
        return True
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    loaded = {line.split(None, 5)[-1] for line in maps}
    loaded |= {str(getattr(module, "__file__", "")) for module in list(sys.modules.values())}
    return any(str(home / name) in loaded for name in _taken_over)


def leave_aside() -> None:
    """In this process, compile everything anew."""
    global _taken_over  # noqa: PLW0603 - see above
    _taken_over = frozenset()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="gradproof-cold-")
    with contextlib.suppress(ImportError, AttributeError):
        from torch._inductor.utils import clear_caches

        clear_caches()


def counted() -> dict[str, int]:
    """Of the graphs that inductor was given so far: how many it found compiled, and how many it compiled."""
    from torch._dynamo.utils import counters

    inductor: dict[str, int] = counters["inductor"]
    compiled = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return {"graphs_from_cache": inductor["fxgraph_cache_hit"], "graphs_compiled": compiled}


def unpack(archive: Path, place: Path) -> None:
    """Write the files of an archive below `place`. Raises on everything that `pack` would not have written."""
    with gzip.open(archive, "rb") as stream:
        source: Any = _Counted(stream)
        _unpack(source, place)
        while source.read(_CHUNK):
            pass  # to the checksum at the end


def _unpack(source: Any, place: Path) -> None:
    left, count = _BYTES, 0
    with tarfile.open(fileobj=source, mode="r|") as members:
        for member in members:
            count += 1
            left -= member.size
            if count > _FILES or left < 0 or not 0 <= member.size <= _FILE_BYTES:
                raise RefusedArchiveError("too large")
            if member.type != tarfile.REGTYPE or member.sparse is not None or not _is_name(member.name):
                raise RefusedArchiveError(f"not a file of inductor's: {member.name[:100]!r}")
            content = members.extractfile(member)
            if content is None:
                raise RefusedArchiveError("no content")
            path = place / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(content, file, _CHUNK)


def pack(home: Path, names: list[str], target: _Bounded) -> None:
    """Write these files below `home` as one archive, as far as they fit. Links are not followed."""
    left = _BYTES
    sink: Any = target
    with (
        gzip.GzipFile(filename="", fileobj=sink, mode="wb", compresslevel=1, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as members,
    ):
        for name in names:
            with contextlib.suppress(ValueError), _regular(home / name) as file:
                size = os.fstat(file.fileno()).st_size
                # What is written is compressed already; the rest becomes no larger than it is.
                if size > _FILE_BYTES or size > left or target.written + size > _ARCHIVE:
                    continue
                left -= size
                member = tarfile.TarInfo(name)
                member.size = size
                members.addfile(member, file)


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[IO[bytes]]:
    """The file itself, never what a link leads to. Raises ValueError for everything that is no regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(str(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        yield file


def _files(home: Path) -> Iterator[str]:
    """Names below `home` of the files that can be handed on; directories behind links are not entered."""
    waiting = [(home, "")]
    while waiting:
        directory, prefix = waiting.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            name = prefix + entry.name
            if not _is_name(name):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), f"{name}/"))
            elif entry.is_file(follow_symlinks=False):
                yield name


def _is_name(name: str) -> bool:
    parts = name.split("/")
    if parts[0] in _LEFT_OUT:
        return False
    return len(parts) <= _DEPTH and all(_NAME.fullmatch(part) and ".." not in part for part in parts)


def _home() -> Path | None:
    """Where inductor looks by default; None with a torch that says it elsewhere."""
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    except ImportError:
        return None
    return Path(default_cache_dir())


class _Counted:
    """Reads on from a stream, no further than an archive may be long: what a few bytes expand to has an end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # Each file takes its size, up to 511 bytes to a full block, and a block for its header.
        self._left = _BYTES + 1024 * _FILES

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise RefusedArchiveError("it expands to more than an archive may have")
        return data


class _Bounded:
    """Writes to a descriptor, whole, and counts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.written = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        self.written += size
        while view:
            view = view[os.write(self._descriptor, view) :]
        return size

    def flush(self) -> None:
        """Nothing is held back."""
