"""Real packages to measure on: fetched by name into a temporary directory, never installed, never committed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unpacked(names: list[str]) -> Iterator[dict[str, Path]]:
    """The wheels of these packages, each unpacked into a directory of its own: requirement -> directory."""
    with tempfile.TemporaryDirectory(prefix="gradproof-packages-") as directory:
        places = {}
        for number, name in enumerate(names):
            wheels = Path(directory) / f"wheels-{number}"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", str(wheels), name], check=True, stderr=subprocess.DEVNULL)
            place = Path(directory) / f"{number}-{name}"
            for wheel in wheels.glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(place)
            places[name] = place
        yield places
