"""What a team sees of its findings: pages in a firm order, counts that fit them, and nothing of other people's."""

from __future__ import annotations

import pytest

from services.accounts.access import SYSTEM, Permission, Subject
from services.database import Database
from services.projects.errors import ProjectNotFoundError
from services.projects.repository import find_readable
from services.reports.listing import CursorError
from services.triage.errors import FindingNotFoundError
from services.triage.inbox import Inbox
from services.triage.model import NOBODY, FindingFilter
from tests.triage.support import add_findings, finding_values, make_project


def walked(inbox: Inbox, wanted: FindingFilter, limit: int = 7) -> list[str]:
    """The fingerprints of all pages, one after the other."""
    seen: list[str] = []
    cursor = None
    while True:
        page = inbox.findings(SYSTEM, "vision", wanted, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        seen += [item.fingerprint for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return seen


@pytest.fixture
def inbox(database: Database) -> Inbox:
    project_id = make_project(database)
    other = make_project(database, "other")
    states = ("open", "accepted", "regressed", "fixed")
    numbers = range(60)
    with database.unit_of_work() as uow:
        values = [
            finding_values(project_id, number, state=states[number % 4], on_main=number % 4 != 3) for number in numbers
        ]
        values[5] |= {"message": "50% of the Ωmega values", "verdict": "confirmed"}
        add_findings(uow.session, values)
        add_findings(uow.session, [finding_values(other, number) for number in range(3)])
    return Inbox(database)


def test_pages_hold_each_finding_once_the_gravest_first_and_of_those_the_newest(inbox: Inbox) -> None:
    seen = walked(inbox, FindingFilter())
    numbers = [int(fingerprint, 16) for fingerprint in seen]
    assert sorted(numbers) == list(range(60))
    assert numbers == sorted(numbers, key=lambda number: (number % 3, -number))
    assert walked(inbox, FindingFilter(), limit=60) == seen


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (FindingFilter(states=("open", "regressed")), lambda n: n % 4 in (0, 2)),
        (FindingFilter(severities=("note",)), lambda n: n % 3 == 2),
        (FindingFilter(verdicts=("confirmed",)), lambda n: n == 5),
        (FindingFilter(rule="GP101"), lambda n: n % 5 == 0),
        (FindingFilter(rule="rule-102"), lambda n: n % 5 == 1),
        (FindingFilter(rule="GP1"), lambda _: True),
        (FindingFilter(path="pkg/part1/"), lambda n: n % 4 == 1),
        (FindingFilter(path="pkg/part1/file1.py"), lambda n: n % 4 == 1 and n % 7 == 1),
        (FindingFilter(path="pkg/part1"), lambda _: False),
        (FindingFilter(on_main=False), lambda n: n % 4 == 3),
        (FindingFilter(text="50% OF"), lambda n: n == 5),
        (FindingFilter(text="message%"), lambda _: False),
        (FindingFilter(assignee=NOBODY), lambda _: True),
        (FindingFilter(assignee="somebody"), lambda _: False),
        (FindingFilter(states=("open",), rule="GP103", severities=("warning",)), lambda n: n % 60 == 52),
    ],
)
def test_a_filter_takes_what_fits_and_the_counts_agree(inbox: Inbox, wanted: FindingFilter, fits: object) -> None:
    assert callable(fits)
    expected = {number for number in range(60) if fits(number)}
    assert {int(fingerprint, 16) for fingerprint in walked(inbox, wanted)} == expected
    assert inbox.facets(SYSTEM, "vision", wanted).total == len(expected)


def test_the_counts_of_a_filter_are_those_of_the_others(inbox: Inbox) -> None:
    facets = inbox.facets(SYSTEM, "vision", FindingFilter(states=("open",), rule="GP101"))
    # Of states those of the rule, of rules those that are open.
    assert facets.states == {"open": 3, "accepted": 3, "regressed": 3, "fixed": 3}
    assert sum(rule.count for rule in facets.rules) == 15
    assert {rule.key for rule in facets.rules} == {f"GP{number}" for number in range(101, 106)}
    assert facets.severities == {"error": 1, "warning": 1, "note": 1}
    assert [(count.key, count.count) for count in facets.assignees] == [(NOBODY, 3)]


@pytest.mark.parametrize("cursor", ["", "3.abc", "0.", "0.'; --", "x", "0.\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_cursor_that_no_page_gave_is_refused(inbox: Inbox, cursor: str) -> None:
    with pytest.raises(CursorError):
        inbox.findings(SYSTEM, "vision", cursor=cursor)


def test_foreign_projects_and_unknown_findings_are_not_there(inbox: Inbox) -> None:
    stranger = Subject("user", "u1", "Eve", frozenset(Permission), user_id="u1")
    for call in (
        lambda: inbox.findings(stranger, "vision"),
        lambda: inbox.facets(stranger, "vision"),
        lambda: inbox.finding(stranger, "vision", f"{1:040x}"),
        lambda: inbox.precision(stranger, "vision"),
    ):
        with pytest.raises(ProjectNotFoundError):
            call()
    assert inbox.precision(stranger) == ()
    with pytest.raises(FindingNotFoundError):
        inbox.finding(SYSTEM, "vision", f"{99:040x}")
    assert inbox.finding(SYSTEM, "vision", f"{1:040x}").line == 2


def test_precision_counts_what_people_and_execution_said(inbox: Inbox) -> None:
    rules = {rule.rule: rule for rule in inbox.precision(SYSTEM, "vision")}
    assert set(rules) == {f"GP{number}" for number in range(101, 106)}
    rule = rules["GP101"]
    assert (rule.total, rule.open, rule.accepted, rule.fixed, rule.confirmed) == (12, 6, 3, 3, 1)
    assert rule.genuine == 6  # the confirmed one is accepted
    assert rule.precision == 1.0
    assert sum(each.total for each in inbox.precision(SYSTEM)) == 63


def test_the_standing_of_a_project_is_what_is_open_on_its_main_line(inbox: Inbox, database: Database) -> None:
    third = make_project(database, "empty")
    with database.reading() as session:
        found = find_readable(session, SYSTEM, "vision")
        assert found is not None
    standings = inbox.standings(SYSTEM, [found.id, third])
    assert standings[found.id].total == 30
    assert standings[found.id].error == 10
    assert standings[third].total == 0
