"""A project on both databases, whose analyses are said to find this and that."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.database import Database
from services.settings import Settings
from tests.jobs.support import Bench
from tests.triage.line import Line


@pytest.fixture
def line(database: Database, service_settings: Settings) -> Line:
    patient = {"lease": timedelta(hours=1), "reconcile_every": timedelta(minutes=1)}
    return Line(Bench(database, service_settings.model_copy(update=patient)))
