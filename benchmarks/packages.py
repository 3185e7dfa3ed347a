"""Real packages to measure on: fetched by name into a temporary directory, never installed, never committed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Models, layers and losses of many kinds, written by many hands: 6,292 Python files, 2.5 million lines.
CORPUS = [
    *("timm", "transformers", "diffusers", "kornia", "x-transformers", "vit-pytorch", "monai", "torch-geometric"),
    *("e3nn", "torchvision"),
]


@contextmanager
def unpacked(names: list[str], wheels: Path | None = None) -> Iterator[dict[str, Path]]:
    """The files of these packages, compiled ones left out, each in a directory of its own: requirement -> directory.

    `wheels`: where the wheels lie; without it they are fetched.
    """
    with tempfile.TemporaryDirectory(prefix="gradproof-packages-") as directory:
        fetched = wheels if wheels is not None else _fetched(names, Path(directory) / "wheels")
        places = {}
        for name in names:
            place = Path(directory) / name.replace("-", "_")
            for wheel in sorted(fetched.glob(f"{name.replace('-', '_')}-*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(place, [name for name in archive.namelist() if ".so" not in name])
            places[name] = place
        yield places


def _fetched(names: list[str], directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(directory), *names], check=True, stderr=subprocess.DEVNULL)
    return directory
