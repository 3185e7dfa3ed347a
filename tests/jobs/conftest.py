"""The services on both databases."""

from __future__ import annotations

import pytest

from services.database import Database
from services.settings import Settings
from tests.jobs.support import Bench


@pytest.fixture
def bench(database: Database, service_settings: Settings) -> Bench:
    """Nothing runs out by itself here: tests say when a lease has run out."""
    return Bench(database, service_settings)
