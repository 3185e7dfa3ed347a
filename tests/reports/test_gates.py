"""A gate passes or fails, and each condition says why."""

from __future__ import annotations

from analyzer.findings import Severity
from services.findings.model import SettledFinding, Settlement
from services.gates import GatePolicy, RuleMode, evaluate, retain
from services.reports.document import Gate, GateCondition
from tests.reports.samples import arity, check, failing, finding, target


def settled(verdict: str = "static_only", **changes: object) -> SettledFinding:
    return SettledFinding(arity(), Settlement(verdict, "because"), **changes)  # type: ignore[arg-type]


def condition(gate: Gate, name: str) -> GateCondition:
    return next(condition for condition in gate.conditions if condition.name == name)


def test_nothing_found_and_nothing_failing_passes() -> None:
    gate = evaluate([], [target()], GatePolicy())
    assert gate.passed
    assert [condition.name for condition in gate.conditions] == [
        "no check fails",
        "no new error",
        "no new warning",
        "analysis complete",
    ]
    assert condition(gate, "no check fails").explanation == "none of 1 fails, 1 passes"


def test_a_failing_check_fails_the_gate_and_is_named() -> None:
    gate = evaluate([], [target(checks=(failing(), check(check="compile_equivalence")))], GatePolicy())
    assert not gate.passed
    assert condition(gate, "no check fails").explanation == "1 of 2 fail: gradcheck on pkg.a:Square"


def test_a_gate_that_passes_on_nothing_says_so() -> None:
    nothing = condition(evaluate([], [], GatePolicy()), "no check fails")
    assert nothing.explanation.startswith("no check was run: there is no module")
    idle = condition(evaluate([], [target(checks=())], GatePolicy()), "no check fails")
    assert idle.explanation == "no check was run: of 1 target none was run"


def test_checks_without_a_verdict_pass_but_are_counted_aloud() -> None:
    results = tuple(check(check=verdict, verdict=verdict) for verdict in ("inconclusive", "error", "skipped"))
    gate = evaluate([], [target(checks=results)], GatePolicy())
    assert gate.passed
    explanation = condition(gate, "no check fails").explanation
    assert explanation == "none of 3 fails, 0 pass (1 inconclusive, 1 could not run, 1 skipped)"


def test_a_new_error_and_a_new_warning_fail_their_own_conditions() -> None:
    warning = SettledFinding(finding(), Settlement("not_exercised", ""))
    gate = evaluate([settled(), warning], [], GatePolicy())
    assert condition(gate, "no new error").explanation == "1 new: GP303 at pkg/a.py:13"
    assert condition(gate, "no new warning").explanation == "1 new: GP102 at pkg/a.py:18"
    assert not condition(gate, "no new error").passed
    assert not condition(gate, "no new warning").passed


def test_many_findings_are_named_by_the_first_three() -> None:
    gate = evaluate([settled()] * 5, [], GatePolicy())
    assert condition(gate, "no new error").explanation.endswith("and 2 more")


def test_a_note_never_fails_a_gate() -> None:
    note = SettledFinding(finding(severity=Severity.NOTE), Settlement("static_only", ""))
    assert evaluate([note], [], GatePolicy()).passed


def test_what_is_known_decided_or_refuted_does_not_count() -> None:
    silent = [
        settled(is_new=False),
        settled(triage="accepted"),
        settled(triage="false_positive"),
    ]
    gate = evaluate(silent, [], GatePolicy())
    assert gate.passed
    assert "3 more do not count" in condition(gate, "no new error").explanation


def test_what_was_searched_and_held_is_a_note_and_what_was_shown_is_an_error() -> None:
    held = evaluate([settled(verdict="not_reproduced")], [], GatePolicy())
    assert held.passed
    assert condition(held, "no new error").explanation == "no new error"
    warning = SettledFinding(finding(), Settlement("confirmed", "because"))
    shown = evaluate([warning], [], GatePolicy(no_new_warning=False))
    assert warning.finding.severity is Severity.WARNING
    assert not shown.passed


def test_a_regressed_finding_counts() -> None:
    assert not evaluate([settled(triage="regressed")], [], GatePolicy()).passed


def test_only_a_rule_in_block_mode_can_fail_a_gate() -> None:
    for mode, passes in ((RuleMode.MONITOR, True), (RuleMode.COMMENT, True), (RuleMode.BLOCK, False)):
        policy = GatePolicy(modes={"GP303": mode})
        assert evaluate([settled()], [], policy).passed is passes


def test_the_mode_of_a_rule_is_looked_up_by_id_then_name_then_beginning() -> None:
    policy = GatePolicy(
        modes={"GP": RuleMode.MONITOR, "GP3": RuleMode.COMMENT, "backward-arity": RuleMode.OFF, "GP101": RuleMode.BLOCK}
    )
    assert policy.mode("GP101", "unprotected-division") is RuleMode.BLOCK
    assert policy.mode("GP303", "backward-arity") is RuleMode.OFF
    assert policy.mode("GP307", "missing-mark-dirty") is RuleMode.COMMENT
    assert policy.mode("GP201", "x") is RuleMode.MONITOR
    assert GatePolicy().mode("GP101", "unprotected-division") is RuleMode.BLOCK


def test_a_rule_that_is_off_is_dropped() -> None:
    assert retain([finding(), arity()], GatePolicy(modes={"GP303": RuleMode.OFF})) == (finding(),)


def test_an_incomplete_analysis_fails_with_its_reason_unless_the_policy_allows_it() -> None:
    gate = evaluate([], [], GatePolicy(), status="partial", status_reason="2 jobs were lost")
    assert not gate.passed
    assert condition(gate, "analysis complete").explanation == "the analysis is partial: 2 jobs were lost"
    assert evaluate([], [], GatePolicy(complete=False), status="partial").passed


def test_a_gate_says_how_many_targets_a_spent_budget_left_out() -> None:
    left_out = target(harness=None, checks=(), not_run_reason="budget spent")
    gate = evaluate([], [target(), left_out, left_out], GatePolicy())
    assert gate.passed
    explanation = condition(gate, "analysis complete").explanation
    assert explanation == "as far as the budget went: 2 of 3 targets were not begun"


def test_a_condition_that_is_switched_off_is_not_in_the_gate() -> None:
    policy = GatePolicy(no_failing_check=False, no_new_error=False, no_new_warning=False)
    gate = evaluate([settled()], [target(checks=(failing(),))], policy)
    assert gate.passed
    assert [condition.name for condition in gate.conditions] == ["analysis complete"]
