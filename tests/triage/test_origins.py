"""Whose a finding is: what is suggested to people, and what a project has given to members by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from services.accounts.access import SYSTEM
from services.accounts.models import ProjectMembershipRow, UserRow
from services.analyses.models import AnalysisRow, Purpose
from services.database import Database
from services.database.base import utc_now
from services.forges.models import PullRequestRow
from services.projects.models import ProjectRow
from services.projects.service import ProjectService
from services.projects.settings import ProjectSettings
from services.snapshots.model import Author, Snapshot, Source
from services.snapshots.owners import OwnerLine
from services.triage.origins import MOST_FILES, owner_of
from services.triage.service import TriageService
from tests.jobs.support import SNAPSHOT
from tests.team_rows import Rows
from tests.triage.line import Line

ONE = "fingerprint-1"
ANN = Author("Ann Example", "Ann@Example.org")


@pytest.fixture
def triage(database: Database) -> TriageService:
    return TriageService(database)


def member(database: Database, name: str, *, email: str | None = None, of_project: bool = True) -> str:
    """A person who can see the project, or can't; returns the id."""
    with database.unit_of_work() as uow:
        user = UserRow(name=name, display_name=name, email=email)
        uow.session.add(user)
        uow.session.flush()
        if of_project:
            project = uow.session.scalars(select(ProjectRow)).one()
            uow.session.add(ProjectMembershipRow(project_id=project.id, user_id=user.id, role="viewer"))
        return user.id


def written(author: Author | None = ANN, *lines: OwnerLine, commit: str = "c" * 40, content: str = "b") -> Snapshot:
    """A commit with this author and these code owners."""
    source = Source("git", "https://example.org/a.git", commit, author)
    return replace(SNAPSHOT, digest=f"sha256:{content * 64}", source=source, owners=lines)


def owned(*owners: str) -> OwnerLine:
    return OwnerLine(0, "*.py", owners)


def analysed(
    line: Line, snapshot: Snapshot, *numbers: int, purpose: Purpose | None = None, pull_request: str | None = None
) -> str:
    analysis_id = line.submit(snapshot=snapshot, purpose=purpose)
    if pull_request is not None:
        with line.bench.database.unit_of_work() as uow:
            uow.session.get_one(AnalysisRow, analysis_id).pull_request_id = pull_request
    line.settle(numbers)
    return analysis_id


def opened_by(line: Line, author: str) -> str:
    """A pull request of somebody; returns its id."""
    rows = Rows(line.bench.database)
    with line.bench.database.reading() as session:
        project = session.scalars(select(ProjectRow.id)).one()
    return rows.pull_request(rows.repository(project), author=author)


def give_new_findings_to(line: Line, whom: str) -> None:
    settings = ProjectSettings.model_validate({"assign": whom})
    ProjectService(line.bench.database, line.bench.settings).update(SYSTEM, "vision", settings=settings)


def suggested(triage: TriageService) -> list[tuple[str, str | None, str | None]]:
    return [(who.role, who.name, who.user_id) for who in triage.suggest_assignees(SYSTEM, "vision", ONE)]


# -------------------------------------------------------------------------------- what is suggested


def test_who_brought_a_finding_in_is_said_as_far_as_it_is_known(line: Line, triage: TriageService) -> None:
    analysis_id = line.analysed(1)
    assert suggested(triage) == [("brought in by", "Gradproof", None)]
    (nobody,) = triage.suggest_assignees(SYSTEM, "vision", ONE)
    assert "who wrote the line is not known" in nobody.why
    ann = member(line.bench.database, "ann")
    with line.bench.database.unit_of_work() as uow:
        uow.session.get_one(AnalysisRow, analysis_id).submitted_by_name = "ann"
    assert suggested(triage) == [("brought in by", "ann", ann)]


def test_the_last_committer_is_found_among_members_by_the_address(line: Line, triage: TriageService) -> None:
    analysed(line, written(), 1)
    assert suggested(triage) == [("brought in by", "Ann Example", None)]
    ann = member(line.bench.database, "ann", email="ann@example.org")
    assert suggested(triage) == [("brought in by", "Ann Example", ann)]
    (who,) = triage.suggest_assignees(SYSTEM, "vision", ONE)
    assert who.why == "wrote the last commit (cccccccccc) when it was first seen, as the commit says"


@pytest.mark.parametrize("case", ["a stranger", "disabled", "two of one address"])
def test_an_address_that_is_no_member_s_suggests_nobody(line: Line, triage: TriageService, case: str) -> None:
    analysed(line, written(), 1)
    database = line.bench.database
    ann = member(database, "ann", email="ann@example.org", of_project=case != "a stranger")
    if case == "disabled":
        with database.unit_of_work() as uow:
            uow.session.execute(update(UserRow).where(UserRow.id == ann).values(disabled_at=utc_now()))
    if case == "two of one address":
        member(database, "ann2", email="ANN@example.org")
    assert suggested(triage) == [("brought in by", "Ann Example", None)]


def test_who_opened_the_pull_request_goes_before_who_wrote_the_commit(line: Line, triage: TriageService) -> None:
    line.analysed()
    ann = member(line.bench.database, "ann", email="ann@example.org")
    bob = member(line.bench.database, "bob")
    pull_request = opened_by(line, "Bob")
    analysed(line, written(), 1, purpose=Purpose.PROPOSAL, pull_request=pull_request)
    assert suggested(triage) == [("brought in by", "Bob", bob), ("brought in by", "Ann Example", ann)]
    with line.bench.database.unit_of_work() as uow:
        uow.session.get_one(PullRequestRow, pull_request).author = "ann"
    assert suggested(triage) == [("brought in by", "ann", ann)]


def test_code_owners_are_those_of_the_main_line_and_never_those_of_a_proposal(
    line: Line, triage: TriageService
) -> None:
    analysed(line, written(ANN, owned("@ann", "@org/team", "bob@example.org")))
    ann = member(line.bench.database, "ann")
    bob = member(line.bench.database, "bob", email="bob@example.org")
    member(line.bench.database, "org/team")
    analysed(line, written(None, owned("@eve"), content="d"), 1, purpose=Purpose.PROPOSAL)
    assert suggested(triage)[:-1] == [
        ("code owner", "@ann", ann),
        ("code owner", "@org/team", None),
        ("code owner", "bob@example.org", bob),
    ]
    first = triage.suggest_assignees(SYSTEM, "vision", ONE)[0]
    assert first.why == "the repository's CODEOWNERS names them for pkg/a.py"


def test_an_analysis_that_is_not_kept_any_more_tells_nothing(line: Line, triage: TriageService) -> None:
    line.analysed(1)
    with line.bench.database.unit_of_work() as uow:
        uow.session.execute(update(ProjectRow).values(baseline_id="0" * 27))
    line.decide(1, "open", first_analysis_id="0" * 27)
    (nobody,) = triage.suggest_assignees(SYSTEM, "vision", ONE)
    assert (nobody.name, nobody.why) == (None, "the analysis that first showed it is not kept any more")


# -------------------------------------------------------------------------------- what is given


def test_new_findings_are_given_to_nobody_unless_the_project_wants_it(line: Line) -> None:
    member_lines = written(ANN, owned("@ann"))
    line.analysed()
    member(line.bench.database, "ann", email="ann@example.org")
    analysed(line, member_lines, 1)
    assert line.one(1).assignee_name is None
    assert line.kinds(1) == []


def test_new_findings_go_to_the_first_owner_who_is_a_member(line: Line) -> None:
    line.analysed()
    give_new_findings_to(line, "owner")
    ann = member(line.bench.database, "ann")
    analysed(line, written(None, owned("@org/team", "@stranger", "@ann")), 1)
    found = line.one(1)
    assert (found.assignee_id, found.assignee_name) == (ann, "ann")
    (event,) = line.inbox.history(SYSTEM, "vision", ONE).items
    assert (event.kind, event.actor_name, event.after) == ("assigned", "Gradproof", "ann")
    assert event.text == "the repository's CODEOWNERS names them for pkg/a.py"


def test_a_proposal_gives_findings_by_the_owners_of_the_main_line(line: Line) -> None:
    analysed(line, written(None, owned("@ann")))
    give_new_findings_to(line, "owner")
    ann, eve = member(line.bench.database, "ann"), member(line.bench.database, "eve")
    analysed(line, written(None, owned("@eve"), content="d"), 1, purpose=Purpose.PROPOSAL)
    assert line.one(1).assignee_id == ann
    analysed(line, written(None, owned("@eve"), content="d"), 1, 2)
    assert (line.one(1).assignee_id, line.one(2).assignee_id) == (ann, eve)


def test_new_findings_go_to_who_brought_them_but_not_those_of_the_first_analysis(line: Line) -> None:
    line.analysed()
    with line.bench.database.unit_of_work() as uow:
        uow.session.execute(update(ProjectRow).values(baseline_id=None))
    give_new_findings_to(line, "author")
    ann = member(line.bench.database, "ann", email="ann@example.org")
    analysed(line, written(), 1)
    analysed(line, written(), 1, 2)
    analysed(line, written(None), 1, 2, 3)
    assert [line.one(number).assignee_id for number in (1, 2, 3)] == [None, ann, None]
    assert line.kinds(2) == ["assigned"]


def test_what_a_change_is_only_compared_with_is_given_to_nobody(line: Line) -> None:
    line.analysed()
    give_new_findings_to(line, "author")
    member(line.bench.database, "ann", email="ann@example.org")
    analysed(line, written(), 1, purpose=Purpose.BASE)
    analysed(line, written(), 2, purpose=Purpose.PROPOSAL)
    assert line.one(1).assignee_id is None
    assert line.one(2).assignee_name == "ann"


def test_whom_a_person_gave_a_finding_to_keeps_it(line: Line, triage: TriageService) -> None:
    line.analysed(1)
    give_new_findings_to(line, "owner")
    member(line.bench.database, "ann")
    member(line.bench.database, "bob")
    triage.assign(SYSTEM, "vision", ONE, "bob")
    analysed(line, written(None, owned("@ann")), 1)
    assert line.one(1).assignee_name == "bob"


def test_owners_are_looked_up_for_a_bounded_number_of_files(line: Line) -> None:
    analysed(line, written(None, owned("@ann")))
    member(line.bench.database, "ann")
    with line.bench.database.reading() as session:
        assigned = owner_of(session, session.scalars(select(ProjectRow)).one(), None)
        given = [assigned(f"{number}.py") for number in range(MOST_FILES + 1)]
        assert all(given[:-1])
        assert given[-1] is None
        assert assigned("0.py") == given[0]
