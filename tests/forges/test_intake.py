"""What people and repositories do, told by webhooks over real HTTP, and what follows from it here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from services.accounts.access import SYSTEM
from services.analyses.service import AnalysisService
from services.database.base import utc_now
from services.forges.models import InstallationRow, RepositoryRow
from services.projects.models import ProjectRow
from services.settings import Settings
from services.triage.models import ProjectFindingRow, TriageEventRow
from tests.forges.test_end_to_end import FAULTY, FIXED, opened, published
from tests.forges.workplace import CLEAN, LOGSIGMOID, NORM, Workplace, module, since
from tools.fake_forge.world import PullRequest


@pytest.fixture
def workplace(embedded_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(embedded_settings, tmp_path) as opened:
        yield opened
    assert opened.forge.violations == []


def said(workplace: Workplace, pull: PullRequest, command: str, *, by: str = "ada") -> str | None:
    """What is answered to a comment; None if nothing is."""
    before = len(workplace.forge.comments(pull))
    workplace.forge.comment(pull, command, by=by)
    workplace.work()
    answers = workplace.forge.comments(pull)[before + 1 :]
    assert len(answers) <= 1
    return answers[0].body if answers else None


def test_pushes_are_waited_for_and_the_first_look_is_not(workplace: Workplace) -> None:
    pull = opened(workplace)
    workplace.control()
    first = workplace.row(pull)
    assert (first.analysis_id is not None, first.due_at) == (True, None)
    workplace.forge.push(pull, {"model.py": module(LOGSIGMOID, CLEAN)})
    workplace.control()
    second = workplace.row(pull)
    assert (second.analysis_id, second.due_at is not None) == (None, True)
    workplace.forge.push(pull, FIXED)
    workplace.control()
    third = workplace.row(pull)
    assert third.due_at is not None
    assert second.due_at is not None
    assert third.due_at > second.due_at
    assert [task.state for task in workplace.tasks() if task.kind == "analyse"] == ["done", "queued"]
    workplace.work()
    proposals = [row for row in workplace.analyses() if row.purpose == "proposal"]
    assert [(row.status, row.reason) for row in proposals] == [
        ("cancelled", "superseded by a newer push"), ("finished", None),
    ]  # fmt: skip


def test_drafts_wait_closed_ones_end_and_reopened_ones_begin_again(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace, draft=True)
    workplace.work()
    assert dict(forge.writes()) == {}
    assert "draft" in workplace.row(pull).silence["analysis"]
    forge.mark_ready(pull)
    workplace.control()
    assert workplace.row(pull).analysis_id is not None
    forge.close_pull_request(pull)
    workplace.work()
    assert [row.reason for row in workplace.analyses() if row.purpose == "proposal"] == ["the pull request was closed"]
    assert forge.comments(pull) == []
    forge.reopen_pull_request(pull)
    workplace.work()
    assert len(forge.comments(pull)) == 1
    assert workplace.row(pull).silence == {}


def test_another_base_branch_is_compared_with_that(workplace: Workplace) -> None:
    forge = workplace.forge
    repository = forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
    forge.push_to(repository, "next", {"model.py": module(LOGSIGMOID, NORM)})
    pull = forge.open_pull_request(repository, FAULTY, by="ada", base="next")
    workplace.work()
    assert forge.check_runs(pull)[-1].title == "1 new finding, 1 shown by execution"
    forge.edit(pull, base="main")
    workplace.work()
    assert workplace.row(pull).base_ref == "main"
    assert forge.check_runs(pull)[-1].title == "2 new findings, 2 shown by execution"
    forge.edit(pull, title="Another title")
    workplace.work()
    assert [each.purpose for each in workplace.analyses()].count("proposal") == 2


def test_pushes_that_nobody_reads_pause_it_until_somebody_resumes(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace, pause_after_pushes=1)
    forge.push(pull, {"notes.md": "Words."})
    workplace.work()
    (run,) = forge.check_runs(pull)
    assert (run.conclusion, run.title) == ("skipped", "Paused")
    assert "1 push came without anybody" in (run.summary or "")
    assert workplace.row(pull).silence["analysis"].startswith("paused: 1 push")
    assert "Resumed" in (said(workplace, pull, "/gradproof resume") or "")
    assert forge.check_runs(pull)[-1].title == "2 new findings, 2 shown by execution"
    assert workplace.row(pull).pushes == 0


class TestCommands:
    def test_people_who_may_write_are_obeyed_and_each_command_is_answered_once(self, workplace: Workplace) -> None:
        forge = workplace.forge
        pull = published(workplace)
        analyses = len(workplace.analyses())
        before = forge.writes()
        assert "being analysed again" in (said(workplace, pull, "Please:\n/gradproof rerun") or "")
        assert len(workplace.analyses()) == analyses + 1
        assert workplace.analyses()[-1].options["reuse"] is False
        # The check of a new run, and the answer: nothing about the findings is new.
        assert since(forge, before) == {"check_run.create": 1, "check_run.update": 1, "comment.create": 1}
        assert said(workplace, pull, "Looks good to me") is None
        assert said(workplace, pull, "> /gradproof rerun") is None
        fingerprint = workplace.threads()[0].fingerprint
        assert "Shown by execution" in (said(workplace, pull, f"/gradproof explain {fingerprint[:12]}") or "")
        assert "GP102" in (said(workplace, pull, "/gradproof explain GP102") or "")
        assert "`/gradproof rerun`" in (said(workplace, pull, "/gradproof help") or "")
        assert "There is no command" in (said(workplace, pull, "/gradproof dance") or "")

    def test_a_comment_that_is_sent_again_as_another_delivery_is_not_obeyed_again(self, workplace: Workplace) -> None:
        forge = workplace.forge
        pull = published(workplace)
        said(workplace, pull, "/gradproof pause")
        said(workplace, pull, "/gradproof resume")
        seen = next(
            each for each in forge.deliveries if each.event == "issue_comment" and b"gradproof pause" in each.body
        )
        before, analyses = forge.writes(), len(workplace.analyses())
        replayed = forge.send("issue_comment", seen.body)
        assert (replayed.status, "queued" in replayed.response) == (202, True)
        workplace.work()
        assert (since(forge, before), len(workplace.analyses())) == ({}, analyses)
        assert workplace.row(pull).paused_at is None

    def test_an_ignored_finding_is_accepted_in_the_name_of_the_person(self, workplace: Workplace) -> None:
        forge = workplace.forge
        pull = published(workplace, {"model.py": module(LOGSIGMOID, NORM)}, blocks=True)
        (thread,) = workplace.threads()
        assert forge.check_runs(pull)[0].conclusion == "failure"
        answer = said(workplace, pull, f"/gradproof ignore {thread.fingerprint[:12]} the norm is never zero here")
        assert "is accepted by `ada`" in (answer or "")
        with workplace.database.reading() as session:
            finding = session.scalars(
                select(ProjectFindingRow).where(ProjectFindingRow.fingerprint == thread.fingerprint)
            ).one()
            events = session.scalars(select(TriageEventRow).where(TriageEventRow.kind == "accepted")).all()
        assert (finding.state, finding.reason) == ("accepted", "the norm is never zero here")
        assert [(event.actor_kind, event.actor_name) for event in events] == [("forge", "ada at acme")]
        (run,) = forge.check_runs(pull)
        assert (run.conclusion, run.title) == ("success", "No new findings")
        assert len(run.annotations) == 1  # what was annotated can't be taken back
        assert forge.threads(pull)[0].resolved_by is not None
        assert "Nothing new to look at" in forge.comments(pull)[0].body

    def test_others_are_not_obeyed_and_in_public_not_answered(self, workplace: Workplace) -> None:
        forge = workplace.forge
        repository = forge.create_repository("acme/open", {"model.py": module(LOGSIGMOID)}, private=False)
        pull = forge.open_pull_request(repository, FAULTY, by="ada")
        workplace.work()
        analyses = len(workplace.analyses())
        assert said(workplace, pull, "/gradproof rerun", by="stranger") is None
        assert len(workplace.analyses()) == analyses
        assert "need permission to write" in workplace.deliveries()[-1].reason
        forge.set_role(repository, "ada", "read")
        assert "takes permission to write" in (said(workplace, pull, "/gradproof rerun") or "")
        assert len(workplace.analyses()) == analyses

    def test_a_pause_holds_until_it_is_taken_back(self, workplace: Workplace) -> None:
        forge = workplace.forge
        pull = published(workplace, debounce_s=0)
        assert "Paused" in (said(workplace, pull, "/gradproof pause") or "")
        before = forge.writes()
        forge.push(pull, FIXED)
        workplace.work()
        assert since(forge, before) == {"check_run.create": 1}
        assert forge.check_runs(pull)[0].conclusion == "skipped"
        assert "Resumed" in (said(workplace, pull, "/gradproof resume") or "")
        assert [run.conclusion for run in forge.check_runs(pull)] == ["skipped", "success"]


def test_the_buttons_of_a_check_run_it_again_and_explain(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    (run,) = forge.check_runs(pull)
    analyses = len(workplace.analyses())
    forge.rerequest(run)
    workplace.work()
    forge.rerequest_suite(pull.repository, pull.head_sha)
    workplace.work()
    assert len(workplace.analyses()) == analyses + 2
    before = forge.writes()
    forge.request_action(forge.check_runs(pull)[-1], "explain")
    workplace.work()
    assert since(forge, before) == {"comment.create": 1}
    assert "GP102" in forge.comments(pull)[-1].body


def test_the_main_line_is_analysed_with_each_push_and_is_what_changes_are_compared_with(workplace: Workplace) -> None:
    forge = workplace.forge
    repository = forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
    forge.push_to(repository, "main", {"other.py": "import torch\n"})
    workplace.work()
    (main,) = workplace.analyses()
    assert (main.purpose, main.branch, main.status) == ("main", "main", "finished")
    pull = forge.open_pull_request(repository, {"model.py": module(LOGSIGMOID, NORM)}, by="ada")
    workplace.work()
    assert workplace.row(pull).base_analysis_id == main.id
    assert [row.purpose for row in workplace.analyses()] == ["main", "proposal"]


class TestTheMainLine:
    """It is where the forge shows it, whichever push tells of it, and whenever."""

    def baseline(self, workplace: Workplace) -> str | None:
        with workplace.database.reading() as session:
            return session.scalars(select(ProjectRow.baseline_id)).one()

    def test_a_push_that_comes_late_takes_nothing_back(self, workplace: Workplace) -> None:
        forge = workplace.forge
        repository = forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
        door, forge.webhook_url = forge.webhook_url, None
        forge.push_to(repository, "main", {"model.py": module(LOGSIGMOID, NORM)})
        late = next(each for each in reversed(forge.deliveries) if each.event == "push")
        forge.webhook_url = door
        newest = forge.push_to(repository, "main", FIXED)
        workplace.work()
        (main,) = workplace.analyses()
        assert (main.source_ref, self.baseline(workplace)) == (newest, main.id)
        forge.redeliver(late)
        workplace.work()
        assert [row.id for row in workplace.analyses()] == [main.id]
        assert (workplace.deliveries()[-1].outcome, self.baseline(workplace)) == ("ignored", main.id)

    def test_a_push_that_nobody_told_us_of_is_seen_with_the_one_before(self, workplace: Workplace) -> None:
        forge = workplace.forge
        repository = forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
        forge.push_to(repository, "main", {"model.py": module(LOGSIGMOID, NORM)})
        forge.settle()
        forge.webhook_url, door = None, forge.webhook_url
        newest = forge.push_to(repository, "main", FIXED)
        forge.webhook_url = door
        workplace.work()
        assert [row.source_ref for row in workplace.analyses()] == [newest]

    def test_a_commit_that_came_to_nothing_or_comes_back_is_analysed_again(self, workplace: Workplace) -> None:
        forge = workplace.forge
        repository = forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
        first = forge.push_to(repository, "main", {"model.py": module(LOGSIGMOID, NORM)})
        told = next(each.body for each in reversed(forge.deliveries) if each.event == "push")
        workplace.control()
        (cancelled,) = workplace.analyses()
        AnalysisService(workplace.database, workplace.settings).cancel(SYSTEM, cancelled.id)
        forge.send("push", told)
        workplace.work()
        assert [(row.source_ref, row.status) for row in workplace.analyses()] == [
            (first, "cancelled"), (first, "finished"),
        ]  # fmt: skip
        forge.push_to(repository, "main", FIXED)
        workplace.work()
        repository.branches["main"] = first  # pushed by force
        forge.send("push", told)
        workplace.work()
        last = workplace.analyses()[-1]
        assert (len(workplace.analyses()), last.source_ref, last.status) == (4, first, "finished")
        assert self.baseline(workplace) == last.id

    def test_an_archived_project_is_not_analysed_any_more(self, workplace: Workplace) -> None:
        forge = workplace.forge
        repository = forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
        forge.push_to(repository, "main", {"model.py": module(LOGSIGMOID, NORM)})
        workplace.work()
        with workplace.database.unit_of_work() as uow:
            uow.session.execute(update(ProjectRow).values(archived_at=utc_now()))
        forge.push_to(repository, "main", FIXED)
        workplace.work()
        assert len(workplace.analyses()) == 1
        told = next(row for row in reversed(workplace.deliveries()) if row.event == "push")
        assert (told.outcome, told.reason) == ("ignored", "the project is archived")


def test_projects_follow_their_repositories(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)

    def project() -> tuple[str, str, bool]:
        with workplace.database.reading() as session:
            row = session.scalars(select(ProjectRow)).one()
            place = session.scalars(select(RepositoryRow)).one()
            return row.name, place.full_name, row.archived_at is not None

    assert project() == ("acme.models", "acme/models", False)
    forge.rename(pull.repository, "networks")
    workplace.work()
    assert project() == ("acme.networks", "acme/networks", False)
    forge.install("initech")
    forge.transfer(pull.repository, "initech")
    workplace.work()
    assert project() == ("initech.networks", "initech/networks", False)
    forge.push(pull, FIXED)
    workplace.work()
    assert forge.check_runs(pull)[-1].conclusion == "success"


def test_what_is_taken_out_of_an_installation_is_left_alone(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    other = forge.create_repository("acme/other")
    forge.select_repositories("acme", [other])
    workplace.work()
    with workplace.database.reading() as session:
        assert session.scalars(select(RepositoryRow)).one().removed_at is not None
    forge.select_repositories("acme", [other, pull.repository])
    workplace.work()
    with workplace.database.reading() as session:
        assert session.scalars(select(RepositoryRow)).one().removed_at is None
    forge.uninstall("acme")
    workplace.work()
    with workplace.database.reading() as session:
        assert session.scalars(select(InstallationRow)).one().removed_at is not None


def test_findings_go_to_code_scanning_once_for_a_head_where_that_is_wanted(workplace: Workplace) -> None:
    forge = workplace.forge
    forge.permissions["security_events"] = "write"
    pull = published(workplace, sarif=True)
    (uploaded,) = forge.sarifs()
    assert (uploaded.commit, uploaded.ref, uploaded.errors) == (
        pull.head_sha, f"refs/pull/{pull.number}/head", [],
    )  # fmt: skip
    said(workplace, pull, "/gradproof rerun")
    assert len(forge.sarifs()) == 1


def test_what_the_project_does_not_want_is_not_written(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace, summary="never", inline=False, annotations=False)
    assert dict(forge.writes()).keys() == {"check_run.create", "check_run.update"}
    assert forge.check_runs(pull)[0].annotations == []
    assert workplace.row(pull).silence == {
        "inline": "the project wants no comments at lines", "summary": "the project wants no comment",
    }  # fmt: skip


def test_a_webhook_is_answered_without_asking_anybody(workplace: Workplace) -> None:
    forge = workplace.forge
    opened(workplace)
    assert forge.requests == []
    assert {delivery.status for delivery in forge.deliveries} == {202}
