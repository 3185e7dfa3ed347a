"""The doctor names each part, how it is, and what to do about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from services.settings import Settings
from tests.conftest import MakeSettings
from worker import reading
from worker.doctor import DoctorLine, State, examine
from worker.sandbox import bubblewrap

NO_PYTHON = Path("/bin/true")  # answers nothing: spares the import of torch where it does not matter


def lines_of(settings: Settings, python: Path = NO_PYTHON) -> dict[str, DoctorLine]:
    lines = examine(settings, python)
    named = {line.name: line for line in lines}
    assert len(named) == len(lines)
    return named


def test_every_part_of_a_working_machine_is_named_and_needs_nothing(service_settings: Settings) -> None:
    lines = lines_of(service_settings, Path(sys.executable))
    assert list(lines) == [
        "python", "torch", "sandbox", "sandbox: bubblewrap", "sandbox: seccomp", "sandbox: control groups",
        "sandbox: user namespaces", "sandbox: reader", "compiler", "devices", "database", "broker", "git",
        "environment", "kept kernels", "disk",
    ]  # fmt: skip
    for name in ("python", "torch", "sandbox", "database", "broker", "git", "compiler"):
        assert (lines[name].state, lines[name].remedy) == (State.OK, "")
    assert lines["torch"].detail.startswith("2.")
    assert lines["sandbox"].detail.startswith("mode R" if os.geteuid() == 0 else "mode U")


def test_servers_that_do_not_answer_are_missing_and_their_passwords_stay_secret(make_settings: MakeSettings) -> None:
    lines = lines_of(
        make_settings(
            database_url="postgresql://me:hunter2@127.0.0.1:1/db", broker_url="redis://:hunter2@127.0.0.1:1/0"
        )
    )
    for name, variable in (("database", "GRADPROOF_DATABASE_URL"), ("broker", "GRADPROOF_BROKER_URL")):
        assert lines[name].state is State.MISSING
        assert "refused" in lines[name].detail
        assert variable in lines[name].remedy
        assert "hunter2" not in lines[name].detail


def test_a_database_without_its_tables_is_told_to_be_upgraded(make_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "empty.sqlite3").touch()
    line = lines_of(make_settings(database_url=f"sqlite:///{tmp_path / 'empty.sqlite3'}"))["database"]
    assert (line.state, line.remedy) == (State.MISSING, "gradproof db upgrade")


def test_an_embedded_database_that_is_not_there_yet_is_not_made_by_looking(make_settings: MakeSettings) -> None:
    settings = make_settings()
    line = lines_of(settings)["database"]
    assert line.state is State.OK
    assert not settings.data_dir.exists()


@pytest.mark.parametrize(("url", "what"), [("nonsense", "not a database URL"), ("mysql://h/db", "mysql")])
def test_a_database_that_is_none_of_ours_is_named(make_settings: MakeSettings, url: str, what: str) -> None:
    line = lines_of(make_settings(database_url=url))["database"]
    assert line.state is State.MISSING
    assert what in line.detail


def test_an_interpreter_without_torch_is_told_how_to_get_it(make_settings: MakeSettings) -> None:
    line = lines_of(make_settings())["torch"]
    assert line.state is State.MISSING
    assert "gradproof[runtime]" in line.remedy


def test_without_bubblewrap_the_sandbox_is_missing_with_its_reason(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "_candidates", list)
    lines = lines_of(make_settings())
    assert lines["sandbox"].state is State.MISSING
    assert "bubblewrap is not installed" in lines["sandbox"].detail
    assert "apt-get install bubblewrap" in lines["sandbox: bubblewrap"].remedy


def test_code_that_the_sandbox_can_not_show_its_reader_is_told(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_room", lambda name: tmp_path / "nowhere" / name)
    line = lines_of(make_settings())["sandbox: reader"]
    assert line.state is State.MISSING
    assert "nowhere/analyzer" in line.detail
    assert sys.prefix in line.remedy


def test_a_sandbox_that_was_switched_off_is_a_warning(make_settings: MakeSettings) -> None:
    line = lines_of(make_settings(sandbox=False))["sandbox"]
    assert line.state is State.WARNING
    assert "all rights" in line.detail


def test_a_class_of_devices_without_a_device_is_a_warning(make_settings: MakeSettings) -> None:
    line = lines_of(make_settings(gpu_classes=("h100",)))["devices"]
    assert line.state is State.WARNING
    assert "h100" in line.detail


def test_environments_of_repositories_are_off_or_kept_where_there_is_room(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    assert lines_of(make_settings())["environment"].detail.startswith("off")
    line = lines_of(make_settings(environment="wheels", environment_home=tmp_path / "layers"))["environment"]
    assert (line.state, line.remedy) == (State.OK, "")
    assert "uv" in line.detail
    assert str(tmp_path / "layers") in line.detail


def test_what_is_kept_of_compiled_code_is_counted(make_settings: MakeSettings, tmp_path: Path) -> None:
    home = tmp_path / "kernels"
    home.mkdir()
    (home / "a.kernels").write_bytes(bytes(3 * 2**20))
    line = lines_of(make_settings(kept_kernels_home=home))["kept kernels"]
    assert f"3.0 MiB of 1 in {home}" in line.detail
    assert lines_of(make_settings(kept_kernels=False))["kept kernels"].detail.startswith("off")
