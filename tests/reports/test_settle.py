"""Findings are confirmed or refuted by what ran, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from analyzer import registry
from analyzer.findings import Region, TargetKind
from services.findings.aims import AIMS
from services.findings.settle import settle
from services.reports.document import CheckInfo, Diagnosis
from tests.reports.samples import arity, check, failing, finding, norm, target


def test_a_finding_that_nothing_can_execute_is_static_only() -> None:
    (settled,) = settle([finding(settled_by=())], [norm(checks=(failing(),))])
    assert settled.settlement.verdict == "static_only"


def test_a_check_that_fails_at_the_line_confirms_the_finding_and_is_named_as_evidence() -> None:
    (settled,) = settle([arity()], [target(checks=(failing(path="pkg/a.py", line=13),))])
    assert settled.settlement.verdict == "confirmed"
    assert "gradcheck on pkg.a:Square (cpu) failed at line 13" in settled.settlement.reason
    assert settled.settlement.evidence["target"] == "pkg.a:Square"
    assert settled.settlement.evidence["check"] == "gradcheck"
    assert settled.settlement.evidence["numbers"] == {"ratio": 0.5}


def test_a_check_of_another_target_that_points_at_the_line_confirms_a_finding_outside_every_target() -> None:
    helper = arity(region=finding().region, symbol="pkg.a.helper")
    (settled,) = settle([helper], [target(checks=(failing(path="pkg/a.py", line=17),))])
    assert settled.settlement.verdict == "confirmed"


def test_one_line_off_still_points_at_the_finding_and_two_do_not() -> None:
    inner = arity(region=arity().region)
    near = settle([inner], [norm(checks=(failing(path="pkg/a.py", line=14),))])
    far = settle([inner], [norm(checks=(failing(path="pkg/a.py", line=15),))])
    assert near[0].settlement.verdict == "confirmed"
    assert far[0].settlement.verdict == "not_exercised"


def test_a_failure_without_a_place_confirms_what_lies_in_the_class_around_it() -> None:
    (settled,) = settle([arity()], [target(checks=(failing(),))])
    assert settled.settlement.verdict == "confirmed"
    assert "around this line" in settled.settlement.reason


def test_a_failure_of_a_check_that_the_rule_does_not_name_confirms_nothing() -> None:
    (settled,) = settle([arity()], [target(checks=(failing(check="compile_equivalence"),))])
    assert settled.settlement.verdict == "not_exercised"
    assert "only compile_equivalence ran" in settled.settlement.reason


def test_a_failure_at_the_place_of_another_finding_leaves_this_one_open() -> None:
    other = arity(fingerprint="b" * 32, region=arity().region.__class__("pkg/a.py", 8, 9, 8, 20))
    first, second = settle([other, arity()], [target(checks=(failing(path="pkg/a.py", line=8),))])
    assert first.settlement.verdict == "confirmed"
    assert second.settlement.verdict == "not_exercised"
    assert "another place (pkg/a.py, line 8)" in second.settlement.reason


def test_a_failure_whose_cause_the_rule_does_not_lead_to_leaves_the_finding_open() -> None:
    scaled = Diagnosis(cause="scaled_gradient", text="half the derivative")
    for place in ({}, {"path": "pkg/a.py", "line": 13}):
        (wrong,) = settle([arity()], [target(checks=(failing(diagnosis=scaled, **place),))])
        assert wrong.settlement.verdict == "not_exercised"
        assert "another reason (scaled gradient)" in wrong.settlement.reason
    for rule, cause in (("GP401", "wrong_coordinates"), ("GP404", "backward_raises"), ("GP999", "anything")):
        diagnosis = Diagnosis(cause=cause, text="…")
        (right,) = settle([arity(rule=rule)], [target(checks=(failing(diagnosis=diagnosis),))])
        assert right.settlement.verdict == "confirmed"


def test_gradcheck_that_holds_on_an_autograd_function_refutes_a_doubt_about_its_backward() -> None:
    (settled,) = settle([arity()], [target()])
    assert settled.settlement.verdict == "not_reproduced"
    assert "it held: 1 output against 1 input in float64." in settled.settlement.reason


def test_gradcheck_that_could_hold_with_the_fault_does_not_refute_it() -> None:
    (settled,) = settle([finding(settled_by=("gradcheck",))], [norm()])
    assert settled.settlement.verdict == "not_exercised"
    assert "it can pass with what this rule warns of" in settled.settlement.reason


@pytest.mark.parametrize("rule", ["GP302", "GP307"])
def test_gradcheck_does_not_refute_a_doubt_about_what_happens_to_an_input_afterwards(rule: str) -> None:
    (settled,) = settle([arity(rule=rule)], [target()])
    assert settled.settlement.verdict == "not_exercised"
    assert "it can pass with what this rule warns of" in settled.settlement.reason


def tried(**changes: Any) -> CheckInfo:
    """A passing gradcheck that went through 40 situations and executed all of backward."""
    return check(evidence={"situations": 40} | changes)


def test_gradcheck_that_tried_everything_refutes_a_doubt_about_a_line_of_backward_that_it_came_by() -> None:
    (settled,) = settle([arity(rule="GP306")], [target(checks=(tried(),))])
    assert settled.settlement.verdict == "not_reproduced"
    (elsewhere,) = settle([arity(rule="GP306")], [target(checks=(tried(unexecuted_lines=[12]),))])
    assert elsewhere.settlement.verdict == "not_reproduced"


@pytest.mark.parametrize(
    "passing",
    [
        tried(unexecuted_lines=[13]),
        tried(situations=0),
        tried(situations="all"),
        tried(stopped="the time limit was near"),
        check(),
    ],
)
def test_a_pass_that_did_not_come_by_the_line_or_did_not_try_everything_refutes_nothing(passing: CheckInfo) -> None:
    (settled,) = settle([arity(rule="GP306")], [target(checks=(passing,))])
    assert settled.settlement.verdict == "not_exercised"


def test_a_pass_says_nothing_of_lines_whose_execution_nobody_watched() -> None:
    forward = arity(rule="GP314", symbol="pkg.a.Square.forward")
    (settled,) = settle([forward], [target(checks=(tried(),))])
    assert settled.settlement.verdict == "not_exercised"
    (of_a_module,) = settle([arity(rule="GP306")], [target(kind=TargetKind.MODULE, checks=(tried(),))])
    assert of_a_module.settlement.verdict == "not_exercised"


def test_a_pass_that_never_came_to_the_line_says_so() -> None:
    (settled,) = settle([arity(rule="GP306")], [target(checks=(tried(unexecuted_lines=[13]),))])
    assert settled.settlement.reason == (
        "gradcheck passed on pkg.a:Square, but nothing that it tried came to this line."
    )


@pytest.mark.parametrize(
    ("identifier", "name", "cause"),
    [
        ("GP302", "gradcheck", "stale_saved_value"),
        ("GP306", "gradcheck", "grad_output_mutated"),
        ("GP307", "gradcheck", "input_mutated"),
        ("GP309", "gradcheck", "unused_output"),
        ("GP311", "gradgradcheck", "wrong_second_order"),
        ("GP314", "gradcheck", "state_outside_ctx"),
        ("GP315", "gradcheck", "random_backward"),
        ("GP317", "gradcheck", "grad_output_layout"),
        ("GP321", "gradgradcheck", "wrong_second_order"),
        ("GP324", "gradcheck", "ignores_grad_output"),
        ("GP305", "gradcheck", "swapped_gradients"),
        ("GP333", "gradcheck", "wrong_formula"),
    ],
)
def test_a_finding_is_confirmed_by_the_cause_that_its_fault_leads_to(identifier: str, name: str, cause: str) -> None:
    suspected = arity(rule=identifier, settled_by=(name,))
    for verdict, said in (("confirmed", cause), ("not_exercised", "forward_mode")):
        failed = failing(check=name, diagnosis=Diagnosis(cause=said, text="…"), path="pkg/a.py", line=13)
        (settled,) = settle([suspected], [target(checks=(failed,))])
        assert settled.settlement.verdict == verdict


def test_every_rule_that_a_gradient_check_settles_says_what_its_fault_looks_like() -> None:
    gradient_checks = {"gradcheck", "gradgradcheck", "nan_gradient"}
    without = {rule.id for rule in registry.all_rules() if gradient_checks & set(rule.settled_by)} - set(AIMS)
    assert without == set()


def test_each_cause_that_a_rule_leads_to_is_a_word_that_checks_say() -> None:
    assert all(len(cause) > 5 for aim in AIMS.values() for cause in aim.causes)


def test_what_refutes_a_rule_is_a_check_that_the_rule_names() -> None:
    for identifier, aim in AIMS.items():
        named = registry.rule(identifier)
        assert named is not None
        assert {*aim.refuted_by, *aim.searched_by} <= {*named.settled_by, *aim.also}


def test_one_failing_device_outweighs_a_passing_one() -> None:
    (settled,) = settle([arity()], [target(checks=(check(), failing(device="cuda")))])
    assert settled.settlement.verdict == "confirmed"


def test_what_was_not_exercised_says_why() -> None:
    cases = {
        "No target encloses": [target()],
        "pkg.a:Norm could not be run (missing dependency): No module named 'einops'.": [
            norm(not_run_reason="missing dependency", not_run_detail="No module named 'einops'", checks=())
        ],
        "nan_gradient on pkg.a:Norm was skipped: no singular input.": [
            norm(checks=(check(check="nan_gradient", verdict="skipped", summary="no singular input"),))
        ],
        "nan_gradient on pkg.a:Norm could not run: boom!": [
            norm(checks=(check(check="nan_gradient", verdict="error", summary="boom!"),))
        ],
        "nan_gradient on pkg.a:Norm was inconclusive: two runs differ.": [
            norm(checks=(check(check="nan_gradient", verdict="inconclusive", summary="two runs differ"),))
        ],
    }
    for reason, targets in cases.items():
        (settled,) = settle([finding()], targets)
        assert settled.settlement.verdict == "not_exercised"
        assert reason in settled.settlement.reason
    (ahead,) = settle([finding(settled_by=("of_tomorrow",))], [norm()])
    assert ahead.settlement.reason == "only of_tomorrow would settle this, a check that this version does not have."


def test_a_check_that_did_not_run_is_named_as_what_would_settle_it() -> None:
    (idle,) = settle([arity()], [target(checks=())])
    assert idle.settlement.reason == "gradcheck would settle this; no check ran on pkg.a:Square."
    (compared,) = settle([arity()], [target(checks=(check(check="compile_equivalence", verdict="fail"),))])
    assert compared.settlement.reason.startswith("gradcheck would settle this; only compile_equivalence ran on ")


def test_the_innermost_target_speaks_first() -> None:
    outer = target("pkg.a:Outer", line=1, end_line=18, checks=(), not_run_reason="abstract")
    inner = norm(checks=(), not_run_reason="inputs unsolved")
    (settled,) = settle([finding()], [outer, inner])
    assert "pkg.a:Norm" in settled.settlement.reason


def test_what_the_base_knows_is_not_new_and_a_decision_is_kept() -> None:
    first, second = settle(
        [finding(), arity()],
        [],
        known=frozenset({finding().fingerprint}),
        triage={arity().fingerprint: "accepted"},
    )
    assert (first.is_new, first.triage) == (False, "open")
    assert (second.is_new, second.triage) == (True, "accepted")


def test_a_gradient_that_is_not_finite_confirms_the_one_finding_that_warned_of_it() -> None:
    singular = failing(diagnosis=Diagnosis(cause="nan_gradient", text="the gradient for x isn't finite"))
    (alone,) = settle([finding()], [norm(checks=(singular,))])
    assert alone.settlement.verdict == "confirmed"
    second = finding(fingerprint="c" * 32, rule="GP103", region=Region("pkg/a.py", 17, 9, 17, 12))
    both = settle([finding(), second], [norm(checks=(singular,))])
    assert [settled.settlement.verdict for settled in both] == ["not_exercised", "not_exercised"]
    assert "1 other finding there can explain it as well" in both[0].settlement.reason
    other = failing(diagnosis=Diagnosis(cause="wrong_sign", text="the gradient for x has the wrong sign"))
    (unmoved,) = settle([finding()], [norm(checks=(other,))])
    assert unmoved.settlement.reason == "nan_gradient would settle this; only gradcheck ran on pkg.a:Norm."


def test_of_two_findings_that_could_raise_the_one_at_the_line_is_confirmed() -> None:
    other = arity(fingerprint="b" * 32, rule="GP301", region=Region("pkg/a.py", 9, 9, 9, 20))
    raised = failing(path="pkg/a.py", line=13)
    at_line, elsewhere = settle([arity(), other], [target(checks=(raised,))])
    assert at_line.settlement.verdict == "confirmed"
    assert elsewhere.settlement.verdict == "not_exercised"


def searched(outcome: str, *, fingerprint: str = "f" * 32, **changes: Any) -> CheckInfo:
    """A nan_gradient that was aimed at `finding()`."""
    hypothesis = {"rule": "GP102", "fingerprint": fingerprint, "line": 18, "outcome": outcome, "closest": 0.03125}
    values: dict[str, Any] = {"check": "nan_gradient", "evidence": {"hypotheses": [hypothesis]}}
    return check(**values | changes)


def hit(**changes: Any) -> CheckInfo:
    """The same, which brought it about."""
    hypothesis = {"rule": "GP102", "fingerprint": "f" * 32, "line": 18, "outcome": "confirmed", "closest": None}
    values: dict[str, Any] = {
        "verdict": "fail",
        "diagnosis": Diagnosis(cause="nan_gradient", text="the gradient for x is NaN"),
        "evidence": {
            "hypotheses": [hypothesis],
            "input": "x = zeros(1, 3): a padding row",
            "birth": {"path": "pkg/a.py", "line": 18, "operation": "div", "phase": "backward"},
        },
    }
    return searched("confirmed", **values | changes)


def test_a_search_that_hits_confirms_its_finding_with_the_input_and_the_birth() -> None:
    (settled,) = settle([finding()], [norm(checks=(hit(),))])
    assert settled.settlement.verdict == "confirmed"
    assert settled.settlement.reason == (
        "nan_gradient on pkg.a:Norm (cpu) was aimed at this and hit it: the gradient for x is NaN. "
        "Input: x = zeros(1, 3): a padding row."
    )
    assert settled.settlement.evidence["input"] == "x = zeros(1, 3): a padding row"
    assert settled.settlement.evidence["birth"] == "the backward of div, pkg/a.py:18"


def test_a_search_that_hits_another_finding_does_not_confirm_this_one() -> None:
    second = finding(fingerprint="c" * 32, rule="GP103", region=Region("pkg/a.py", 17, 9, 17, 12))
    first, other = settle([finding(), second], [norm(checks=(hit(),))])
    assert first.settlement.verdict == "confirmed"
    assert other.settlement.verdict == "not_exercised"
    assert "for another place" in other.settlement.reason


def test_a_search_that_misses_refutes_its_finding_and_says_how_close_it_came() -> None:
    (settled,) = settle([finding()], [norm(checks=(searched("not_reproduced"),))])
    assert settled.settlement.verdict == "not_reproduced"
    assert settled.settlement.reason == (
        "nan_gradient on pkg.a:Norm (cpu) searched for an input that brings this about and found none; its operand "
        "came within 0.0312 of the singular value."
    )


def test_a_failure_elsewhere_does_not_outweigh_a_search_that_missed_this_finding() -> None:
    nan = Diagnosis(cause="nan_gradient", text="NaN")
    places: tuple[dict[str, Any], ...] = ({}, {"path": "pkg/a.py", "line": 17})
    for place in places:
        failed = searched("not_reproduced", verdict="fail", diagnosis=nan, **place)
        (settled,) = settle([finding()], [norm(checks=(failed,))])
        assert settled.settlement.verdict == "not_reproduced"


def test_only_findings_on_the_lines_of_the_target_can_explain_its_failure() -> None:
    outside = [arity(fingerprint=str(line), region=Region("pkg/a.py", line, 1, line, 9)) for line in (3, 14)]
    inside = [arity(fingerprint=str(line), region=Region("pkg/a.py", line, 1, line, 9)) for line in (4, 13)]
    (alone, *_) = settle([inside[0], *outside], [target(checks=(failing(),))])
    assert alone.settlement.verdict == "confirmed"
    (_, other) = settle(inside, [target(checks=(failing(),))])
    assert "1 other finding there can explain it as well" in other.settlement.reason


def test_a_search_that_never_came_to_the_line_leaves_the_finding_open() -> None:
    (settled,) = settle([finding()], [norm(checks=(searched("not_reached"),))])
    assert settled.settlement.verdict == "not_exercised"
    assert "was aimed at this, but no call came to this line" in settled.settlement.reason


def test_what_a_check_brings_about_without_calling_it_a_fault_is_not_confirmed() -> None:
    tuned = hit(verdict="inconclusive", summary="only a value tuned to the last bit does it")
    (settled,) = settle([finding()], [norm(checks=(tuned,))])
    assert settled.settlement.verdict == "not_exercised"
    assert "does not call it a fault: only a value tuned to the last bit does it." in settled.settlement.reason
    assert settled.settlement.evidence["input"] == "x = zeros(1, 3): a padding row"


def test_one_target_that_hits_outweighs_another_that_misses() -> None:
    outer = target("pkg.a:Outer", kind=TargetKind.MODULE, line=1, end_line=18, checks=(hit(),))
    (settled,) = settle([finding()], [norm(checks=(searched("not_reproduced"),)), outer])
    assert settled.settlement.verdict == "confirmed"
    assert "pkg.a:Outer" in settled.settlement.reason


def test_a_search_settles_a_finding_in_a_helper_that_no_target_encloses() -> None:
    caller = norm(checks=(hit(),))
    helper = finding(region=Region("pkg/a.py", 1, 1, 1, 5), symbol="pkg.a.helper")
    (settled,) = settle([helper], [caller])
    assert settled.settlement.verdict == "confirmed"


def test_a_search_speaks_for_other_files_that_its_target_comes_to_and_only_for_rules_that_name_its_check() -> None:
    elsewhere = finding(region=Region("pkg/b.py", 18, 16, 18, 28))
    (far,) = settle([elsewhere], [norm(checks=(hit(),))])
    assert far.settlement.verdict == "confirmed"
    (foreign,) = settle([finding(settled_by=("device_compare",), rule="GP601")], [norm(checks=(hit(),))])
    assert foreign.settlement.verdict == "not_exercised"


@pytest.mark.parametrize(
    "said",
    [
        None,
        "confirmed",
        {"fingerprint": "f" * 32, "outcome": "confirmed"},
        [None, 3, ["confirmed"]],
        [{"fingerprint": "f" * 32, "outcome": "certain"}],
        [{"fingerprint": "f" * 32, "outcome": ["confirmed"]}],
        [{"fingerprint": 3, "outcome": "confirmed"}],
        [{"outcome": "not_reproduced"}] * 10 + [{"fingerprint": "f" * 31, "outcome": "not_reproduced"}],
    ],
)
def test_words_of_another_shape_settle_nothing(said: object) -> None:
    passing = check(check="nan_gradient", evidence={"hypotheses": said})
    (settled,) = settle([finding()], [norm(checks=(passing,))])
    assert settled.settlement.verdict == "not_exercised"


def test_of_two_words_on_one_finding_the_weightier_counts() -> None:
    evidence = {
        "hypotheses": [
            {"fingerprint": "f" * 32, "outcome": "not_reached"},
            {"fingerprint": "f" * 32, "outcome": "not_reproduced", "closest": 0.0},
            {"fingerprint": "f" * 32, "outcome": "not_reached"},
        ]
    }
    (settled,) = settle([finding()], [norm(checks=(check(check="nan_gradient", evidence=evidence),))])
    assert settled.settlement.verdict == "not_reproduced"
    assert settled.settlement.reason.endswith("its operand was at the singular value itself, and all stayed finite.")
