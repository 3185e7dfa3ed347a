"""Layers in a directory, each under the digest of what it was made of: built once, by one worker, and never changed.

A layer appears whole or not at all: it is built beside its place and renamed into it. Two workers that want the same
one wait for each other. A failure is remembered for some minutes, so that each batch of an analysis does not try
anew. This module must not know uv.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from services.settings import Settings
from worker.environments.build import Bounds, build_layer
from worker.environments.errors import EnvironmentBuildError
from worker.environments.installed import Installed, installed_in
from worker.environments.requirements import Refused, Wanted, read_requirements

log = structlog.get_logger(__name__)

_REMEMBERED_S: Final = 600.0
# How the digest is made; raise it when layers are built differently.
_RECIPE: Final = "2"
# Layers that nobody used for longest go first.
_MOST_LAYERS: Final = 40


@dataclass(frozen=True, slots=True)
class Layer:
    """What came of a repository's requirements.

    `packages_at` is the directory to put behind the interpreter's own packages, None if there is nothing in it.
    `reason` says why there is no layer although something was asked for.
    """

    digest: str
    packages_at: Path | None
    packages: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    reason: str | None = None

    def told(self) -> dict[str, Any]:
        """As the report tells it."""
        return {
            "policy": "wheels",
            "packages": list(self.packages),
            "kept": list(self.kept),
            "refused": [asdict(refused) for refused in self.refused],
            "reason": self.reason,
        }


def layer_for(source: Path, settings: Settings) -> Layer | None:
    """The layer of the snapshot at `source`, built if need be; None where the policy is off. Never raises for it."""
    if settings.environment == "off":
        return None
    wanted = read_requirements(source, settings.environment_extras)
    if not wanted.requirements:
        return Layer("", None, refused=wanted.refused)
    try:
        installed = installed_in(settings.python)
        return _Layers(settings).get(wanted, installed)
    except (EnvironmentBuildError, OSError) as error:
        log.warning("environment_not_built", reason=str(error))
        return Layer("", None, refused=wanted.refused, reason=str(error))


class _Layers:
    def __init__(self, settings: Settings) -> None:
        self._directory = settings.environment_dir
        self._interpreter = settings.python
        self._bounds = Bounds(
            wall_s=settings.environment_wall.total_seconds(),
            size=settings.environment_size,
            index=settings.environment_index,
        )

    def get(self, wanted: Wanted, installed: Installed) -> Layer:
        digest = _digest(wanted, installed, self._bounds.index)
        place = self._directory / digest
        known = _known(place, wanted)
        if known is not None:
            return known
        self._directory.mkdir(parents=True, exist_ok=True)
        with _alone(self._directory / f"{digest}.lock"):
            known = _known(place, wanted) or self._failed_lately(digest, wanted)
            return known or self._build(digest, place, wanted, installed)

    def _build(self, digest: str, place: Path, wanted: Wanted, installed: Installed) -> Layer:
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=self._directory))
        try:
            building.chmod(0o755)
            packages = building / "packages"
            packages.mkdir()
            built = build_layer(
                wanted.requirements, packages, interpreter=self._interpreter, installed=installed, bounds=self._bounds
            )
            shutil.rmtree(building / "packages.scratch", ignore_errors=True)
            told = {"packages": built.packages, "kept": built.kept, "unfit": dict(built.unfit)}
            (building / "layer.json").write_text(json.dumps(told), encoding="utf-8")
            building.rename(place)
        except EnvironmentBuildError as error:
            (self._directory / f"{digest}.failed").write_text(str(error), encoding="utf-8")
            raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
        self._clear_old()
        found = _known(place, wanted)
        if found is None:
            raise EnvironmentBuildError("the layer was built and can't be read")
        return found

    def _failed_lately(self, digest: str, wanted: Wanted) -> Layer | None:
        note = self._directory / f"{digest}.failed"
        with contextlib.suppress(OSError):
            if time.time() - note.stat().st_mtime < _REMEMBERED_S:
                return Layer("", None, refused=wanted.refused, reason=note.read_text("utf-8", "replace"))
        return None

    def _clear_old(self) -> None:
        layers = [path.parent for path in self._directory.glob("*/layer.json")]
        aged = sorted(layers, key=lambda path: (path / "layer.json").stat().st_mtime)
        for layer in aged[:-_MOST_LAYERS]:
            # Out of the way first: nobody finds half of it. A sandbox that has it mounted keeps what it has opened.
            gone = layer.with_name(f".gone-{layer.name}")
            with contextlib.suppress(OSError):
                layer.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _digest(wanted: Wanted, installed: Installed, index: str) -> str:
    parts = [_RECIPE, index, installed.python, *(f"{n}=={v}" for n, v in installed.packages), "", *wanted.requirements]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _known(place: Path, wanted: Wanted) -> Layer | None:
    try:
        told = json.loads((place / "layer.json").read_bytes())
        packages, kept = tuple(map(str, told["packages"])), tuple(map(str, told["kept"]))
        unfit = tuple(Refused(str(name), "a wheel", str(reason)) for name, reason in dict(told["unfit"]).items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        (place / "layer.json").touch()
    return Layer(place.name, place / "packages" if packages else None, packages, kept, (*unfit, *wanted.refused))


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
