"""Decisions about findings: what they need, what they change, who may take them, and what is written down of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from services.accounts.access import SYSTEM, Permission, Role, Subject
from services.accounts.errors import PermissionDeniedError
from services.accounts.models import AuditEventRow, ProjectMembershipRow, UserRow
from services.analyses.model import AnalysisOptions
from services.analyses.reconciler import Reconciler
from services.database import Database
from services.database.base import utc_now
from services.forges.models import ForgeTaskRow
from services.projects.errors import ProjectNotFoundError
from services.projects.models import ProjectRow
from services.reports.document import Gate
from services.triage.decisions import PRESENT_TORCH, Change, Decision
from services.triage.errors import FindingNotFoundError, InvalidDecisionError
from services.triage.gates_repository import MOST_TOLD
from services.triage.model import NOBODY, FindingFilter, Until
from services.triage.models import ProjectFindingRow
from services.triage.service import TriageService
from tests.jobs.support import SNAPSHOT, check
from tests.team_rows import Rows
from tests.triage.line import Line
from tests.triage.support import add_findings, finding_values, make_project

ONE = "fingerprint-1"


@pytest.fixture
def triage(database: Database) -> TriageService:
    return TriageService(database)


def member(database: Database, name: str, role: Role | None, project: str = "vision") -> Subject:
    """A user with a role in the project, or in none."""
    with database.unit_of_work() as uow:
        user = UserRow(name=name, display_name=name)
        uow.session.add(user)
        uow.session.flush()
        if role is not None:
            project_id = uow.session.scalars(select(ProjectRow.id).where(ProjectRow.name == project)).one()
            uow.session.add(ProjectMembershipRow(project_id=project_id, user_id=user.id, role=role))
        return Subject("user", user.id, name, frozenset(Permission), user_id=user.id)


def gate_of(line: Line, analysis_id: str) -> Gate:
    gate = line.bench.analyses.report(analysis_id).gate
    assert isinstance(gate, Gate)
    return gate


def audit(database: Database) -> list[tuple[str, str, str]]:
    with database.reading() as session:
        rows = session.scalars(select(AuditEventRow).order_by(AuditEventRow.id))
        return [(row.action, row.object_id, row.actor_name) for row in rows if row.action.startswith("finding.")]


def test_an_acceptance_is_kept_with_its_reason_and_shown_everywhere(line: Line, triage: TriageService) -> None:
    analysis_id = line.analysed(1, 2)
    assert not gate_of(line, analysis_id).passed
    ann = member(line.bench.database, "ann", Role.TRIAGER)
    found = triage.accept(ann, "vision", ONE, "  measured, and small  ")
    assert (found.state, found.reason, found.decided_by, found.decided_by_name) == (
        "accepted",
        "measured, and small",
        ann.id,
        "ann",
    )
    assert found.decided_at is not None
    assert line.triage(analysis_id) == {ONE: "accepted", "fingerprint-2": "open"}
    (event,) = line.inbox.history(SYSTEM, "vision", ONE).items
    assert (event.kind, event.before, event.after, event.text, event.actor_name) == (
        "accepted",
        "open",
        "accepted",
        "measured, and small",
        "ann",
    )
    assert audit(line.bench.database) == [("finding.accept", ONE, "ann")]
    totals = line.results.summary(SYSTEM, analysis_id).totals
    assert totals is not None
    assert (totals.findings.all, totals.findings.open) == ({"error": 2}, {"error": 1})


def test_a_gate_says_what_is_so_now_and_keeps_what_it_said_at_the_end(line: Line, triage: TriageService) -> None:
    analysis_id = line.analysed(1, 2)
    at_end = gate_of(line, analysis_id)
    assert at_end.at_end is None
    triage.accept(SYSTEM, "vision", ONE, "measured")
    half = gate_of(line, analysis_id)
    assert not half.passed
    assert half.at_end is not None  # its sentences have changed
    triage.call_false(SYSTEM, "vision", "fingerprint-2", "guarded by the caller")
    now = gate_of(line, analysis_id)
    assert now.passed
    assert now.at_end is not None
    assert (now.at_end.passed, now.at_end.conditions) == (at_end.passed, at_end.conditions)
    assert now.at_end.revised_by == "Gradproof"
    assert line.results.summary(SYSTEM, analysis_id).gate_passed is True
    for fingerprint in (ONE, "fingerprint-2"):
        triage.reopen(SYSTEM, "vision", fingerprint, "it is not small any more")
    assert gate_of(line, analysis_id) == at_end


def test_a_decision_reaches_the_analyses_of_proposals_and_those_under_way(line: Line, triage: TriageService) -> None:
    base = line.analysed()
    proposal = line.submit(base=base)
    line.settle((1,))
    assert not gate_of(line, proposal).passed
    running = line.bench.analyses.submit(SNAPSHOT, project="vision")
    line.settle((1,), check("nan_gradient"))
    triage.accept(SYSTEM, "vision", ONE, "measured")
    assert gate_of(line, proposal).passed
    assert line.triage(proposal) == line.triage(running.analysis_id) == {ONE: "accepted"}


def test_a_decision_reaches_the_heads_of_open_pull_requests_however_old(line: Line, triage: TriageService) -> None:
    base = line.analysed()
    proposals = []
    for _ in range(2):
        proposals.append(line.submit(base=base, options=AnalysisOptions(static_only=not proposals)))
        line.settle((1,))
    rows = Rows(line.bench.database)
    with line.bench.database.reading() as session:
        project = session.scalars(select(ProjectRow.id).where(ProjectRow.name == "vision")).one()
    repository = rows.repository(project)
    waits, ended = proposals
    pull = rows.pull_request(repository, analysis_id=waits)
    rows.pull_request(repository, analysis_id=ended, state="merged")
    for _ in range(MOST_TOLD):
        rows.analysis(project)
    triage.accept(SYSTEM, "vision", ONE, "measured")
    assert [gate_of(line, each).passed for each in proposals] == [True, False]
    assert (line.triage(waits), line.triage(ended)) == ({ONE: "accepted"}, {ONE: "open"})
    with line.bench.database.reading() as session:  # and the check of that pull request is brought up to it
        assert pull in session.scalars(select(ForgeTaskRow.pull_request_id).where(ForgeTaskRow.kind == "publish")).all()


@pytest.mark.parametrize(
    "decision",
    [
        Decision("accept", ""),
        Decision("accept", " \n "),
        Decision("false_positive"),
        Decision("accept", "x" * 4_001),
        Decision("accept", "soon", Until(date=utc_now() - timedelta(seconds=1))),
        Decision("accept", "soon", Until(occurrences=0)),
        Decision("accept", "soon", Until(occurrences=10_001)),
        Decision("accept", "soon", Until(torch="newest")),
        Decision("accept", "soon", Until(torch=PRESENT_TORCH)),
        Decision("false_positive", "never", Until(occurrences=1)),
    ],
)
def test_a_decision_without_a_reason_or_with_an_impossible_end_is_refused(
    line: Line, triage: TriageService, decision: Decision
) -> None:
    line.analysed(1)
    with pytest.raises(InvalidDecisionError):
        triage.decide(SYSTEM, "vision", ONE, decision)
    assert line.one(1).state == "open"
    assert line.kinds(1) == []
    assert audit(line.bench.database) == []


def test_the_present_torch_is_that_of_the_main_line(line: Line, triage: TriageService) -> None:
    line.submit()
    line.settle((1,), check("nan_gradient"), torch="2.13.0+cpu")
    assert triage.accept(SYSTEM, "vision", ONE, "soon", Until(torch=PRESENT_TORCH)).until.torch == "2.13.0+cpu"
    line.submit(options=AnalysisOptions(reuse=False))
    line.settle((1,), check("nan_gradient"), torch="2.14.0")
    assert line.one(1).state == "open"


def test_what_is_gone_can_not_be_accepted_and_is_fixed_when_opened_again(line: Line, triage: TriageService) -> None:
    line.analysed(1, 2)
    triage.accept(SYSTEM, "vision", ONE, "measured")
    line.analysed()
    assert line.one(1).state == "accepted"
    assert triage.reopen(SYSTEM, "vision", ONE).state == "fixed"
    with pytest.raises(InvalidDecisionError):
        triage.accept(SYSTEM, "vision", "fingerprint-2", "too late")
    assert triage.call_false(SYSTEM, "vision", "fingerprint-2", "it never was one").state == "false_positive"
    before = len(line.kinds(1))
    triage.reopen(SYSTEM, "vision", ONE)
    assert len(line.kinds(1)) == before  # nothing to change, nothing to tell


def test_an_acceptance_until_a_date_ends_by_the_clock(line: Line, triage: TriageService) -> None:
    analysis_id = line.analysed(1)
    triage.accept(SYSTEM, "vision", ONE, "soon", Until(date=utc_now() + timedelta(days=1)))
    assert gate_of(line, analysis_id).passed
    assert triage.end_acceptances() == 0
    with line.bench.database.unit_of_work() as uow:
        uow.session.execute(update(ProjectFindingRow).values(until_date=utc_now() - timedelta(seconds=1)))
    assert Reconciler(line.bench.database, line.bench.settings, "one").tick().held
    assert (line.one(1).state, line.one(1).until.date, line.one(1).reason) == ("open", None, "")
    assert line.kinds(1) == ["expired", "accepted"]
    assert line.triage(analysis_id) == {ONE: "open"}


def test_an_acceptance_of_what_is_gone_meanwhile_ends_as_fixed(line: Line, triage: TriageService) -> None:
    analysis_id = line.analysed(1)
    triage.accept(SYSTEM, "vision", ONE, "soon", Until(date=utc_now() + timedelta(days=1)))
    line.analysed()
    with line.bench.database.unit_of_work() as uow:
        uow.session.execute(update(ProjectFindingRow).values(until_date=utc_now() - timedelta(seconds=1)))
    assert triage.end_acceptances() == 1
    assert (line.one(1).state, line.one(1).until.date, line.one(1).on_main) == ("fixed", None, False)
    newest = line.inbox.history(SYSTEM, "vision", ONE).items[0]
    assert (newest.kind, newest.before, newest.after) == ("expired", "accepted", "fixed")
    assert line.triage(analysis_id) == {ONE: "open"}  # there it is, and nobody accepts it any more
    line.analysed(1)
    assert line.one(1).state == "regressed"
    assert not gate_of(line, analysis_id).passed
    assert audit(line.bench.database)[-1] == ("finding.expire", ONE, "Gradproof")


def test_only_who_may_decide_decides(line: Line, triage: TriageService) -> None:
    line.analysed(1)
    viewer = member(line.bench.database, "vic", Role.VIEWER)
    stranger = member(line.bench.database, "eve", None)
    for call in (
        lambda who: triage.accept(who, "vision", ONE, "x"),
        lambda who: triage.call_false(who, "vision", ONE, "x"),
        lambda who: triage.reopen(who, "vision", ONE),
        lambda who: triage.comment(who, "vision", ONE, "x"),
        lambda who: triage.assign(who, "vision", ONE, None),
        lambda who: triage.change_many(who, "vision", Change(Decision("accept", "x")), fingerprints=[ONE]),
    ):
        with pytest.raises(PermissionDeniedError):
            call(viewer)
        with pytest.raises(ProjectNotFoundError):
            call(stranger)
    assert line.one(1).state == "open"
    with pytest.raises(FindingNotFoundError):
        triage.accept(SYSTEM, "vision", "nothing", "x")


def test_comments_and_assignments_are_told_in_the_history(line: Line, triage: TriageService) -> None:
    line.analysed(1)
    ann = member(line.bench.database, "ann", Role.VIEWER)
    triage.comment(SYSTEM, "vision", ONE, "<b>why</b>")
    assert triage.assign(SYSTEM, "vision", ONE, "Ann").assignee_id == ann.id
    assert triage.assign(SYSTEM, "vision", ONE, ann.id).assignee_name == "ann"  # no second event
    (hers,) = line.inbox.findings(SYSTEM, "vision", FindingFilter(assignee=ann.id)).items
    assert hers.fingerprint == ONE
    assert triage.assign(SYSTEM, "vision", ONE, None).assignee_id is None
    assert line.kinds(1) == ["assigned", "assigned", "commented"]
    events = line.inbox.history(SYSTEM, "vision", ONE).items
    assert [(event.before, event.after) for event in events] == [("ann", None), (None, "ann"), (None, None)]
    assert events[-1].text == "<b>why</b>"
    page = line.inbox.history(SYSTEM, "vision", ONE, limit=2)
    assert line.inbox.history(SYSTEM, "vision", ONE, cursor=page.next_cursor).items == events[2:]
    member(line.bench.database, "eve", None)
    for nobody in ("eve", "nobody-of-this-name"):
        with pytest.raises(InvalidDecisionError):
            triage.assign(SYSTEM, "vision", ONE, nobody)
    with pytest.raises(InvalidDecisionError):
        triage.comment(SYSTEM, "vision", ONE, " ")


@pytest.fixture
def many(database: Database) -> str:
    project_id = make_project(database)
    with database.unit_of_work() as uow:
        add_findings(uow.session, [finding_values(project_id, number) for number in range(620)])
    return project_id


def named(*numbers: int) -> list[str]:
    return [f"{number:040x}" for number in numbers]


@pytest.mark.usefixtures("many")
def test_many_findings_are_decided_about_at_once(line: Line, triage: TriageService) -> None:
    asked = named(*range(500))
    done = triage.change_many(
        SYSTEM, "vision", Change(Decision("accept", "all measured")), fingerprints=[*asked[1:], "nothing"]
    )
    assert (len(done.changed), done.unchanged, done.missing) == (499, (), ("nothing",))
    assert line.inbox.facets(SYSTEM, "vision").states == {"accepted": 499, "open": 121}
    assert len(audit(line.bench.database)) == 1
    wanted = FindingFilter(states=("open",), rule="GP101")
    taken = line.inbox.facets(SYSTEM, "vision", wanted).total
    done = triage.change_many(SYSTEM, "vision", Change(Decision("false_positive", "no")), wanted=wanted)
    assert len(done.changed) == taken
    assert line.inbox.facets(SYSTEM, "vision", wanted).total == 0
    ann = member(line.bench.database, "ann", Role.VIEWER)
    triage.change_many(SYSTEM, "vision", Change(reassign=True, assignee="ann"), wanted=FindingFilter(states=("open",)))
    assert line.inbox.facets(SYSTEM, "vision", FindingFilter(assignee=ann.id)).states == {"open": 121 - taken}
    assert line.inbox.facets(SYSTEM, "vision", FindingFilter(assignee=NOBODY)).total == 499 + taken


@pytest.mark.usefixtures("many")
def test_a_decision_about_too_many_or_about_nothing_in_particular_is_refused(triage: TriageService) -> None:
    decision = Decision("accept", "x")
    for asked in (
        {"fingerprints": named(*range(501))},
        {"wanted": FindingFilter()},
        {"fingerprints": named(1), "wanted": FindingFilter(rule="GP101")},
        {},
    ):
        with pytest.raises(InvalidDecisionError):
            triage.change_many(SYSTEM, "vision", Change(decision), **asked)


def test_among_many_those_are_left_for_which_it_makes_no_sense(line: Line, triage: TriageService) -> None:
    line.analysed(1, 2)
    line.analysed(2)
    done = triage.change_many(SYSTEM, "vision", Change(Decision("accept", "x")), fingerprints=[ONE, "fingerprint-2"])
    assert (done.changed, done.unchanged) == (("fingerprint-2",), (ONE,))


def test_a_decision_about_a_finding_of_one_project_leaves_the_same_one_of_another(
    line: Line, triage: TriageService
) -> None:
    line.analysed(1)
    other = line.bench.analyses.submit(SNAPSHOT, project="other").analysis_id
    line.settle((1,))
    triage.accept(SYSTEM, "vision", ONE, "measured")
    assert line.inbox.finding(SYSTEM, "other", ONE).state == "open"
    assert line.triage(other) == {ONE: "open"}
