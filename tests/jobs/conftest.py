"""The services on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.database import Database
from services.settings import Settings
from tests.jobs.support import Bench


@pytest.fixture
def bench(database: Database, service_settings: Settings) -> Bench:
    """Nothing runs out by itself here, however slow the machine: tests say when a lease has run out."""
    patient = {"lease": timedelta(hours=1), "reconcile_every": timedelta(minutes=1)}
    return Bench(database, service_settings.model_copy(update=patient))
