"""Takes packages out of a layer that were compiled for another build of torch than the interpreter has.

Wheels of one version exist for the CPU and for several CUDA versions, and their metadata do not tell them apart; the
libraries of torch that their compiled parts name do. Such a package would fail while it is imported, in words that
nobody could act on. This module must not run anything of a layer.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

_LIBRARY: Final = re.compile(rb"(?<=\x00)(lib(?:torch|c10)\w*\.so)(?=\x00)")


def remove_unfit(layer: Path, libraries: frozenset[str]) -> dict[str, str]:
    """The packages that were taken out, by `name==version`, each with the reason. `libraries` are torch's own."""
    if not libraries:
        return {}
    taken: dict[str, str] = {}
    for package in list(distributions(path=[str(layer)])):
        files = list(_files(package, layer))
        lacking = sorted({name for file in files for name in _named(file)} - libraries)
        if lacking:
            taken[f"{canonicalize_name(package.name)}=={package.version}"] = (
                f"it was built for another build of torch: it needs {lacking[0]}"
            )
            for file in files:
                file.unlink(missing_ok=True)
    return taken


def _files(package: Distribution, layer: Path) -> Iterator[Path]:
    """The files of a package inside the layer; a record that names others is not followed."""
    for entry in package.files or ():
        path = Path(str(package.locate_file(entry)))
        if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(layer.resolve()):
            yield path


def _named(file: Path) -> set[str]:
    """The libraries of torch that a compiled file names."""
    if ".so" not in file.suffixes or not file.stat().st_size:
        return set()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {match.group(1).decode() for match in _LIBRARY.finditer(data)}
