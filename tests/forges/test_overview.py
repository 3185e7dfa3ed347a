"""What people see of pull requests: where they stand, what was written, and the stated reason where nothing was."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from services.accounts.access import EVERYTHING, SYSTEM, Subject
from services.database import Database
from services.database.base import utc_now
from services.forges.overview import PullRequestDetails, PullRequestNotFoundError, PullRequestOverview
from tests.team_rows import Rows


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


@pytest.fixture
def overview(database: Database) -> PullRequestOverview:
    return PullRequestOverview(database)


def unmet(details: PullRequestDetails) -> list[str]:
    """The explanations of what does not hold."""
    return [circumstance.explanation for circumstance in details.circumstances if not circumstance.holds]


def test_pull_requests_come_newest_first_and_page_by_page(rows: Rows, overview: PullRequestOverview) -> None:
    project = rows.project("vision")
    repository = rows.repository(project)
    passed = rows.pull_request(repository, analysis_id=rows.analysis(project, passed=True))
    failed = rows.pull_request(repository, analysis_id=rows.analysis(project, passed=False), silence={"summary": "x"})
    closed = rows.pull_request(repository, state="closed")
    first = overview.list(SYSTEM, project, limit=2)
    assert [item.id for item in first.items] == [closed, failed]
    assert [(item.passed, item.silent) for item in first.items] == [(None, 0), (False, 1)]
    rest = overview.list(SYSTEM, project, limit=2, before=first.next_cursor)
    assert ([item.id for item in rest.items], rest.next_cursor) == ([passed], None)
    assert rest.items[0].url == f"https://github.com/example/vision/pull/{rest.items[0].number}"
    assert [item.id for item in overview.list(SYSTEM, project, state="open").items] == [failed, passed]


def test_a_merge_request_has_the_address_that_gitlab_gives_it(rows: Rows, overview: PullRequestOverview) -> None:
    request = rows.pull_request(rows.repository(rows.project("vision"), forge="gitlab"), number=12)
    assert overview.get(SYSTEM, request).summary.url == "https://gitlab.com/example/vision/-/merge_requests/12"


def test_what_belongs_to_a_foreign_project_does_not_exist(rows: Rows, overview: PullRequestOverview) -> None:
    mine, foreign = rows.project("mine"), rows.project("foreign")
    request = rows.pull_request(rows.repository(foreign))
    member = Subject("user", "u", "U", EVERYTHING, user_id=rows.user("u", "viewer", project=mine))
    assert overview.list(member, foreign).items == ()
    assert overview.repositories(member, foreign) == ()
    with pytest.raises(PullRequestNotFoundError):
        overview.get(member, request)
    with pytest.raises(PullRequestNotFoundError):
        overview.get(SYSTEM, "nothing")
    reader = dataclasses.replace(member, user_id=rows.user("v", "viewer", project=foreign))
    assert overview.get(reader, request).summary.id == request
    assert [place.full_name for place in overview.repositories(reader, foreign)] == ["example/vision"]


def test_a_request_that_was_written_to_says_so(rows: Rows, overview: PullRequestOverview) -> None:
    project = rows.project("vision")
    request = rows.pull_request(
        rows.repository(project),
        analysis_id=rows.analysis(project, passed=False),
        head_sha="a" * 40,
        check_sha="a" * 40,
        check_id="1",
        check_state="completed",
        check_pages=2,
        summary_id="2",
        silence={"sarif": "the project does not ask for it", "inline": "one more is not on an added line"},
    )
    rows.thread(request)
    rows.step(request, event="pull_request synchronize")
    details = overview.get(SYSTEM, request)
    assert unmet(details) == []
    assert [(item.name, item.done, item.detail, item.silence) for item in details.written] == [
        ("check", True, "completed on aaaaaaaaaa, 2 pages of annotations", None),
        ("inline", True, "1 comment at lines", "one more is not on an added line"),
        ("summary", True, "one comment, edited in place", None),
        ("sarif", False, "", "the project does not ask for it"),
    ]
    assert [(thread.path, thread.line, thread.state) for thread in details.threads] == [("pkg/a.py", 6, "open")]
    assert [(step.kind, step.event, step.state) for step in details.steps] == [
        ("publish", "pull_request synchronize", "done")
    ]


@pytest.mark.parametrize(
    ("installation", "request_columns", "reason"),
    [
        ({"removed_at": utc_now()}, {}, "the application was removed from example: install it again"),
        ({"suspended_at": utc_now()}, {}, "example suspended the application: its owner can unsuspend it"),
        ({"quiet_until": utc_now() + timedelta(hours=1), "quiet_reason": "secondary rate limit"}, {}, "secondary rate"),
        ({}, {"state": "merged"}, "it is merged: nothing more is written there"),
        ({}, {"paused_at": utc_now(), "pause_reason": "30 pushes"}, "it is paused: 30 pushes"),
        ({}, {"due_at": utc_now()}, "when no further push comes before"),
        ({}, {"check_sha": "d" * 40}, "the check is on dddddddddd; the present head is"),
        ({}, {"silence": {"analysis": "paused: 30 pushes"}}, "was not analysed: paused: 30 pushes"),
        ({}, {}, "no analysis of"),
    ],
)
def test_what_stands_in_the_way_is_named(
    rows: Rows,
    overview: PullRequestOverview,
    installation: dict[str, Any],
    request_columns: dict[str, Any],
    reason: str,
) -> None:
    request = rows.pull_request(rows.repository(rows.project("vision"), **installation), **request_columns)
    assert any(reason in explanation for explanation in unmet(overview.get(SYSTEM, request)))


def test_a_deleted_comment_is_said_to_be_respected(rows: Rows, overview: PullRequestOverview) -> None:
    request = rows.pull_request(rows.repository(rows.project("vision")), summary_id="1", summary_removed_at=utc_now())
    written = {item.name: item for item in overview.get(SYSTEM, request).written}
    assert not written["summary"].done
    assert written["summary"].detail == "a person deleted our comment, which is respected"
