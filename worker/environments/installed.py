"""What the interpreter that runs the probe has already: its Python, its torch, and the packages beside it.

It is asked in a process of its own and isolated: torch is never imported for it. What is there is kept as it is.
"""

from __future__ import annotations

import functools
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.environments.errors import EnvironmentBuildError

_WITHIN_S: Final = 60
_QUESTION: Final = """
import importlib.metadata, importlib.util, json, os, re, sys
found, libraries = {}, []
for item in importlib.metadata.distributions():
    name = item.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), item.version)
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    libraries = os.listdir(os.path.join(os.path.dirname(spec.origin), "lib"))
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"python": version, "packages": found, "libraries": libraries}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """A Python version, the version of each package by its normalised name, and the libraries of torch."""

    python: str
    packages: tuple[tuple[str, str], ...]
    libraries: frozenset[str] = frozenset()

    @property
    def torch(self) -> str | None:
        return dict(self.packages).get("torch")


def installed_in(interpreter: Path) -> Installed:
    """Raises `EnvironmentBuildError` if it does not answer."""
    try:
        changed = interpreter.stat().st_mtime_ns
    except OSError as error:
        raise EnvironmentBuildError(f"{interpreter} can't be reached: {error.strerror}") from error
    return _asked(interpreter, changed)


@functools.lru_cache(maxsize=8)
def _asked(interpreter: Path, _changed: int) -> Installed:
    try:
        answer = subprocess.run(
            [str(interpreter), "-I", "-c", _QUESTION],
            env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WITHIN_S, check=True,
        )  # fmt: skip
        found = json.loads(answer.stdout)
        packages = tuple(sorted(dict(found["packages"]).items()))
        return Installed(str(found["python"]), packages, frozenset(map(str, found["libraries"])))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentBuildError(f"{interpreter} does not say which packages it has") from error
