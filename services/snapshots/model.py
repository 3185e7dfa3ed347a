"""What a snapshot is: the values that the rest of the product holds.

A `SourceTree` is what a reader made of its input; a `Snapshot` is what the store made of a tree. The contents of a
tree lie in one unnamed temporary file, so that a large tree costs no memory and a killed process leaves nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Literal, Self

from services.snapshots.owners import OwnerLine

SourceKind = Literal["directory", "archive", "git"]

# Changing how a digest is made changes every digest; the prefix makes that visible instead of accidental.
_DIGEST_PREFIX = b"gradproof-tree-1\0"


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a commit, as the commit itself says: nobody has checked it."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tree came from. `url`, `commit` and `author` are those of git; `commit` is a full object name."""

    kind: SourceKind
    url: str | None = None
    commit: str | None = None
    author: Author | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored tree. `lines` counts those of `.py` files.

    `stripped` is the archive's only top-level directory when that was taken off the paths. `left_out` counts what
    was not kept, by reason. `owners` is what its own file of code owners says.
    """

    digest: str
    files: int
    lines: int
    source: Source
    stripped: str | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    owners: tuple[OwnerLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """One file of a tree: its place in the spool, its SHA-256, and its lines when it is a `.py` file."""

    offset: int
    size: int
    sha256: bytes
    lines: int


class SourceTree(Mapping[str, bytes]):
    """Relative POSIX paths, in sorted order, and the bytes of each file.

    `stripped` is a directory that was taken off every path, `prefix` one that was put in front (a package's own name).
    Safe to read from several threads. A tree owns a temporary file: close it, or use it as a context manager.
    """

    def __init__(
        self,
        contents: Mapping[str, Content],
        spool: IO[bytes],
        *,
        source: Source,
        stripped: str | None = None,
        prefix: str = "",
        left_out: Mapping[str, int] | None = None,
    ) -> None:
        self._contents = {path: contents[path] for path in sorted(contents)}
        self._spool = spool
        self.source = source
        self.stripped = stripped
        self.prefix = prefix
        self.left_out: Mapping[str, int] = dict(left_out or {})

    def __getitem__(self, path: str) -> bytes:
        content = self._contents[path]
        return os.pread(self._spool.fileno(), content.size, content.offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)

    def size(self, path: str) -> int:
        """Bytes of one file."""
        return self._contents[path].size

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hexadecimal digits over the sorted paths and contents, and nothing else."""
        return tree_digest((path, content.sha256) for path, content in self._contents.items())

    @property
    def lines(self) -> int:
        """Lines of all `.py` files."""
        return sum(content.lines for content in self._contents.values())

    def close(self) -> None:
        """Give the temporary file back."""
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tree_digest(files: Iterator[tuple[str, bytes]]) -> str:
    """The digest of a tree from its paths, in sorted order, and the SHA-256 of each content.

    Each path goes in behind its length, so that no two trees can give the same bytes.
    """
    digest = hashlib.sha256(_DIGEST_PREFIX)
    for path, content in files:
        encoded = path.encode()
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
        digest.update(content)
    return f"sha256:{digest.hexdigest()}"
