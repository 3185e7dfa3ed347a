"""Puts a tree together, file by file, and refuses what no tree may hold.

Every way in goes through here, so that names, sizes and what is left out are judged alike. Readers decide what a
refused name means to them: an archive is refused, a directory or a commit goes without the file.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from typing import IO

from services.snapshots.errors import (
    EmptyTreeError,
    PathConflictError,
    PathDuplicateError,
    PythonFileTooLargeError,
    TooManyFilesError,
    TreeTooLargeError,
)
from services.snapshots.limits import Limits, size_text
from services.snapshots.model import Content, Source, SourceTree
from services.snapshots.paths import (
    ENVIRONMENT,
    TOO_LARGE,
    VIRTUAL_ENVIRONMENT_MARK,
    check_path,
    collision_key,
    file_left_out,
    is_python,
    shown,
)


class TreeBuilder:
    """One tree in the making. Discard it with `close` when reading fails; `finish` hands its file to the tree."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._spool: IO[bytes] = tempfile.TemporaryFile(prefix="gradproof-tree-")  # noqa: SIM115
        self._contents: dict[str, Content] = {}
        self._directories: set[str] = {""}
        self._taken: dict[str, str] = {}
        self._names = 0
        self._total = 0
        self.left_out: Counter[str] = Counter()

    def close(self) -> None:
        """Give the temporary file back."""
        self._spool.close()

    def leave_out(self, reason: str) -> None:
        """Count something that is not kept."""
        self.left_out[reason] += 1

    def add_directory(self, name: str) -> None:
        """Take notice of a directory that the source names. Raises `PathRefusedError`, `TooManyFilesError`."""
        path = check_path(name)
        if path:
            self._open_directory(path)

    def admit(self, name: str, size: int) -> str | None:
        """The path under which the file is to be added, or None when it is left out (and counted).

        Raises `PathRefusedError` for the name, `PythonFileTooLargeError`, `TooManyFilesError`, `TreeTooLargeError`.
        """
        path = check_path(name)
        if not path or name.endswith("/"):
            raise PathConflictError(
                f"a file has the name of a directory: {shown(name)}", member=shown(name), reason="name of a directory"
            )
        parent = path.rpartition("/")[0]
        if parent not in self._directories:
            self._open_directory(parent)
        self._take(path, is_directory=False)
        reason = file_left_out(path)
        if reason is None and size > self._limits.kept_file:
            if is_python(path):
                raise PythonFileTooLargeError(
                    f"{shown(path)} has {size_text(size)}; a Python file may have {size_text(self._limits.kept_file)}",
                    member=shown(path),
                    size=size,
                    limit=self._limits.kept_file,
                )
            reason = TOO_LARGE
        if reason is not None:
            self.leave_out(reason)
            return None
        if self._total + size > self._limits.total:
            raise TreeTooLargeError(
                f"the files have more than {size_text(self._limits.total)} together (reached at {shown(path)})",
                member=shown(path),
                limit=self._limits.total,
            )
        self._total += size
        return path

    def add(self, path: str, data: bytes) -> None:
        """Keep the bytes of a file under the path that `admit` gave for it."""
        offset = self._spool.tell()
        self._spool.write(data)
        lines = 0
        if path.endswith(".py"):
            lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        self._contents[path] = Content(offset, len(data), hashlib.sha256(data).digest(), lines)

    def finish(self, source: Source, *, strip: bool = False, prefix: str = "") -> SourceTree:
        """The tree. With `strip`, an only top-level directory that is not itself a package is taken off the paths.

        `prefix` is put before every path (a package's own name). Raises `EmptyTreeError`.
        """
        stripped = self._strip() if strip else None
        self._drop_virtual_environments()
        if strip and stripped is None:
            stripped = self._strip()  # an environment may have lain beside the only directory
        if not self._contents:
            left_out = ", ".join(f"{count} x {reason}" for reason, count in self.left_out.most_common())
            raise EmptyTreeError(
                "there are no files to analyse" + (f" but what is never read: {left_out}" if left_out else ""),
                left_out=dict(self.left_out),
            )
        contents = self._contents
        if prefix:
            contents = {f"{prefix}/{path}": content for path, content in contents.items()}
        self._spool.flush()
        return SourceTree(
            contents, self._spool, source=source, stripped=stripped, prefix=prefix, left_out=self.left_out
        )

    def _open_directory(self, path: str) -> None:
        """Take the path and all above it as directories."""
        missing = []
        while path not in self._directories:
            missing.append(path)
            path = path.rpartition("/")[0]
        for directory in reversed(missing):
            self._take(directory, is_directory=True)
            self._directories.add(directory)

    def _take(self, path: str, *, is_directory: bool) -> None:
        key = collision_key(path)
        taken = self._taken.get(key)
        if taken is not None:
            if taken == path and (path in self._directories) != is_directory:
                raise PathConflictError(
                    f"{shown(path)} is both a file and a directory", member=shown(path), reason="file and directory"
                )
            raise PathDuplicateError(
                f"{shown(path)} comes twice"
                if taken == path
                else f"{shown(path)} and {shown(taken)} are one name where case or Unicode form does not count",
                member=shown(path),
                reason="duplicate",
            )
        self._names += 1
        if self._names > self._limits.members:
            raise TooManyFilesError(
                f"more than {self._limits.members:,} files and directories (reached at {shown(path)})",
                member=shown(path),
                limit=self._limits.members,
            )
        self._taken[key] = path

    def _drop_virtual_environments(self) -> None:
        """An environment that came along is not the submitted code, however it is called."""
        mark = f"/{VIRTUAL_ENVIRONMENT_MARK}"
        environments = {path.removesuffix(mark) for path in self._contents if path.endswith(mark)}
        if not environments:
            return
        for path in list(self._contents):
            parts = path.split("/")
            if any("/".join(parts[:depth]) in environments for depth in range(1, len(parts))):
                del self._contents[path]
                self.leave_out(ENVIRONMENT)

    def _strip(self) -> str | None:
        """Take the only top-level directory off the paths, as forges put it around a repository, and give its name.

        A directory that holds `__init__.py` is a package where its name can be imported: taking it off would break
        the package's imports, so it stays.
        """
        tops = {path.partition("/")[0] for path in self._contents}
        if len(tops) != 1:
            return None
        (top,) = tops
        if top in self._contents or (top.isidentifier() and f"{top}/__init__.py" in self._contents):
            return None
        self._contents = {path.removeprefix(f"{top}/"): content for path, content in self._contents.items()}
        return top
