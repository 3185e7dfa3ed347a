"""Reads a local directory, or one Python file or notebook, into a tree.

Left out, and counted: what `.gitignore` files ignore is not even counted, since that can be millions of files;
virtual environments (a `pyvenv.cfg` gives them away), installed packages, caches and version control; symbolic links,
whether they lead out of the tree or not; pipes, sockets and devices; files that may not be read; large data files.
Directories and files are opened relative to the descriptor of the directory that holds them and never through a link,
so that a tree that changes meanwhile can't lead the walk elsewhere.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.snapshots.building import TreeBuilder
from services.snapshots.errors import (
    DirectoryError,
    DirectoryNotFoundError,
    DirectoryTooSlowError,
    PathRefusedError,
    TooManyFilesError,
    TreeTooLargeError,
)
from services.snapshots.ignoring import IgnoreRules
from services.snapshots.limits import DEFAULT_LIMITS, Deadline, Limits
from services.snapshots.model import Source, SourceTree
from services.snapshots.paths import (
    ENVIRONMENT,
    MAX_DEPTH,
    SPECIAL,
    SYMLINK,
    UNREADABLE,
    UNUSABLE_NAME,
    VIRTUAL_ENVIRONMENT_MARK,
    check_path,
    directory_left_out,
    shown,
)

_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
_MAX_IGNORE_FILE: Final = 1 << 20
_IGNORE_FILE: Final = ".gitignore"
_EXCLUDE_FILE: Final = ".git/info/exclude"


def read_directory(path: Path, *, limits: Limits = DEFAULT_LIMITS) -> SourceTree:
    """The tree at `path`: a directory, or a single `.py` or `.ipynb` file.

    A directory that is itself a package (it holds `__init__.py`) keeps its name in front of every path, so that the
    package stays importable. `.gitignore` files above the directory count up to the top of its repository, unless
    they ignore the directory itself: who names an ignored directory wants it read.

    Raises `DirectoryNotFoundError`, `DirectoryError` (not readable), `TooManyFilesError`, `TreeTooLargeError`,
    `PythonFileTooLargeError`, `EmptyTreeError`, `DirectoryTooSlowError`.
    """
    builder = TreeBuilder(limits)
    try:
        return _read_path(path, builder, limits)
    except (TooManyFilesError, TreeTooLargeError) as error:
        builder.close()
        advice = "list what is not source code in a .gitignore file, or name the package's own directory"
        raise type(error)(f"{error.message}; {advice}", **error.details) from error
    except PermissionError as error:
        builder.close()
        raise DirectoryError(f"{shown(str(path))} may not be read", path=shown(str(path))) from error
    except BaseException:
        builder.close()
        raise


def list_directory(path: Path, suffixes: tuple[str, ...], *, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """The names of the files below a directory that a tree of it would hold and that end in one of the suffixes.

    Nothing is read but names and `.gitignore` files. Raises `DirectoryTooSlowError`, `DirectoryError`.
    """
    walk = _NameWalk(path.resolve(), suffixes, limits)
    try:
        walk.run()
    except PermissionError as error:
        raise DirectoryError(f"{shown(str(path))} may not be read", path=shown(str(path))) from error
    return tuple(sorted(walk.names))


def _read_path(path: Path, builder: TreeBuilder, limits: Limits) -> SourceTree:
    if path.is_file():
        _read_single_file(path, builder, limits)
        return builder.finish(Source("directory"))
    if not path.is_dir():
        raise DirectoryNotFoundError(f"there is no directory or .py file at {shown(str(path))}", path=shown(str(path)))
    top = path.resolve()
    _Walk(top, builder, limits).run()
    is_package = (top / "__init__.py").is_file() and top.name.isidentifier()
    return builder.finish(Source("directory"), prefix=top.name if is_package else "")


def _read_single_file(path: Path, builder: TreeBuilder, limits: Limits) -> None:
    if path.suffix not in (".py", ".ipynb"):
        raise DirectoryNotFoundError(
            f"{shown(str(path))} is neither a directory nor a .py or .ipynb file", path=shown(str(path))
        )
    with path.open("rb") as file:
        accepted = builder.admit(path.name, os.fstat(file.fileno()).st_size)
        if accepted is not None:
            builder.add(accepted, file.read(limits.kept_file))


class _Uncounted:
    """Stands where a builder would count what is left out."""

    def leave_out(self, reason: str) -> None:
        """Nobody asks."""


class _Walk:
    """One walk over one directory."""

    def __init__(self, top: Path, builder: TreeBuilder | _Uncounted, limits: Limits) -> None:
        self._top = top
        self._builder = builder
        self._limits = limits
        self._deadline = Deadline(limits.seconds)
        self._within = ""  # the path of the top within its repository, with a final slash

    def run(self) -> None:
        """Read everything below the top."""
        descriptor = os.open(self._top, _OPEN_DIRECTORY)
        try:
            rules, self._within = _rules_above(self._top)
            self._directory(descriptor, "", rules)
        finally:
            os.close(descriptor)

    def _directory(self, descriptor: int, relative: str, rules: IgnoreRules) -> None:
        rules = _extended(rules, descriptor, _IGNORE_FILE, f"{self._within}{relative}".rstrip("/"))
        with os.scandir(descriptor) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if self._deadline.expired:
                raise DirectoryTooSlowError(
                    f"not read within {self._limits.seconds:g} seconds (reached {shown(relative)})",
                    limit=self._limits.seconds,
                )
            path = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_symlink():
                self._builder.leave_out(SYMLINK)
            elif entry.is_dir(follow_symlinks=False):
                self._enter(descriptor, entry.name, path, rules)
            elif not rules.ignores(self._within + path, is_directory=False):
                self._file(descriptor, entry.name, path)

    def _enter(self, parent: int, name: str, path: str, rules: IgnoreRules) -> None:
        reason = directory_left_out(name)
        if reason is None and path.count("/") >= MAX_DEPTH:
            reason = UNUSABLE_NAME
        if reason is not None:
            self._builder.leave_out(reason)
            return
        if rules.ignores(self._within + path, is_directory=True):
            return
        try:
            descriptor = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
        except OSError:
            self._builder.leave_out(UNREADABLE)
            return
        try:
            if _exists(VIRTUAL_ENVIRONMENT_MARK, descriptor):
                self._builder.leave_out(ENVIRONMENT)
            else:
                self._directory(descriptor, path, rules)
        finally:
            os.close(descriptor)

    def _file(self, directory: int, name: str, path: str) -> None:
        assert isinstance(self._builder, TreeBuilder)
        try:
            descriptor = os.open(name, _OPEN_FILE, dir_fd=directory)
        except OSError:
            # A socket can't be opened; what was a file when listed may be a link or gone by now.
            self._builder.leave_out(UNREADABLE)
            return
        with open(descriptor, "rb", buffering=0):  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                self._builder.leave_out(SPECIAL)
                return
            try:
                accepted = self._builder.admit(path, status.st_size)
            except PathRefusedError:
                self._builder.leave_out(UNUSABLE_NAME)
                return
            if accepted is not None:
                self._builder.add(accepted, _read(descriptor, status.st_size))


class _NameWalk(_Walk):
    """A walk that notes names."""

    def __init__(self, top: Path, suffixes: tuple[str, ...], limits: Limits) -> None:
        super().__init__(top, _Uncounted(), limits)
        self._suffixes = suffixes
        self.names: list[str] = []

    def _file(self, directory: int, name: str, path: str) -> None:
        if not name.endswith(self._suffixes):
            return
        with suppress(OSError, PathRefusedError):
            if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                self.names.append(check_path(path))


def _rules_above(top: Path) -> tuple[IgnoreRules, str]:
    """What the repository says from above `top`, and the path of `top` within it, with a final slash."""
    repository = next((place for place in (top, *top.parents) if (place / ".git").exists()), top)
    within = top.relative_to(repository).parts
    rules = _read_rules(IgnoreRules(), repository, _EXCLUDE_FILE, "")
    place = repository
    relative = ""
    for part in within:
        rules = _read_rules(rules, place, _IGNORE_FILE, relative)
        relative = f"{relative}/{part}" if relative else part
        place /= part
        if rules.ignores(relative, is_directory=True):
            return IgnoreRules(), ""
    return rules, f"{relative}/" if relative else ""


def _read_rules(rules: IgnoreRules, place: Path, name: str, relative: str) -> IgnoreRules:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _extended(rules, descriptor, name, relative)
    finally:
        os.close(descriptor)


def _read(descriptor: int, size: int) -> bytes:
    """At most `size` bytes: a file that grows while it is read is cut where it was."""
    pieces = []
    while size and (piece := os.read(descriptor, size)):
        size -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def _extended(rules: IgnoreRules, directory: int, name: str, relative: str) -> IgnoreRules:
    """The rules with those of the ignore file `name` in the open directory, if there is one that git would read."""
    with suppress(OSError):
        descriptor = os.open(name, _OPEN_FILE, dir_fd=directory)
        with open(descriptor, "rb") as file:  # noqa: PTH123
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return rules.extended(relative, file.read(_MAX_IGNORE_FILE).decode("utf-8", "replace"))
    return rules
