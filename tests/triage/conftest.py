"""A project on both databases, whose analyses are said to find this and that."""

from __future__ import annotations

import pytest

from services.database import Database
from services.settings import Settings
from tests.jobs.support import Bench
from tests.triage.line import Line


@pytest.fixture
def line(database: Database, service_settings: Settings) -> Line:
    return Line(Bench(database, service_settings))
