"""What a team's pages are made of, without a browser: filters in addresses, settings out of forms, notices, CSV."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import Request, Response

from api.pages import notices
from api.pages.notices import Notice
from api.pages.team.audit_file import csv_lines
from api.pages.team.questions import Question, choices
from api.pages.team.settings_forms import (
    gate_value,
    mode_of,
    with_bot,
    with_gate,
    with_known_rules,
    with_modes,
)
from api.pages.team.sparklines import sparkline
from services.accounts.access import SYSTEM
from services.accounts.audit import AuditService, note
from services.accounts.audit_repository import AuditFilter
from services.database import Database
from services.gates.policy import RuleMode
from services.projects.settings import BotSettings, GateSettings, InvalidProjectSettingsError, ProjectSettings
from services.settings import Settings
from services.triage.model import NOBODY, Facets, NamedCount

# ---------------------------------------------------------------------------------------------- filters


def test_nothing_said_asks_for_what_is_to_be_decided() -> None:
    assert Question().filter().states == ("open", "regressed")
    assert Question(state="any").filter().states == ()
    assert Question(state="fixed").filter().states == ("fixed",)
    assert Question(where="main").filter().on_main is True
    assert Question(where="proposals").filter().on_main is False
    assert Question().filter().on_main is None


def test_an_address_says_what_is_asked_and_nothing_else() -> None:
    question = Question(state="any", rule="GP1", text="a & b", path="pkg/ä.py")
    address = question.address("/inbox", before="0.abc")
    assert parse_qs(urlsplit(address).query) == {
        "state": ["any"], "rule": ["GP1"], "path": ["pkg/ä.py"], "text": ["a & b"], "before": ["0.abc"],
    }  # fmt: skip
    assert Question().address("/inbox") == "/inbox"
    assert question.address("/inbox", state="", rule="", path="", text="") == "/inbox"


def test_filters_offer_what_there_is_with_its_number_and_keep_what_is_chosen() -> None:
    facets = Facets(
        total=3,
        states={"open": 2, "regressed": 1, "fixed": 1200},
        severities={"error": 3},
        rules=(NamedCount("GP101", "unprotected-division", 3),),
        assignees=(NamedCount(NOBODY, "", 2), NamedCount("u1", "Ada", 1)),
    )
    offered = choices(Question(severity="note", rule="GP9"), facets)
    assert offered.states == (
        ("", "to be decided (3)"), ("open", "open (2)"), ("regressed", "regressed (1)"), ("fixed", "fixed (1,200)"),
        ("any", "any (1,203)"),
    )  # fmt: skip
    assert offered.severities == (("", "any"), ("error", "error (3)"), ("note", "note (0)"))
    assert offered.rules == (("", "any"), ("GP101", "GP101 unprotected-division (3)"), ("GP9", "GP9 (0)"))
    assert offered.assignees == (("", "anybody"), (NOBODY, "nobody (2)"), ("u1", "Ada (1)"))


# ---------------------------------------------------------------------------------------------- settings


def test_a_gate_form_sets_each_condition_or_leaves_it_to_the_repository() -> None:
    before = ProjectSettings(gate=GateSettings(complete=True), modes={"GP101": RuleMode.OFF})
    after = with_gate(before, {"no_failing_check": "yes", "no_new_error": "no", "csrf": "x"})
    assert after.gate == GateSettings(no_failing_check=True, no_new_error=False)
    assert after.modes == before.modes
    assert [gate_value(after.gate, name) for name in ("no_failing_check", "no_new_error", "complete")] == [
        "yes", "no", "",
    ]  # fmt: skip
    with pytest.raises(InvalidProjectSettingsError):
        with_gate(before, {"complete": "perhaps"})


def test_a_bot_form_switches_off_what_is_not_ticked() -> None:
    after = with_bot(ProjectSettings(), {"enabled": "true", "inline": "true", "inline_most": "5", "summary": "never"})
    assert after.bot == BotSettings(
        enabled=True, blocks=False, summary="never", inline=True, inline_most=5, suggestions=False, annotations=False
    )
    with pytest.raises(InvalidProjectSettingsError) as caught:
        with_bot(ProjectSettings(), {"inline_most": "many"})
    assert caught.value.details["key"] == "bot.inline_most"


def test_modes_are_set_and_taken_back_one_by_one() -> None:
    before = ProjectSettings(modes={"GP1": RuleMode.MONITOR, "GP203": RuleMode.OFF, "detached-loss": RuleMode.COMMENT})
    after = with_modes(before, {"mode-GP101": "block", "mode-GP203": "", "other": "x"})
    assert after.modes == {"GP1": "monitor", "GP101": "block", "detached-loss": "comment"}
    assert mode_of(after, "GP203", "detached-loss") == "comment"
    assert mode_of(after, "GP102", "x") is None
    with pytest.raises(InvalidProjectSettingsError):
        with_modes(before, {"mode-GP101": "shout"})


def test_rules_are_taken_note_of_and_stay_known() -> None:
    assert with_known_rules(ProjectSettings(known_rules=("GP2",)), ("GP1", "GP2")).known_rules == ("GP1", "GP2")


# ---------------------------------------------------------------------------------------------- notices


def request_with(cookie: str) -> Request:
    """A request that brings this cookie."""
    return Request({"type": "http", "headers": [(b"cookie", f"{notices.COOKIE}={cookie}".encode())]})


def left(settings: Settings, notice: Notice) -> str:
    """The cookie that a notice leaves."""
    response = Response()
    notices.leave(response, settings, notice)
    return response.headers["set-cookie"].partition(";")[0].partition("=")[2]


def test_a_notice_is_told_to_whom_it_was_left(make_settings: Any) -> None:
    settings = make_settings()
    notice = Notice(text="2 findings accepted.", undo=("p:f1", "p:f2"))
    cookie = left(settings, notice)
    assert notices.waiting(request_with(cookie), settings) == notice
    assert notices.waiting(Request({"type": "http", "headers": []}), settings) is None
    for forged in (cookie[:-1], "x" + cookie, cookie.replace(".", "."[:0]), "", ".", "ä"):
        assert notices.waiting(request_with(forged), settings) is None
    other = make_settings(secret_key="another secret for tests, 32 characters and more")
    assert notices.waiting(request_with(cookie), other) is None


def test_a_notice_fits_into_a_cookie_whatever_it_would_take_to_undo_it(make_settings: Any) -> None:
    settings = make_settings()
    page = tuple(f"{'p' * 27}:{number:040x}" for number in range(50))
    cookie = left(settings, Notice(text="50 findings accepted.", undo=page))
    told = notices.waiting(request_with(cookie), settings)
    assert told is not None
    assert told.undo == page
    many = tuple(f"{number * 7919:027d}:{number * 104729 + 10**39:040x}" for number in range(1000))
    cookie = left(settings, Notice(text="1,000 findings accepted.", undo=many))
    assert len(cookie) < 3_700
    assert notices.waiting(request_with(cookie), settings) == Notice(text="1,000 findings accepted.")


# ---------------------------------------------------------------------------------------------- lines and files


def test_a_sparkline_says_in_words_what_it_draws() -> None:
    line = sparkline([4, 2, 0], "open findings")
    assert line is not None
    assert line.points == "0.0,2.0 60.0,14.0 120.0,26.0"
    assert line.text == "open findings, the last 3 analyses: from 4 to 0"
    assert sparkline([3], "open findings") is None
    flat = sparkline([0, 0], "open findings")
    assert flat is not None
    assert flat.points == "0.0,26.0 120.0,26.0"


def test_the_audit_log_as_a_file_is_whole_and_holds_no_formula(database: Database) -> None:
    with database.unit_of_work() as uow:
        for number in range(250):
            note(uow.session, SYSTEM, "project.create", "project", f"p{number}", details={"name": '=cmd|"/c calc"!A1'})
        note(uow.session, SYSTEM, "member.add", "user", "=1+1")
    text = "".join(csv_lines(AuditService(database), SYSTEM, AuditFilter(action="project")))
    lines = list(csv.reader(io.StringIO(text)))
    assert lines[0] == ["at", "actor kind", "actor", "action", "object kind", "object", "project", "details"]
    assert [line[5] for line in lines[1:]] == [f"p{number}" for number in reversed(range(250))]
    (other,) = list(
        csv.reader(io.StringIO("".join(csv_lines(AuditService(database), SYSTEM, AuditFilter(action="member")))))
    )[1:]
    assert other[5] == "'=1+1"
