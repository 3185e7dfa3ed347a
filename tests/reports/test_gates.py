"""A gate passes or fails, and each condition says why."""

from __future__ import annotations

import pytest

from analyzer.findings import Severity
from services.findings.model import SettledFinding, Settlement, TargetResult
from services.gates import GatePolicy, RuleMode, evaluate, retain
from services.gates.classes import BaseCheck, BaseTarget, Comparand, with_classes
from services.reports.document import Gate, GateCondition
from services.reports.formats import Rendering, report_format
from tests.reports.samples import arity, check, failing, finding, report_of, target


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


def test_where_the_base_came_to_nothing_no_finding_counts_as_new() -> None:
    warning = SettledFinding(finding(), Settlement("not_exercised", ""))
    findings = [settled(), warning]
    assert not evaluate(findings, [], GatePolicy()).passed
    gate = evaluate(findings, [], GatePolicy(), base_is_missing=True)
    assert gate.passed
    explanation = condition(gate, "no new error").explanation
    assert explanation == "nobody knows which of 1 are new: the base was not analysed to its end"
    assert condition(evaluate([], [], GatePolicy(), base_is_missing=True), "no new error").explanation == "no new error"


@pytest.mark.parametrize(("kind", "passed"), [("new", False), ("not_comparable", True)])
def test_what_a_check_shows_that_the_base_passed_is_new_whatever_became_of_the_base(kind: str, passed: bool) -> None:
    evidence = {"target": "pkg.a:Square", "check": "gradcheck", "device": "cpu"}
    shown = SettledFinding(arity(), Settlement("confirmed", "", evidence={"checks": [evidence]}))
    gate = evaluate([shown], [compared(kind)], GatePolicy(), base_is_missing=True)
    assert gate.passed is passed
    assert condition(gate, "no new error").passed is passed
    assert condition(gate, "no check fails").passed is passed


def compared(kind: str) -> TargetResult:
    """A target whose gradcheck fails, and is this, seen from the base."""
    return target(checks=(failing(baseline_class=kind), check(check="nan_gradient")))


def alone(verdict: str = "confirmed") -> SettledFinding:
    """The finding that a failing check is by itself."""
    evidence = {"checks": [{"target": "pkg.a:Square", "check": "gradcheck", "device": "cpu"}]}
    told = finding(rule="gradcheck", name="backward-raises", severity=Severity.ERROR)
    return SettledFinding(told, Settlement(verdict, "because", evidence))  # type: ignore[arg-type]


def test_where_there_is_a_base_only_a_new_failure_fails_the_gate() -> None:
    for kind, passes in (("new", False), ("already_failing", True), ("flaky", True), ("not_comparable", True)):
        gate = evaluate([alone()], [compared(kind)], GatePolicy())
        assert gate.passed is passes, kind


def test_the_condition_counts_the_failures_by_class() -> None:
    classes = ("new", "already_failing", "flaky", "flaky", "not_comparable")
    gate = evaluate([], [compared(kind) for kind in classes], GatePolicy())
    assert condition(gate, "no check fails").explanation == (
        "1 of 10 fail and are new: gradcheck on pkg.a:Square (1 already failing on the base, 2 flaky, 1 not comparable)"
    )
    gate = evaluate([], [compared(kind) for kind in classes[1:]], GatePolicy())
    assert condition(gate, "no check fails").explanation == (
        "none of 8 fails because of the change (1 already failing on the base, 2 flaky, 1 not comparable)"
    )


def test_a_finding_that_rests_on_an_unstable_failure_counts_as_if_nothing_had_been_run() -> None:
    evidence = {"target": "pkg.a:Square", "check": "gradcheck", "device": "cpu"}
    note = SettledFinding(finding(severity=Severity.NOTE), Settlement("confirmed", "because", evidence))
    warning = SettledFinding(finding(), Settlement("confirmed", "because", evidence))
    assert not evaluate([note], [compared("new")], GatePolicy(no_failing_check=False)).passed
    assert evaluate([note], [compared("flaky")], GatePolicy(no_failing_check=False)).passed
    # What reading found is new all the same: it is as grave as its rule is.
    gate = evaluate([warning], [compared("flaky")], GatePolicy(no_failing_check=False))
    assert condition(gate, "no new error").passed
    assert not condition(gate, "no new warning").passed


def known(verdict: str, cause: str | None = None, **changes: object) -> Comparand:
    """A base whose gradcheck of `Square` said this."""
    harness = target().harness
    assert harness is not None
    values: dict[str, object] = {
        "torch": "2.13.0",
        "devices": {"cpu"},
        "targets": {"pkg.a:Square": BaseTarget(harness.constructor, tuple(harness.inputs), has_harness=True)},
        "checks": {("pkg.a:Square", "gradcheck", "cpu"): BaseCheck(verdict, cause)},
    }
    return Comparand(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base", "kind", "reason"),
    [
        (known("pass"), "new", "passes on the base"),
        (known("fail", "backward_raises"), "already_failing", "fails on the base too"),
        (known("fail", "wrong_gradient"), "new", "for another reason (wrong gradient)"),
        (known("inconclusive"), "flaky", "came to no verdict"),
        (known("skipped"), "not_comparable", "was skipped"),
        (known("error"), "not_comparable", "could not run"),
        (known("pass", torch="2.12.0"), "not_comparable", "another torch (2.12.0)"),
        (known("fail", "backward_raises", torch="2.12.0"), "already_failing", "fails on the base too"),
        (known("pass", targets={"pkg.a:Square": BaseTarget("Square(7)", (), True)}), "not_comparable", "another way"),
        (known("pass", checks={}, targets={}), "new", "no such target"),
        (known("pass", checks={}, ran=False), "not_comparable", "not run to its end"),
        (known("pass", checks={}, devices={"cuda:0"}), "not_comparable", "not run on cpu"),
        (known("pass", checks={}), "not_comparable", "did not run this check"),
        (
            known("pass", checks={}, targets={"pkg.a:Square": BaseTarget(not_run_reason="needs data")}),
            "not_comparable",
            "not run (needs data)",
        ),
        (
            known("pass", earlier={("pkg.a:Square", "gradcheck", "cpu"): frozenset({"pass", "fail"})}),
            "flaky",
            "the same code passed in another run",
        ),
        (
            known("fail", earlier={("pkg.a:Square", "gradcheck", "cpu"): frozenset({"inconclusive"})}),
            "flaky",
            "came to no verdict in another run",
        ),
        (known("pass", earlier={("pkg.a:Square", "gradcheck", "cpu"): frozenset({"fail"})}), "new", "passes"),
    ],
)
def test_what_a_failing_check_is_seen_from_the_base(base: Comparand, kind: str, reason: str) -> None:
    (found,) = with_classes([target(checks=(failing(), check(check="nan_gradient")))], base, torch="2.13.0")
    assert (found.checks[0].baseline_class, found.checks[1].baseline_class) == (kind, None)
    assert reason in (found.checks[0].baseline_reason or "")


def test_reports_say_what_a_failing_check_is_seen_from_the_base() -> None:
    told = failing(baseline_class="already_failing", baseline_reason="it fails on the base too")
    report = report_of(targets=(target(checks=(told,)),))
    words = "already failing on the base (it fails on the base too)"
    assert words in report_format("text").render(report, Rendering())
    assert "Seen from the base: already failing on the base" in report_format("markdown").render(report, Rendering())
    junit = report_format("junit").render(report, Rendering())
    assert f"fails: {words}" in junit
    assert "<failure" not in junit
    new = report_of(targets=(target(checks=(failing(baseline_class="new"),)),))
    assert "<failure" in report_format("junit").render(new, Rendering())
