"""The wheel that goes into the images holds the whole product and works away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deployment.compose import ROOT, copied_sources, dockerfile_instructions

PACKAGES = ["analyzer", "api", "migrations", "services", "worker"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as docker/Dockerfile does from what it copies, and unpacked."""
    place = tmp_path_factory.mktemp("wheel")
    context = place / "context"
    context.mkdir()
    for word, rest in dockerfile_instructions():
        if word == "COPY":
            for source in copied_sources(rest):
                if "/" not in source:
                    (context / source).symlink_to(ROOT / source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    built = subprocess.run(
        [*command, "--no-build-isolation", "--no-index", "--wheel-dir", str(place), str(context)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


def test_the_wheel_holds_every_file_of_the_product(unpacked: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {Path(line) for line in tracked.stdout.splitlines() if (ROOT / line).exists()}
    assert len(files) > 100
    for file in files:
        inside = file.relative_to("worker/probe") if file.parts[:2] == ("worker", "probe") else file
        assert (unpacked / inside).is_file(), file


def test_the_wheel_finds_its_own_parts_away_from_the_repository(unpacked: Path) -> None:
    program = (
        "import analyzer, api.cli.main, services.reports, worker, gradproof_probe;"
        "from worker.execution.command import probe_directory;"
        "from services.database.migrate import head;"
        "from analyzer.registry import all_rules;"
        "print(analyzer.__file__, probe_directory(), sep='\\n');"
        "assert probe_directory().is_dir() and head() and len(all_rules()) > 4"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(unpacked) for line in done.stdout.splitlines()), done.stdout
