"""What a search at the finding's own place says becomes the verdict, and the verdict the severity."""

from __future__ import annotations

from typing import Any

import pytest

from analyzer.findings import Severity
from services.findings.model import SettledFinding
from services.findings.settle import settle
from tests.reports.samples import check, finding, norm


def searched(
    outcome: str, *, severity: Severity = Severity.WARNING, verdict: str = "pass", **record: Any
) -> SettledFinding:
    suspected = finding(rule="GP202", severity=severity, settled_by=("gradcheck", "finding_search"))
    said = {"fingerprint": suspected.fingerprint, "outcome": outcome, "text": "moving it changes the output", **record}
    run = check(check="finding_search", verdict=verdict, evidence={"hypotheses": [said]})
    (settled,) = settle([suspected], [norm(checks=(run,))])
    return settled


def test_what_was_shown_is_an_error_and_says_what_showed_it() -> None:
    settled = searched("confirmed", verdict="fail")
    assert (settled.settlement.verdict, settled.severity) == ("confirmed", Severity.ERROR)
    assert "confirmed at its place: moving it changes the output." in settled.settlement.reason


def test_what_was_searched_and_held_is_a_note_and_says_what_was_tried() -> None:
    settled = searched("not_reproduced", severity=Severity.ERROR)
    assert (settled.settlement.verdict, settled.severity) == ("not_reproduced", Severity.NOTE)
    assert "searched at its place, and held: moving it changes the output." in settled.settlement.reason


@pytest.mark.parametrize("severity", list(Severity))
def test_what_no_call_came_to_keeps_the_severity_of_its_rule(severity: Severity) -> None:
    settled = searched("not_reached", severity=severity)
    assert (settled.settlement.verdict, settled.severity) == ("not_exercised", severity)


def test_a_note_that_is_so_stays_a_note() -> None:
    settled = searched("confirmed", severity=Severity.NOTE)
    assert (settled.settlement.verdict, settled.severity) == ("confirmed", Severity.NOTE)


def test_what_came_of_the_fix_is_in_the_evidence_and_nothing_of_another_shape() -> None:
    outcome = {"verified": True, "reason": "it is clean", "more": "x"}
    assert searched("confirmed", verdict="fail", fix=outcome).settlement.evidence["fix"] == {
        "verified": True,
        "reason": "it is clean",
    }
    for nonsense in ("yes", {"verified": "yes"}, [True]):
        assert "fix" not in searched("confirmed", verdict="fail", fix=nonsense).settlement.evidence
