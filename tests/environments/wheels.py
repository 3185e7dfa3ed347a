"""Wheels made by hand, in a directory that stands for a package index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_wheel(
    directory: Path, name: str, version: str, files: Mapping[str, str | bytes], *, requires: Sequence[str] = ()
) -> Path:
    """A wheel of pure Python with these files."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}"
    needed = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents = {
        **files,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": "".join(f"{inside},,\n" for inside in files),
    }
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, text in contents.items():
            wheel.writestr(inside, text)
    return path
