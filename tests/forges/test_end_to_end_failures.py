"""What goes wrong between us and a forge, over real HTTP: nothing is lost or doubled, and every silence has a reason.

The counts are those of the table in `docs/bot.md`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.settings import Settings
from tests.forges.test_end_to_end import FIXED, OPENED, opened, published, suggestions
from tests.forges.workplace import CLEAN, FIXED_NORM, LOGSIGMOID, NORM, SOFTPLUS, Workplace, module, since
from tools.fake_forge import FakeForge
from tools.fake_forge.failures import (
    Failure,
    cut_after,
    cut_before,
    error_after,
    primary_limit,
    secondary_limit,
)

CREATE_CHECK = ("POST", "/check-runs$")
UPDATE_CHECK = ("PATCH", "/check-runs/")
COMMENT = ("POST", "/issues/[0-9]+/comments")
REVIEW = ("POST", "/reviews$")


@pytest.fixture
def workplace(embedded_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(embedded_settings, tmp_path) as opened:
        yield opened
    assert opened.forge.violations == []


def faults(count: int) -> str:
    """A module with as many faults, in one target."""
    lines = (f"        x{number} = x / (x + {number}).norm()" for number in range(count))
    body = "\n".join(lines)
    return module(f"\n\nclass Many(torch.nn.Module):\n    def forward(self, x):\n{body}\n        return x0\n")


def but_for_checks(forge: FakeForge) -> dict[str, int]:
    return {kind: count for kind, count in forge.writes().items() if kind != "check_run.update"}


@pytest.mark.parametrize(
    ("limit", "where"),
    [(secondary_limit(60), CREATE_CHECK), (secondary_limit(None), COMMENT), (primary_limit(), REVIEW)],
    ids=["secondary", "secondary without a time", "primary"],
)
def test_a_rate_limit_is_waited_for_and_then_it_goes_on_where_it_stood(
    workplace: Workplace, limit: Failure, where: tuple[str, str]
) -> None:
    forge = workplace.forge
    forge.fail(limit, *where)
    pull = opened(workplace)
    workplace.work()
    asked = len(forge.requests)
    workplace.work()
    assert len(forge.requests) == asked  # not hammered
    assert "asks us to wait until" in workplace.row(pull).silence["check"]
    workplace.silence_is_over()
    workplace.work()
    assert but_for_checks(forge) == {"check_run.create": 1, "review.create": 1, "comment.create": 1}
    assert len(suggestions(workplace, pull)) == 2
    assert workplace.row(pull).silence == {}


@pytest.mark.parametrize(
    ("failure", "where"),
    [
        (error_after(), CREATE_CHECK),
        (cut_after(), UPDATE_CHECK),
        (error_after(), REVIEW),
        (cut_after(), COMMENT),
        (cut_before(), COMMENT),
    ],
    ids=["check", "annotations", "review", "comment", "comment that was not sent"],
)
def test_a_write_whose_outcome_is_unknown_is_looked_up_and_not_doubled(
    workplace: Workplace, failure: Failure, where: tuple[str, str]
) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    if where != CREATE_CHECK:
        workplace.control()
    forge.fail(failure, *where)
    workplace.work()
    workplace.work()
    (run,) = forge.check_runs(pull)
    assert (run.status, len(run.annotations)) == ("completed", 2)
    assert len(forge.comments(pull)) == 1
    assert len(forge.threads(pull)) == 2
    assert workplace.row(pull).silence == {}
    assert but_for_checks(forge) == {"check_run.create": 1, "review.create": 1, "comment.create": 1}


def test_120_findings_come_in_pages_and_within_the_caps(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace, {"model.py": faults(120)})
    (run,) = forge.check_runs(pull)
    assert len(run.annotations) == len({note["start_line"] for note in run.annotations}) == 120
    assert len(forge.threads(pull)) == 30
    (comment,) = forge.comments(pull)
    assert len(comment.body) < 65_536
    assert "70 more of 120" in comment.body
    # Running; three pages.
    assert dict(forge.writes()) == {**OPENED, "check_run.update": 4}


def test_pages_of_annotations_are_neither_lost_nor_doubled(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace, {"model.py": faults(120)})
    workplace.control()
    forge.fail(error_after(), *UPDATE_CHECK)  # the first page was taken, and nobody heard of it
    workplace.run()
    workplace.control()
    assert len(forge.check_runs(pull)[0].annotations) == 50
    forge.fail(secondary_limit(60), *UPDATE_CHECK)  # the second page was not
    workplace.work()
    assert len(forge.check_runs(pull)[0].annotations) == 50
    workplace.silence_is_over()
    workplace.work()
    (run,) = forge.check_runs(pull)
    assert (run.status, len(run.annotations)) == ("completed", 120)
    assert len({note["start_line"] for note in run.annotations}) == 120


def test_a_comment_that_a_person_deleted_stays_deleted_until_something_new_blocks(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace, {"model.py": module(LOGSIGMOID, NORM)}, blocks=True)
    assert forge.check_runs(pull)[0].conclusion == "failure"
    forge.delete_comment(forge.comments(pull)[0])
    before = forge.writes()
    forge.push(pull, {"model.py": module(LOGSIGMOID, NORM, CLEAN), "other.py": "import torch\n"})
    workplace.work()
    assert forge.comments(pull) == []  # the same finding: nothing is to be changed about it
    forge.push(pull, {"model.py": module(LOGSIGMOID, CLEAN, FIXED_NORM)})
    workplace.work()
    assert forge.comments(pull) == []
    assert "a person deleted our comment" in workplace.row(pull).silence["summary"]
    assert since(forge, before).keys() == {"check_run.create", "check_run.update", "thread.resolve"}
    forge.push(pull, {"model.py": module(LOGSIGMOID, CLEAN, FIXED_NORM, SOFTPLUS)})
    workplace.work()
    assert len(forge.comments(pull)) == 1
    assert "summary" not in workplace.row(pull).silence


def test_a_conversation_that_a_person_joined_is_theirs(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    joined, other = forge.threads(pull)
    forge.reply(joined, "Is that so?", by="bob")
    before = forge.writes()
    forge.push(pull, FIXED)
    workplace.work()
    assert since(forge, before)["thread.resolve"] == 1
    assert joined.resolved_by is None
    assert other.resolved_by is not None
    assert sorted(row.state for row in workplace.threads()) == ["kept", "resolved"]


def test_without_the_right_to_resolve_our_comments_are_folded_away(workplace: Workplace) -> None:
    forge = workplace.forge
    forge.resolving_needs = "contents"
    pull = published(workplace)
    before = forge.writes()
    forge.push(pull, FIXED)
    workplace.work()
    assert since(forge, before)["comment.minimize"] == 2
    assert workplace.row(pull).silence == {}


def test_a_finding_that_comes_back_opens_its_conversation_again(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    forge.push(pull, FIXED)
    workplace.work()
    before = forge.writes()
    forge.push(pull, {"model.py": module(LOGSIGMOID, NORM, SOFTPLUS)})
    workplace.work()
    written = since(forge, before)
    assert (written["thread.unresolve"], "review.create" in written) == (2, False)
    assert len(forge.threads(pull)) == 2


def test_a_conversation_is_not_opened_again_where_nobody_could_look(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    forge.push(pull, FIXED)
    workplace.work()
    before = forge.writes()
    forge.push(pull, {"model.py": "def (\n"})  # nothing is found in it, for it can't be read
    workplace.work()
    assert "thread.unresolve" not in since(forge, before)
    assert {row.state for row in workplace.threads()} == {"resolved"}


def test_what_a_person_resolved_stays_resolved(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    forge.resolve(forge.threads(pull)[0], by="ada")
    before = forge.writes()
    forge.push(pull, {"README.md": "Words."})
    workplace.work()
    assert since(forge, before).keys() == {"check_run.create", "check_run.update"}
    assert forge.threads(pull)[0].resolved_by is not None


def test_a_missing_permission_silences_what_needs_it_and_nothing_else(workplace: Workplace) -> None:
    forge = workplace.forge
    forge.permissions.pop("checks")
    pull = opened(workplace)
    workplace.work()
    assert dict(forge.writes()) == {"review.create": 1, "comment.create": 1}
    assert "checks" in workplace.row(pull).silence["check"]


def test_a_suspended_installation_is_left_alone(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    workplace.control()
    workplace.run()
    before = forge.writes()
    forge.suspend("acme")
    workplace.work()
    assert since(forge, before) == {}
    assert "suspended" in workplace.row(pull).silence["check"]
    door, forge.webhook_url = forge.webhook_url, None
    forge.unsuspend("acme")  # nobody tells us; the next event does
    forge.webhook_url = door
    forge.push(pull, {"notes.md": "Words."})
    workplace.work()
    assert len(forge.comments(pull)) == 1
    assert workplace.row(pull).silence == {}


def test_a_suspension_that_nobody_told_us_of_is_learnt_from_the_refusal(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    workplace.control()
    workplace.run()
    door, forge.webhook_url = forge.webhook_url, None
    forge.suspend("acme")
    forge.webhook_url = door
    before = forge.writes()
    workplace.work()
    asked = len(forge.requests)
    workplace.work()
    assert (since(forge, before), len(forge.requests)) == ({}, asked)
    assert "suspended" in workplace.row(pull).silence["check"]


def test_a_worker_that_was_cut_off_writes_nothing_beside_the_one_that_took_over(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    workplace.control()
    workplace.run()
    cut_off = workplace.new_runner()
    # It looks whether the head is still there before it completes the check, and hears nothing for a long time.
    held = forge.hold("GET", f"/pulls/{pull.number}$")
    thread = threading.Thread(target=cut_off.serve)
    thread.start()
    held.wait_reached()
    workplace.lose_leases()
    workplace.work()
    done = forge.writes()
    held.release()
    thread.join()
    workplace.work()
    assert forge.writes() == done
    assert but_for_checks(forge) == {"check_run.create": 1, "review.create": 1, "comment.create": 1}
    assert forge.check_runs(pull)[0].status == "completed"


def test_without_a_base_nobody_is_told_that_everything_is_new(workplace: Workplace) -> None:
    forge = workplace.forge
    broken = {"model.py": module(LOGSIGMOID, NORM), "gradproof.toml": "nonsense = 1\n"}
    repository = forge.create_repository("acme/models", broken)
    pull = forge.open_pull_request(repository, {"gradproof.toml": ""}, by="ada")
    workplace.control()
    workplace.configure(blocks=True, sarif=True)
    workplace.work()
    (run,) = forge.check_runs(pull)
    assert (run.conclusion, run.annotations) == ("neutral", [])
    assert "could not be analysed" in (run.title or "")
    head = workplace.analyses()[-1]
    assert head.gate is not None
    assert "nobody knows which of" in str(head.gate["conditions"])
    assert [row.status for row in workplace.analyses()] == ["failed", "finished"]
    assert forge.writes().keys() == {"check_run.create", "check_run.update"}
    assert set(workplace.row(pull).silence) == {"inline", "summary", "sarif"}
    assert "could not be analysed" in workplace.row(pull).silence["summary"]


def test_a_configuration_that_is_wrong_is_told_by_the_check_and_blocks_nothing(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace, {"gradproof.toml": "nonsense = 1\n"})
    workplace.work()
    (run,) = forge.check_runs(pull)
    assert (run.conclusion, run.title) == ("neutral", "The analysis could not be finished")
    assert "nonsense" in (run.summary or "")
