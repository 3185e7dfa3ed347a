"""Builds a layer with uv: resolves against what the interpreter has already, and installs wheels without dependencies.

uv gets an environment and a directory of its own, never the repository's: none of its configuration is read, and no
build backend is run. What the interpreter has is shown to the resolver as empty wheels of the same name and version,
so that torch itself is never downloaded and whatever needs another torch is refused by the resolver. This module must
not know where layers are kept.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from uv import find_uv_bin

from worker.environments.errors import EnvironmentBuildError
from worker.environments.fitting import remove_unfit
from worker.environments.installed import Installed

_LOOKS_EVERY_S: Final = 0.5
_WHEEL: Final = "Wheel-Version: 1.0\nGenerator: gradproof\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_TAIL: Final = 1_500
# A layer comes last on the path, so that it can't hide these; one that brings them is broken all the same.
_NEVER: Final = frozenset({"torch", "torchgen", "functorch", "gradproof_probe"})
_TORCH: Final = frozenset({"torch"})
# What uv needs to reach an index through a proxy, and where an operator's index is.
_HANDED_ON: Final = re.compile(
    r"UV_(?:DEFAULT_)?INDEX(?:_URL|_STRATEGY)?|UV_NATIVE_TLS|UV_INSECURE_HOST|SSL_CERT_(?:FILE|DIR)"
    r"|(?:https?|no|all)_proxy|(?:HTTPS?|NO|ALL)_PROXY|HOME|PATH"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a build may take, and where wheels come from (a URL, or a directory; empty: uv's own settings)."""

    wall_s: float
    size: int
    index: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """The packages of a layer, pinned, and those that the interpreter keeps as they are.

    `unfit` are packages that were left out in the end, each with the reason.
    """

    packages: tuple[str, ...]
    kept: tuple[str, ...]
    unfit: Mapping[str, str]


def uv_executable() -> Path | None:
    """The uv that came with Gradproof."""
    try:
        return Path(find_uv_bin())
    except FileNotFoundError:
        return None


def build_layer(
    requirements: Sequence[str], into: Path, *, interpreter: Path, installed: Installed, bounds: Bounds
) -> Built:
    """Installs `requirements` into the directory `into`, with scratch space beside it. Raises EnvironmentBuildError."""
    work = _Work(into, interpreter, bounds)
    wanted = [text for text in requirements if Requirement(text).name not in _TORCH]
    kept = _kept(requirements, installed)
    packages = work.resolved(wanted, installed) if wanted else ()
    unfit: dict[str, str] = {}
    if packages:
        work.install(packages)
        (into / ".lock").unlink(missing_ok=True)  # uv's own
        brought = sorted(_NEVER & {entry.name.partition(".")[0] for entry in into.iterdir()})
        if brought:
            raise EnvironmentBuildError(f"a wheel brings its own {brought[0]}")
        unfit = remove_unfit(into, installed.libraries)
    _make_read_only(into)
    return Built(tuple(pin for pin in packages if pin not in unfit), kept, unfit)


def _kept(requirements: Iterable[str], installed: Installed) -> tuple[str, ...]:
    """What was asked for and is there already, with what was asked where that is something else."""
    versions = dict(installed.packages)
    told: list[str] = []
    for requirement in map(Requirement, requirements):
        version = versions.get(requirement.name)
        if version is not None:
            fits = requirement.specifier.contains(version, prereleases=True)
            told.append(f"{requirement.name} {version}" + ("" if fits else f" (asked for: {requirement.specifier})"))
    return tuple(told)


class _Work:
    def __init__(self, into: Path, interpreter: Path, bounds: Bounds) -> None:
        self._into = into
        self._scratch = into.with_name(f"{into.name}.scratch")
        self._scratch.mkdir()
        self._interpreter = interpreter
        self._bounds = bounds
        self._until = time.monotonic() + bounds.wall_s

    def resolved(self, wanted: Sequence[str], installed: Installed) -> tuple[str, ...]:
        """The packages to install, pinned, without those that are there."""
        stubs = self._scratch / "installed"
        stubs.mkdir()
        for name, version in installed.packages:
            _write_stub(stubs, name, version)
        asked = self._written("wanted.in", wanted)
        pins = {name: f"{name}=={version}" for name, version in installed.packages}
        others = [pin for name, pin in pins.items() if name not in _TORCH]
        answer = self._scratch / "resolved.txt"
        self._uv(
            "pip", "compile", str(asked), "--output-file", str(answer), "--no-header", "--no-annotate", "--quiet",
            "--find-links", str(stubs),
            "--override", str(self._written("kept.txt", others)),
            "--constraint", str(self._written("torch.txt", [pins[name] for name in _TORCH if name in pins])),
        )  # fmt: skip
        lines = [line.split(";")[0].strip() for line in answer.read_text("utf-8").splitlines()]
        pinned = (line for line in lines if line and not line.startswith("#"))
        return tuple(sorted(line for line in pinned if Requirement(line).name not in pins))

    def install(self, packages: Sequence[str]) -> None:
        pinned = self._written("pinned.txt", packages)
        self._uv(
            "pip", "install", "--requirement", str(pinned), "--target", str(self._into), "--no-deps", "--quiet",
        )  # fmt: skip

    def _written(self, name: str, lines: Iterable[str]) -> Path:
        file = self._scratch / name
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return file

    def _uv(self, *words: str) -> None:
        uv = uv_executable()
        if uv is None:
            raise EnvironmentBuildError("uv was not found: install Gradproof again")
        index = self._bounds.index
        where = [] if not index else ["--default-index", index] if "://" in index else ["--no-index", "-f", index]
        command = [str(uv), *words, "--only-binary", ":all:", "--python", str(self._interpreter), *where]
        environment = {name: value for name, value in os.environ.items() if _HANDED_ON.fullmatch(name)}
        environment |= {
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CACHE_DIR": str(self._scratch / "cache"),
            "UV_LINK_MODE": "hardlink",
            "UV_NO_PROGRESS": "1",
        }
        log = self._scratch / "log.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self._scratch, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, umask=0o022,
            )  # fmt: skip
            try:
                self._wait(process)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            raise EnvironmentBuildError(_reason(log))

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        while process.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(_LOOKS_EVERY_S, max(self._until - time.monotonic(), 0.0)))
            if _size(self._into) + _size(self._scratch) > self._bounds.size:
                raise EnvironmentBuildError(f"it needs more than {self._bounds.size} bytes")
            if process.returncode is None and time.monotonic() > self._until:
                raise EnvironmentBuildError(f"it took longer than {self._bounds.wall_s:g} s")


def _reason(log: Path) -> str:
    """The end of what uv said, in one line, without the credentials of an index."""
    text = log.read_bytes()[-8 * _TAIL :].decode("utf-8", "replace")
    text = re.sub(r"//[^/@\s]*@", "//***@", text)
    return " ".join(text.split())[-_TAIL:] or "uv failed without saying why"


def _write_stub(directory: Path, name: str, version: str) -> None:
    """An empty wheel of this name and version, which needs nothing."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": _WHEEL,
        f"{stem}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def _size(directory: Path) -> int:
    """Bytes on disk; a file that is linked twice counts once. What vanishes meanwhile counts nothing."""
    seen: dict[tuple[int, int], int] = {}
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                found = os.lstat(f"{place}/{name}")
                seen[found.st_dev, found.st_ino] = found.st_size
    return sum(seen.values())


def _make_read_only(directory: Path) -> None:
    """Readable for the user of a sandbox, whoever that is, and writable for nobody."""
    for place, _, names in os.walk(directory):
        for name in names:
            path = Path(place, name)
            if path.is_symlink():
                path.unlink()
            else:
                path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)
        Path(place).chmod(0o755)
