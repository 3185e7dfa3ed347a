"""Submissions that come at once do not all fit into the one place that was left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from services.accounts.access import EVERYTHING, SYSTEM, Subject
from services.analyses.service import AnalysisService
from services.database import Database
from services.limits import LimitReachedError
from services.settings import Settings
from tests.jobs.support import SNAPSHOT

CALLER = Subject("token", "a token", "ci", EVERYTHING, everywhere=True)


def test_two_that_count_at_the_same_time_do_not_both_see_room(database: Database, service_settings: Settings) -> None:
    settings = service_settings.model_copy(update={"open_analyses_of_caller": 4})
    service = AnalysisService(database, settings)

    def submit(_: int) -> bool:
        try:
            service.submit(CALLER, SNAPSHOT)
        except LimitReachedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        accepted = list(pool.map(submit, range(24)))
    assert sum(accepted) == 4


def test_what_gradproof_submits_by_itself_is_counted_and_not_refused(
    database: Database, service_settings: Settings
) -> None:
    service = AnalysisService(database, service_settings.model_copy(update={"open_analyses": 2}))
    for _ in range(3):
        service.submit(SYSTEM, SNAPSHOT)
    with pytest.raises(LimitReachedError) as caught:
        service.submit(CALLER, SNAPSHOT)
    assert caught.value.details["used"] == 3
