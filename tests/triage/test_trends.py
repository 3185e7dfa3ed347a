"""How projects came to where they stand, many at once: what lists of projects show."""

from __future__ import annotations

import pytest

from services.accounts.access import SYSTEM
from services.analyses.results import ResultService
from services.database import Database
from services.settings import Settings
from tests.team_rows import Rows, days_ago, totals
from tests.triage.statements import statements


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


@pytest.fixture
def results(database: Database, service_settings: Settings) -> ResultService:
    return ResultService(database, service_settings)


def test_the_last_settled_ones_of_the_main_line_come_by_project_the_oldest_first(
    rows: Rows, results: ResultService
) -> None:
    vision, audio, empty = rows.project("vision"), rows.project("audio"), rows.project("empty")
    of_vision = [rows.analysis(vision) for _ in range(4)]
    (of_audio,) = [rows.analysis(audio)]
    rows.analysis(vision, purpose="proposal")
    rows.analysis(audio, status="running", passed=None)
    found = results.trends(SYSTEM, [vision, audio, empty], last=3)
    assert {project: [item.id for item in trend] for project, trend in found.items()} == {
        vision: of_vision[1:],
        audio: [of_audio],
    }
    assert found[vision] == results.trend(SYSTEM, vision, last=3)
    assert results.trends(SYSTEM, [], last=3) == {}


def test_any_analysis_tells_when_a_project_was_last_asked_about(rows: Rows, results: ResultService) -> None:
    vision, audio, empty = rows.project("vision"), rows.project("audio"), rows.project("empty")
    rows.analysis(vision, created_at=days_ago(9))
    asked = {vision: days_ago(3), audio: days_ago(5)}
    rows.analysis(vision, purpose="proposal", status="running", passed=None, created_at=asked[vision])
    rows.analysis(audio, created_at=asked[audio])
    assert results.last_asked(SYSTEM, [vision, audio, empty]) == asked
    assert results.last_asked(SYSTEM, []) == {}


def test_of_foreign_projects_nothing_is_told(rows: Rows, results: ResultService) -> None:
    mine, foreign = rows.project("mine"), rows.project("foreign")
    rows.analysis(mine)
    rows.analysis(foreign)
    vera = rows.subject(rows.user("vera", "viewer", project=mine))
    assert results.trends(vera, [mine, foreign], last=2).keys() == {mine}
    assert results.last_asked(vera, [mine, foreign]).keys() == {mine}


def test_many_projects_cost_as_many_statements_as_one(rows: Rows, results: ResultService) -> None:
    projects = [rows.project(f"project-{number}") for number in range(8)]
    for project in projects:
        rows.analysis(project, totals=totals())

    def made_for(asked: list[str]) -> int:
        with statements(rows.database) as made:
            assert results.trends(SYSTEM, asked, last=12).keys() == set(asked)
            assert results.last_asked(SYSTEM, asked).keys() == set(asked)
        return len(made)

    assert made_for(projects) == made_for(projects[:1]) > 0
