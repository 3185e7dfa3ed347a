"""Analyses that end while people decide: nobody waits for each other for good, and nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from services.accounts.access import SYSTEM
from services.triage.decisions import Change, Decision
from services.triage.service import TriageService
from tests.triage.line import Line

NAMES = [f"fingerprint-{number}" for number in range(30)]


def test_decisions_and_settlements_do_not_wait_for_each_other_for_good(line: Line) -> None:
    line.analysed(*range(30))
    triage = TriageService(line.bench.database)

    def decide() -> int:
        changed = 0
        for number in range(12):
            decision = Decision("accept", "measured") if number % 2 else Decision("reopen")
            done = triage.change_many(SYSTEM, "vision", Change(decision), fingerprints=NAMES)
            changed += len(done.changed)
        return changed

    def analyse() -> str:
        last = ""
        for _ in range(4):
            last = line.analysed(*range(30))
        return last

    with ThreadPoolExecutor(2) as pool:
        decided, analysed = pool.submit(decide), pool.submit(analyse)
        assert decided.result(60) == 11 * 30
        newest = analysed.result(60)
    # The last word of the decisions is that of the project and of its newest analysis.
    assert {state for state, _ in line.states().values()} == {"accepted"}
    assert set(line.triage(newest).values()) == {"accepted"}
    assert len(line.kinds(7)) == 11
