"""The services on both databases."""

from __future__ import annotations

import pytest

from services.database import Database
from services.settings import Settings
from tests.jobs.support import Bench


@pytest.fixture
def bench(database: Database, service_settings: Settings) -> Bench:
    return Bench(database, service_settings)
