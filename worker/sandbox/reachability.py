"""Whether a uid that owns nothing can get at a path of the host, and a place to show it what it can't reach."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from worker.sandbox.errors import SandboxUnavailableError

# Directories of the file system standard that are searchable by everybody and lead to nothing we show.
_PLACES: Final = ("/mnt", "/media", "/srv", "/opt", "/home")


def parents_are_searchable(path: Path) -> bool:
    """Whether every directory above `path` lets everybody pass. Access lists beyond the mode bits are not read."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def require_readable(path: Path) -> None:
    """Raise SandboxUnavailableError unless `path` itself is readable (a directory: searchable too) by everybody."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SandboxUnavailableError(f"{path} can't be shown inside: {error.strerror}", path=str(path)) from error
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    if mode & needed != needed:
        raise SandboxUnavailableError(
            f"{path} can't be read by the uid that the job runs under; `chmod -R o+rX {path}` lets it", path=str(path)
        )


def staging_place(sources: Iterable[Path]) -> str:
    """A directory to mount over, in a private mount namespace, that hides none of `sources`."""
    resolved = [source.resolve() for source in sources]
    for place in map(Path, _PLACES):
        usable = place.is_dir() and not place.is_symlink() and parents_are_searchable(place)
        if usable and not any(source.is_relative_to(place) for source in resolved):
            return str(place)
    raise SandboxUnavailableError(f"none of {', '.join(_PLACES)} is free to show private directories through")
