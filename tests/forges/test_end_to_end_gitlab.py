"""A merge request at GitLab from its opening to its end, over real HTTP, in the same words as at GitHub.

The counts are those of the table in `docs/bot.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from services.forges.models import PullRequestRow
from services.settings import Settings
from tests.forges.test_end_to_end import FAULTY, FIXED
from tests.forges.workplace import LOGSIGMOID, Workplace, module, since
from tools.fake_forge.failures import cut_after
from tools.fake_forge.gitlab.state import GUEST, MergeRequest


@pytest.fixture
def workplace(embedded_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(embedded_settings, tmp_path) as opened:
        yield opened
    assert opened.forge.violations == []


def opened(workplace: Workplace) -> MergeRequest:
    gitlab = workplace.forge.gitlab
    project = gitlab.create_project("acme/research/models", {"model.py": module(LOGSIGMOID)})
    return gitlab.open_merge_request(project, FAULTY)


def row(workplace: Workplace) -> PullRequestRow:
    with workplace.database.reading() as session:
        return session.scalars(select(PullRequestRow)).one()


def test_it_is_told_once_and_then_only_what_changes(workplace: Workplace) -> None:
    forge, gitlab = workplace.forge, workplace.forge.gitlab
    request = opened(workplace)
    workplace.work()
    assert dict(forge.writes()) == {"status.create": 3, "discussion.create": 2, "note.create": 2}
    (status,) = gitlab.statuses(request.project, request.head_sha)
    assert (status.name, status.description) == ("Gradproof", "2 new findings, 2 shown by execution")
    assert sum("```suggestion:-0+0" in discussion.notes[0].body for discussion in gitlab.discussions(request)) == 2
    assert row(workplace).silence == {}

    before = forge.writes()
    gitlab.push(request, FIXED)
    workplace.work()
    assert since(forge, before) == {"status.create": 2, "note.update": 1, "discussion.resolve": 2}
    (status,) = gitlab.statuses(request.project, request.head_sha)
    assert (status.state, status.description) == ("success", "No new findings")

    before = forge.writes()
    for delivery in gitlab.deliveries:
        assert "queued" not in gitlab.redeliver(delivery).response
    workplace.work()
    assert since(forge, before) == {}
    gitlab.merge(request)
    workplace.work()
    assert since(forge, before) == {}
    assert row(workplace).state == "merged"


def test_comments_whose_answers_were_lost_are_found_again(workplace: Workplace) -> None:
    forge, gitlab = workplace.forge, workplace.forge.gitlab
    request = opened(workplace)
    workplace.control()
    forge.fail(cut_after(), "POST", "/discussions$")
    forge.fail(cut_after(), "POST", "/notes$")
    workplace.work()
    workplace.work()
    assert len(gitlab.discussions(request)) == 2
    assert sum("gradproof:summary" in note.body for note in gitlab.notes(request)) == 1
    assert row(workplace).silence == {}


def test_commands_are_obeyed_and_our_own_notes_are_not(workplace: Workplace) -> None:
    forge, gitlab = workplace.forge, workplace.forge.gitlab
    request = opened(workplace)
    workplace.work()
    analyses = len(workplace.analyses())
    gitlab.comment(request, "/gradproof rerun")
    workplace.work()
    assert len(workplace.analyses()) == analyses + 1
    gitlab.set_access(request.project, "guest", GUEST)
    gitlab.comment(request, "/gradproof rerun", by="guest")
    workplace.work()
    assert len(workplace.analyses()) == analyses + 1
    before = forge.writes()
    workplace.work()
    assert since(forge, before) == {}
