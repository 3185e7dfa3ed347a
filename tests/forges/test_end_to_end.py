"""A pull request from its opening to its end, over real HTTP: what is written at the forge, and how often.

The counts are those of the table in `docs/bot.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.settings import Settings
from tests.forges.workplace import (
    CLEAN,
    FIXED_NORM,
    FIXED_SOFTPLUS,
    LOGSIGMOID,
    NORM,
    SOFTPLUS,
    Workplace,
    module,
    since,
)
from tools.fake_forge.world import PullRequest

OPENED = {"check_run.create": 1, "check_run.update": 2, "review.create": 1, "comment.create": 1}
# The fetch begins before there is a check, which is then made as running.
JUST_CHECKED = {"check_run.create": 1, "check_run.update": 1}
FAULTY = {"model.py": module(LOGSIGMOID, NORM, SOFTPLUS)}
FIXED = {"model.py": module(LOGSIGMOID, FIXED_NORM, FIXED_SOFTPLUS)}


@pytest.fixture
def workplace(embedded_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(embedded_settings, tmp_path) as opened:
        yield opened
    assert opened.forge.violations == []


def opened(workplace: Workplace, files: dict[str, str] | None = None, **how: object) -> PullRequest:
    """A pull request against a repository with one known fault; nothing is done about it yet."""
    repository = workplace.forge.create_repository("acme/models", {"model.py": module(LOGSIGMOID)})
    return workplace.forge.open_pull_request(repository, files or FAULTY, by="ada", **how)  # type: ignore[arg-type]


def published(workplace: Workplace, files: dict[str, str] | None = None, **bot: object) -> PullRequest:
    """The same, analysed and told."""
    pull = opened(workplace, files)
    workplace.control()
    if bot:
        workplace.configure(**bot)
    workplace.work()
    return pull


def suggestions(workplace: Workplace, pull: PullRequest) -> list[str]:
    bodies = [thread.comments[0].body for thread in workplace.forge.threads(pull)]
    return [body.partition("```suggestion\n")[2].partition("\n```")[0].strip() for body in bodies]


class TestAPullRequestFromItsOpeningToItsEnd:
    @pytest.fixture
    def workplace(self, service_settings: Settings, tmp_path: Path) -> Iterator[Workplace]:
        with Workplace(service_settings, tmp_path) as opened:
            yield opened
        assert opened.forge.violations == []

    def test_it_is_told_once_and_then_only_what_changes(self, workplace: Workplace) -> None:
        forge = workplace.forge
        pull = opened(workplace)
        workplace.work()

        (run,) = forge.check_runs(pull)
        assert run.history == ["queued", "in_progress", "completed"]
        assert (run.conclusion, run.title) == ("neutral", "2 new findings, 2 shown by execution")
        assert [note["title"] for note in run.annotations] == [
            "GP102 hand-normalisation", "GP110 overflowing-exponentials",
        ]  # fmt: skip
        assert suggestions(workplace, pull) == [
            "return x / x.norm().clamp(min=1e-12)", "return torch.nn.functional.softplus(x)",
        ]  # fmt: skip
        (comment,) = forge.comments(pull)
        assert comment.author.login == forge.bot
        assert "GP109" not in comment.body  # the fault that was there before
        assert dict(forge.writes()) == OPENED
        assert workplace.row(pull).silence == {}
        assert [(row.purpose, row.status) for row in workplace.analyses()] == [
            ("base", "finished"), ("proposal", "finished"),
        ]  # fmt: skip

        before = forge.writes()
        forge.push(pull, FIXED)
        workplace.work()
        assert since(forge, before) == JUST_CHECKED | {"comment.update": 1, "thread.resolve": 2}
        (run,) = forge.check_runs(pull)
        assert (run.conclusion, run.title) == ("success", "No new findings")
        assert "Nothing new to look at" in forge.comments(pull)[0].body
        assert len(forge.comments(pull)) == 1
        assert all(thread.resolved_by is not None for thread in forge.threads(pull))
        assert {row.state for row in workplace.threads()} == {"resolved"}

        before = forge.writes()
        forge.push(pull, {})  # a commit that changes nothing
        workplace.work()
        # GitHub asks for a check of each commit; nothing else is written.
        assert since(forge, before) == JUST_CHECKED
        before = forge.writes()
        forge.redeliver(forge.deliveries[-1])
        workplace.work()
        assert since(forge, before) == {}

        before = forge.writes()
        forge.merge(pull)
        workplace.work()
        assert since(forge, before) == {}
        assert workplace.row(pull).state == "merged"
        assert workplace.analyses()[-1].purpose == "main"


def test_forged_replayed_and_odd_signatures_reach_nothing(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace)
    payload = next(each.body for each in forge.deliveries if each.action == "opened")
    before, tasks = forge.writes(), len(workplace.tasks())
    forged = [
        forge.send("pull_request", payload, secret="guessed"),
        forge.send("pull_request", payload, signature=""),
        forge.send("pull_request", payload, signature="sha256=" + "0" * 64),
        forge.send("pull_request", payload, signature="sha256=\N{GREEK SMALL LETTER ALPHA}".encode()),
        forge.send("pull_request", payload, signature="sha1=" + "0" * 40),
    ]
    assert [delivery.status for delivery in forged] == [401] * 5
    first = next(each for each in forge.deliveries if each.action == "opened")
    replayed = forge.send("pull_request", payload, guid=first.guid)
    assert (replayed.status, "duplicate" in replayed.response) == (202, True)
    # Rightly signed, with a number of its own: it says where to look, and there is nothing new there.
    anew = forge.send("pull_request", payload)
    assert (anew.status, "queued" in anew.response) == (202, True)
    workplace.work()
    assert since(forge, before) == {}
    assert len(workplace.tasks()) == tasks + 1
    assert workplace.row(pull).pushes == 0


def test_nothing_is_written_for_a_head_that_was_replaced_while_it_was_analysed(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    workplace.control()  # fetched, and a check says that it runs
    stale = pull.head_sha
    before = forge.writes()
    forge.force_push(pull, {"model.py": module(LOGSIGMOID, NORM)})
    workplace.work()
    assert since(forge, before) == {**JUST_CHECKED, "review.create": 1, "comment.create": 1}
    assert {run.head_sha for run in forge.check_runs() if run.status == "completed"} == {pull.head_sha}
    assert stale not in forge.comments(pull)[0].body
    assert [(row.source_ref == stale, row.status, row.reason) for row in workplace.analyses()[1:]] == [
        (True, "cancelled", "superseded by a newer push"),
        (False, "finished", None),
    ]


def test_a_push_that_nobody_told_us_of_yet_is_seen_before_a_write(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace)
    workplace.control()
    workplace.run()
    door, forge.webhook_url = forge.webhook_url, None
    stale = pull.head_sha
    forge.force_push(pull, FIXED)  # its webhook is late
    before = forge.writes()
    workplace.control()
    assert since(forge, before) == {}
    assert [task for task in workplace.tasks() if "is no longer the head" in (task.reason or "")] != []
    workplace.work()  # what was seen is followed, whether its webhook comes or not
    assert since(forge, before) == JUST_CHECKED
    assert [run.conclusion for run in forge.check_runs(pull)] == ["success"]
    assert {run.head_sha for run in forge.check_runs() if run.status == "completed"} == {pull.head_sha} != {stale}
    assert forge.comments(pull) == []
    assert workplace.row(pull).silence == {"summary": "there is nothing new to say"}
    analyses = len(workplace.analyses())
    forge.webhook_url = door
    forge.redeliver(next(each for each in reversed(forge.deliveries) if each.action == "synchronize"))
    workplace.work()
    assert (since(forge, before), len(workplace.analyses())) == (JUST_CHECKED, analyses)


def test_a_fork_is_told_like_everybody(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = opened(workplace, fork=True)
    workplace.work()
    assert dict(forge.writes()) == OPENED
    assert workplace.row(pull).is_fork
    assert len(suggestions(workplace, pull)) == 2


def test_a_clean_change_is_passed_in_silence(workplace: Workplace) -> None:
    forge = workplace.forge
    pull = published(workplace, {"model.py": module(LOGSIGMOID, CLEAN)})
    assert dict(forge.writes()) == {"check_run.create": 1, "check_run.update": 2}
    assert forge.check_runs(pull)[0].conclusion == "success"
    assert workplace.row(pull).silence == {"summary": "there is nothing new to say"}


def test_what_is_sent_again_is_done_once(workplace: Workplace) -> None:
    forge = workplace.forge
    published(workplace)
    before, analyses = forge.writes(), len(workplace.analyses())
    told = list(forge.deliveries)
    for delivery in told:
        assert forge.redeliver(delivery).response == delivery.response.replace("queued", "duplicate")
    workplace.work()
    assert since(forge, before) == {}
    assert len(workplace.analyses()) == analyses
