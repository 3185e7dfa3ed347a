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
import importlib.metadata, json, re, sys
found = {}
for item in importlib.metadata.distributions():
    name = item.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), item.version)
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "packages": found}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """A Python version, and the version of each package by its normalised name."""

    python: str
    packages: tuple[tuple[str, str], ...]

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
        return Installed(str(found["python"]), tuple(sorted(dict(found["packages"]).items())))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentBuildError(f"{interpreter} does not say which packages it has") from error
