"""Finds out what the paths on a command line mean: the directory that names are relative to, and the files that count.

A configuration further up governs what lies below it, up to the top of the repository; names are then relative to where
it stands, so that the same file has the same name, and its findings the same fingerprints, however it was named. This
module reads names, never contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.problems import BadInputError
from services.snapshots.directories import list_directory
from services.snapshots.errors import DirectoryNotFoundError
from services.snapshots.paths import check_path, shown


class PathsError(BadInputError):
    """The paths to check have nothing in common."""

    code = "paths"
    title = "The paths can't be checked together"


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Files on this machine.

    `top` is the directory that was decided on; names are relative to `base`: `top` itself, or its parent where `top` is
    a package. `only` are the names that were asked for, None for everything below `top`.
    """

    top: Path
    base: Path
    names: tuple[str, ...]
    only: frozenset[str] | None

    @property
    def asked(self) -> tuple[str, ...]:
        """The names that count."""
        return self.names if self.only is None else tuple(name for name in self.names if name in self.only)


def local_place(
    words: Sequence[str], suffixes: tuple[str, ...], is_configured: Callable[[Path], bool], *, root: Path | None = None
) -> LocalPlace:
    """What these paths mean. `root` is a directory that names shall be relative to.

    Raises `DirectoryNotFoundError`, `PathsError`, and what listing a directory raises.
    """
    paths = [Path(word) for word in words]
    for path in paths:
        if not path.exists():
            raise DirectoryNotFoundError(
                f"there is no directory or .py file at {shown(str(path))}", path=shown(str(path))
            )
        if path.is_file() and len(paths) == 1 and not path.name.endswith(suffixes):
            raise DirectoryNotFoundError(
                f"{shown(str(path))} is neither a directory nor a file that ends in {' or '.join(suffixes)}",
                path=shown(str(path)),
            )
    resolved = [path.resolve() for path in paths]
    top, is_chosen = top_of(resolved, is_configured, root=root)
    is_package = not is_chosen and (top / "__init__.py").is_file() and top.name.isidentifier()
    base = top.parent if is_package and _asks_for_all(paths, resolved, top) else top
    prefix = f"{top.name}/" if base != top else ""
    if resolved == [top]:
        return LocalPlace(top, base, tuple(prefix + name for name in list_directory(top, suffixes)), None)
    lone = len(paths) == 1 and paths[0].is_file() and not is_chosen
    names = {prefix + name for name in ((resolved[0].name,) if lone else list_directory(top, suffixes))}
    wanted = [path.relative_to(base).as_posix() for path in resolved]
    # A file that is named is read even where an ignore file would leave it out.
    named = {name for name, path in zip(wanted, resolved, strict=True) if path.is_file() and name.endswith(suffixes)}
    below = tuple(
        f"{name}/" if name != "." else "" for name, path in zip(wanted, resolved, strict=True) if path.is_dir()
    )
    for name in named:
        check_path(name)
    only = named | {name for name in names if name.startswith(below)}
    return LocalPlace(top, base, tuple(sorted(names | named)), frozenset(only))


def _asks_for_all(paths: Sequence[Path], resolved: Sequence[Path], top: Path) -> bool:
    """A lone file is told without its package, as ever; a package and several files of it are told with it."""
    return list(resolved) == [top] or len(paths) > 1


def top_of(
    resolved: Sequence[Path], is_configured: Callable[[Path], bool], *, root: Path | None = None
) -> tuple[Path, bool]:
    """The directory that names are relative to, and whether a root or a configuration decided that."""
    if root is not None:
        top = root.resolve()
        outside = next((path for path in resolved if not path.is_relative_to(top)), None)
        if not top.is_dir() or outside is not None:
            what = f"{shown(str(outside))} does not lie below it" if outside is not None else "it is no directory"
            raise PathsError(f"--root {shown(str(root))}: {what}")
        return top, True
    common = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in resolved]))
    for place in (common, *common.parents):
        if is_configured(place):
            return place, place != common or len(resolved) > 1 or not resolved[0].is_dir()
        if (place / ".git").exists():
            break
    if common == Path(common.anchor) and len(resolved) > 1:
        raise PathsError("the paths have no directory in common but the root of the file system: check them apart")
    return common, False
