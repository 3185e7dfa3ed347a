"""When a pull request's head is analysed, told from what the forge shows: a table of looks, without any forge."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from services.forges import states
from services.forges.models import PullRequestRow
from services.forges.values import Person, PullRequest
from services.projects.settings import BotSettings

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
BOT = BotSettings(debounce_s=20, pause_after_pushes=3)
SEEN = PullRequest(
    number=7,
    title="Better",
    state="open",
    is_draft=False,
    author=Person("1", "octocat"),
    head_sha="a" * 40,
    head_ref="better",
    head_repository="acme/models",
    base_sha="b" * 40,
    base_ref="main",
    merge_base_sha=None,
    is_fork=False,
    labels=(),
    url="https://github.com/acme/models/pull/7",
)
AT_ONCE = timedelta(0)


def row(**changes: object) -> PullRequestRow:
    known = PullRequestRow(
        repository_id="r", number=7, state="open", is_draft=False, is_fork=False, title="", author="", base_ref="main",
        base_sha="b" * 40, head_ref="better", head_sha="a" * 40, pushes=0, pause_reason="", silence={},
        analysis_id="analysed",
    )  # fmt: skip
    for name, value in changes.items():
        setattr(known, name, value)
    return known


def observe(known: PullRequestRow, bot: BotSettings = BOT, *, is_new: bool = False, **changes: object) -> states.Seen:
    return states.observe(known, replace(SEEN, **changes), bot, now=NOW, is_new=is_new)  # type: ignore[arg-type]


def test_the_first_look_has_the_head_analysed_at_once() -> None:
    known = row(analysis_id=None)
    assert observe(known, is_new=True).analyse_after == AT_ONCE
    assert (known.pushes, known.due_at) == (0, NOW)


def test_a_push_waits_for_another_one_and_ends_what_was_under_way() -> None:
    known = row()
    seen = observe(known, head_sha="c" * 40)
    assert seen == states.Seen(superseded=states.SUPERSEDED, analyse_after=timedelta(seconds=20))
    assert (known.head_sha, known.analysis_id, known.pushes) == ("c" * 40, None, 1)
    assert known.due_at == NOW + timedelta(seconds=20)


def test_a_second_look_at_the_same_head_changes_nothing() -> None:
    known = row()
    assert observe(known) == states.Seen()
    waiting = row(analysis_id=None, due_at=NOW + timedelta(seconds=5))
    assert observe(waiting) == states.Seen()
    assert waiting.due_at == NOW + timedelta(seconds=5)


def test_another_base_branch_is_another_comparison() -> None:
    known = row()
    assert observe(known, base_ref="next") == states.Seen(superseded=states.REBASED, analyse_after=AT_ONCE)


def test_a_newer_tip_of_the_same_base_branch_is_not() -> None:
    assert observe(row(), base_sha="d" * 40) == states.Seen()


@pytest.mark.parametrize("state", ["closed", "merged"])
def test_what_is_closed_ends_everything(state: str) -> None:
    known = row(due_at=NOW)
    assert observe(known, state=state) == states.Seen(superseded=states.CLOSED)
    assert (known.state, known.due_at) == (state, None)


def test_what_is_opened_again_is_analysed_unless_its_head_was() -> None:
    assert observe(row(state="closed")) == states.Seen()
    assert observe(row(state="closed", analysis_id=None)).analyse_after == AT_ONCE


def test_drafts_wait_until_they_are_ready() -> None:
    known = row(analysis_id=None)
    assert observe(known, is_new=True, is_draft=True) == states.Seen()
    assert "draft" in known.silence["analysis"]
    assert observe(known).analyse_after == AT_ONCE
    assert known.silence == {}
    wanted = row(analysis_id=None)
    assert observe(wanted, BOT.model_copy(update={"drafts": True}), is_new=True, is_draft=True).analyse_after == AT_ONCE


def test_pushes_that_nobody_reads_pause_it_and_it_says_so() -> None:
    known = row()
    heads = [letter * 40 for letter in "cdef"]
    looks = [observe(known, head_sha=head) for head in heads]
    assert [look.analyse_after is not None for look in looks] == [True, True, False, False]
    assert [look.paused for look in looks] == [False, False, True, True]
    assert known.silence["analysis"] == (
        "paused: 3 pushes came without anybody writing in the pull request; `/gradproof resume` goes on"
    )
    states.resume(known)
    assert known.silence == {}
    assert observe(known, head_sha="1" * 40).analyse_after is not None


def test_somebody_who_reads_keeps_it_going() -> None:
    known = row()
    for letter in "cdef":
        states.somebody_is_there(known)
        assert observe(known, head_sha=letter * 40).analyse_after is not None


def test_a_bot_that_is_switched_off_says_so() -> None:
    known = row(analysis_id=None)
    assert observe(known, BOT.model_copy(update={"enabled": False}), is_new=True) == states.Seen()
    assert known.silence == {"analysis": "the bot is switched off in the settings of the project"}
