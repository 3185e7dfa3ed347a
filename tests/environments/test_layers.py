"""A repository's requirements become a layer of wheels: built once, whole or not at all, never over torch."""

from __future__ import annotations

import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from services.settings import Settings
from tests.environments.wheels import write_wheel
from worker.circumstances import surroundings_of
from worker.environments import Layer, layer_for
from worker.environments.installed import installed_in

TORCH = installed_in(Path(sys.executable)).torch


def settings_of(tmp_path: Path, **changes: object) -> Settings:
    index = tmp_path / "index"
    index.mkdir(exist_ok=True)
    values: dict[str, object] = {
        "data_dir": tmp_path / "data", "environment": "wheels", "environment_index": str(index), **changes,
    }  # fmt: skip
    return Settings.model_validate(values)


def repository(tmp_path: Path, *requirements: str) -> Path:
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    (source / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
    return source


def built(source: Path, settings: Settings) -> Layer:
    layer = layer_for(source, settings)
    assert layer is not None
    return layer


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index with a package that needs another, and torch."""
    place = tmp_path / "index"
    write_wheel(
        place, "shapely_x", "1.2", {"shapely_x/__init__.py": "from dep_y import two\n"}, requires=["dep_y>=2", "torch"]
    )
    write_wheel(place, "dep_y", "1.0", {"dep_y.py": "two = 1\n"})
    write_wheel(place, "dep_y", "2.0", {"dep_y.py": "two = 2\n"})
    return place


def test_off_means_that_nothing_is_read_or_built(tmp_path: Path, index: Path) -> None:
    settings = settings_of(tmp_path, environment="off")
    assert layer_for(repository(tmp_path, "shapely-x"), settings) is None
    assert not settings.environment_dir.exists()


def test_packages_and_what_they_need_are_installed_and_torch_is_not(tmp_path: Path, index: Path) -> None:
    layer = built(repository(tmp_path, "shapely-x", "torch>=1.0"), settings_of(tmp_path))
    assert layer.reason is None
    assert layer.packages == ("dep-y==2.0", "shapely-x==1.2")
    assert layer.kept == (f"torch {TORCH}",)
    assert layer.packages_at is not None
    assert {entry.name for entry in layer.packages_at.iterdir() if entry.suffix != ".dist-info"} == {
        "shapely_x", "dep_y.py",
    }  # fmt: skip


def test_nothing_of_a_layer_can_be_written(tmp_path: Path, index: Path) -> None:
    layer = built(repository(tmp_path, "shapely-x"), settings_of(tmp_path))
    assert layer.packages_at is not None
    files = [path for path in layer.packages_at.rglob("*") if path.is_file()]
    assert files
    assert not any(path.stat().st_mode & 0o222 for path in files)
    assert all(path.stat().st_mode & 0o004 for path in files)


def test_a_layer_is_built_once_for_the_same_requirements(tmp_path: Path, index: Path) -> None:
    settings = settings_of(tmp_path)
    first = built(repository(tmp_path, "shapely-x", "dep-y"), settings)
    for wheel in index.iterdir():
        wheel.unlink()
    assert built(repository(tmp_path, "dep_y", "shapely_x  # in another order"), settings) == first
    assert built(repository(tmp_path, "dep_y"), settings).reason is not None


def test_two_workers_at_once_build_one_layer(tmp_path: Path, index: Path) -> None:
    settings, source = settings_of(tmp_path), repository(tmp_path, "shapely-x")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: built(source, settings), range(2))
    assert first == second
    assert first.packages_at is not None
    layers = [entry for entry in settings.environment_dir.iterdir() if entry.is_dir()]
    assert layers == [first.packages_at.parent]


def test_a_package_that_is_there_is_kept_whatever_version_is_asked_for(tmp_path: Path, index: Path) -> None:
    write_wheel(index, "packaging", "1.0", {"packaging/__init__.py": "old = True\n"})
    layer = built(repository(tmp_path, "packaging<2", "dep-y"), settings_of(tmp_path))
    assert layer.packages == ("dep-y==2.0",)
    assert "(asked for: <2)" in layer.kept[0]


def test_what_needs_another_torch_is_not_built(tmp_path: Path, index: Path) -> None:
    write_wheel(index, "old_ops", "1.0", {"old_ops.py": ""}, requires=["torch==1.4"])
    layer = built(repository(tmp_path, "old-ops"), settings_of(tmp_path))
    assert layer.packages_at is None
    assert "torch" in (layer.reason or "")


def test_a_wheel_that_brings_a_torch_of_its_own_is_not_used(tmp_path: Path, index: Path) -> None:
    write_wheel(index, "evil", "1.0", {"evil.py": "", "torch/__init__.py": "hidden = True\n"})
    layer = built(repository(tmp_path, "evil"), settings_of(tmp_path))
    assert (layer.packages_at, layer.reason) == (None, "a wheel brings its own torch")


def test_only_wheels_are_installed(tmp_path: Path, index: Path) -> None:
    (tmp_path / "setup.py").write_text("raise SystemExit('a build backend ran')\n")
    with tarfile.open(index / "source_only-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "source_only-1.0/setup.py")
    layer = built(repository(tmp_path, "source-only"), settings_of(tmp_path))
    assert layer.packages_at is None
    assert "backend ran" not in (layer.reason or "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment_size": 100}, "more than 100 bytes"),
        ({"environment_wall": timedelta(microseconds=1)}, "took longer"),
    ],
)
def test_a_build_is_bounded(tmp_path: Path, index: Path, changes: dict[str, object], reason: str) -> None:
    settings = settings_of(tmp_path, **changes)
    layer = built(repository(tmp_path, "shapely-x"), settings)
    assert reason in (layer.reason or "")
    assert not [entry for entry in settings.environment_dir.iterdir() if entry.is_dir()]


def test_a_failure_is_remembered_for_some_minutes(tmp_path: Path, index: Path) -> None:
    settings, source = settings_of(tmp_path), repository(tmp_path, "later-on")
    failed = built(source, settings)
    write_wheel(index, "later_on", "1.0", {"later_on.py": ""})
    assert built(source, settings) == failed
    (note,) = settings.environment_dir.glob("*.failed")
    os.utime(note, (0, 0))
    assert built(source, settings).packages == ("later-on==1.0",)


def test_what_is_refused_is_told_and_the_rest_is_built(tmp_path: Path, index: Path) -> None:
    layer = built(repository(tmp_path, "dep-y", "-e ."), settings_of(tmp_path))
    assert layer.packages == ("dep-y==2.0",)
    assert [refused.text for refused in layer.refused] == ["-e ."]


def test_configuration_of_the_repository_does_not_reach_the_installer(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = repository(tmp_path, "dep-y")
    (source / "uv.toml").write_text("this is not valid\n")
    (source / "pyproject.toml").write_text("[tool.uv]\nno-such-key = 1\n")
    monkeypatch.chdir(source)
    assert built(source, settings_of(tmp_path)).packages == ("dep-y==2.0",)


def test_what_was_built_for_another_build_of_torch_is_left_out(tmp_path: Path, index: Path) -> None:
    def compiled(library: bytes) -> bytes:
        return b"\x7fELF\x00libc10.so\x00" + library + b"\x00more"

    write_wheel(
        index, "other_ops", "1.0", {"other_ops/_C.so": compiled(b"libtorch_elsewhere.so"), "other_ops/x.py": ""}
    )
    write_wheel(index, "same_ops", "1.0", {"same_ops/_C.so": compiled(b"libtorch.so")})
    layer = built(repository(tmp_path, "other-ops", "same-ops"), settings_of(tmp_path))
    assert layer.packages == ("same-ops==1.0",)
    (refused,) = layer.refused
    assert refused.text == "other-ops==1.0"
    assert "libtorch_elsewhere.so" in refused.reason
    assert layer.packages_at is not None
    assert not list(layer.packages_at.glob("other_ops/*"))


def test_results_are_kept_apart_by_what_could_be_installed(tmp_path: Path, index: Path) -> None:
    source, settings = repository(tmp_path, "later-on"), settings_of(tmp_path)
    off = surroundings_of(settings_of(tmp_path, environment="off"), source)
    without = surroundings_of(settings, source)
    assert surroundings_of(settings, source) == without
    write_wheel(index, "later_on", "1.0", {"later_on.py": ""})
    (note,) = settings.environment_dir.glob("*.failed")
    os.utime(note, (0, 0))
    assert len({off, without, surroundings_of(settings, source)}) == 3
