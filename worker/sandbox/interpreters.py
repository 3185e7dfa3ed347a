"""Which directories of the host a Python interpreter needs to see itself.

A virtual environment is a prefix of its own, a base prefix somewhere else, and a chain of links between them. All is
learnt from `pyvenv.cfg`, the links, and one question to the interpreter in isolated mode without `site`, so that
nothing below a site-packages directory is ever imported. Directories that `.pth` files name are not followed: an
editable install of somebody's checkout does not become visible inside.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.sandbox.errors import InterpreterError

_QUESTION: Final = "import json, sys; print(json.dumps([sys.base_prefix, sys.base_exec_prefix]))"
_PARTS: Final = ("bin", "include", "lib", "lib32", "lib64", "libexec", "share", "pyvenv.cfg")
SYSTEM_DIRECTORIES: Final = tuple(
    Path(name) for name in ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
)
_MAX_LINKS: Final = 40  # what the kernel follows in one look-up


@dataclass(frozen=True, slots=True)
class Runtime:
    """An interpreter and the host paths that must be visible, at their own places, for it to start."""

    executable: Path
    visible: tuple[Path, ...]


def runtime_of(interpreter: Path) -> Runtime:
    """What `interpreter` needs. Raises InterpreterError if it isn't a Python that starts."""
    executable = Path(os.path.abspath(interpreter))  # noqa: PTH100 - resolve() would follow the link out of the venv
    try:
        changed = executable.stat().st_mtime_ns
    except OSError as error:
        raise InterpreterError(
            f"the interpreter {executable} can't be reached: {error.strerror}", interpreter=str(executable)
        ) from error
    return _runtime(executable, changed)


@functools.lru_cache(maxsize=64)
def _runtime(executable: Path, _changed: int) -> Runtime:
    prefixes = [*_base_prefixes(executable)]
    environment_root = executable.parent.parent
    if (environment_root / "pyvenv.cfg").is_file():
        prefixes.insert(0, environment_root)
    wanted = [part for prefix in prefixes for part in _visible_parts(prefix)]
    wanted += [hop for hop in _links(executable) if not any(hop.is_relative_to(part) for part in wanted)]
    return Runtime(executable, _outermost(wanted))


def _base_prefixes(executable: Path) -> tuple[Path, ...]:
    try:
        answer = subprocess.run(
            [str(executable), "-I", "-S", "-c", _QUESTION],
            env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True,
        )  # fmt: skip
        prefixes = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InterpreterError(
            f"{executable} doesn't answer like a Python interpreter ({type(error).__name__})",
            interpreter=str(executable),
        ) from error
    return tuple(dict.fromkeys(Path(prefix) for prefix in prefixes))


def _visible_parts(prefix: Path) -> list[Path]:
    """The prefix itself, or its usual parts where it is also somebody's home or an ancestor of one."""
    if not _holds_homes(prefix):
        return [prefix]
    return [prefix / name for name in _PARTS if (prefix / name).exists()]


def _holds_homes(prefix: Path) -> bool:
    homes = {Path(entry.pw_dir) for entry in pwd.getpwall()} | {Path.home()}
    return any(home.is_relative_to(prefix) for home in homes if home.is_absolute() and not _in_system(home))


def _links(executable: Path) -> list[Path]:
    """Every file that the chain of links from `executable` passes through, the last one included."""
    hops = [executable]
    while hops[-1].is_symlink() and len(hops) < _MAX_LINKS:
        hops.append(Path(os.path.normpath(hops[-1].parent / hops[-1].readlink())))
    return hops


def _outermost(paths: list[Path]) -> tuple[Path, ...]:
    """Without what the system directories or another of the paths hold already."""
    kept: list[Path] = []
    for path in sorted(set(paths), key=lambda path: len(path.parts)):
        if not _in_system(path) and not any(path.is_relative_to(outer) for outer in kept):
            kept.append(path)
    return tuple(kept)


def _in_system(path: Path) -> bool:
    return any(path.is_relative_to(directory) for directory in SYSTEM_DIRECTORIES)
