"""Launchers on this machine, and a way to run a few lines of Python inside.

`confined` runs a test once in each confining mode that this user can have: root has both, anybody else mode U.
`anyhow` adds mode OFF: what is claimed with it holds without a sandbox too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from services.settings import Settings
from tests.sandbox.inside import Inside
from worker.sandbox import Launcher, open_sandbox
from worker.sandbox.model import Mode

MODES = (Mode.ROOT, Mode.USER) if os.geteuid() == 0 else (Mode.USER,)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", params=MODES, ids=str)
def launcher(request: pytest.FixtureRequest, settings: Settings) -> Launcher:
    return open_sandbox(settings, request.param)


@pytest.fixture(scope="session")
def confined(launcher: Launcher) -> Inside:
    return Inside(launcher, Path(sys.executable))


@pytest.fixture(scope="session")
def unconfined(settings: Settings) -> Inside:
    return Inside(open_sandbox(settings, Mode.OFF), Path(sys.executable))


@pytest.fixture(scope="session", params=[*MODES, Mode.OFF], ids=str)
def anyhow(request: pytest.FixtureRequest, settings: Settings) -> Inside:
    return Inside(open_sandbox(settings, request.param), Path(sys.executable))
