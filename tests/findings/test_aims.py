"""What checks say of static findings: the right cause at the right place confirms, and each fault is told once."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from analyzer import registry
from analyzer.findings import Finding, Region, TargetKind
from services.checks.plan import CHECKS
from services.findings.aims import AIMS, PRECISE
from services.findings.failures import with_failures
from services.findings.model import SettledFinding, TargetResult
from services.findings.settle import settle
from services.reports.document import CheckInfo, Diagnosis
from services.reports.stories import untold_failures
from tests.probe.conftest import PROBE
from tests.reports.samples import check, failing, finding, norm, report_of

AT = 20  # a line inside of the target below, which begins at another
ELSEWHERE = 30

# Rule, the check whose failure confirms it, the cause that does, and one of the same check that does not.
CONFIRMED = [
    ("GP118", "autocast", "does_not_fit", "differs_under_autocast"),
    ("GP202", "gradient_flow", "detached", "hook_raises"),
    ("GP205", "state_dict", "unregistered_parameters", "unsaved_flag"),
    ("GP209", "ddp_consistency", "gradient_lost_between_ranks", "sum_not_averaged"),
    ("GP302", "memory", "reference_cycle", "graph_kept_by_history"),
    ("GP318", "autocast", "unpaired_custom_autocast", "differs_under_autocast"),
    ("GP320", "gradient_flow", "hook_writes_gradient", "detached"),
    ("GP328", "compile_equivalence", "custom_backward_dropped", "compile_differs"),
    ("GP408", "eval_side_effects", "input_written", "dropout_in_eval"),
    ("GP411", "memory", "graph_kept_by_history", "reference_cycle"),
    ("GP501", "export_equivalence", "baked_in", "anything_else"),
    ("GP506", "compile_equivalence", "recompiles_at_each_call", "compile_raises"),
    ("GP511", "compile_equivalence", "hook_after_compile", "compile_differs"),
    ("GP513", "compile_equivalence", "step_at_edge", "compiler_fault"),
    ("GP601", "device_compare", "hard_coded_device", "factory_without_device"),
    ("GP602", "device_compare", "factory_without_device", "left_behind"),
    ("GP604", "device_compare", "left_behind", "kernel_fault"),
    ("GP614", "eval_side_effects", "generator_reseeded", "input_written"),
    ("GP617", "state_dict", "unsaved_flag", "unregistered_parameters"),
    ("GP621", "device_compare", "generator_on_cpu", "left_behind"),
    ("GP625", "state_dict", "unsaved_statistic", "unsaved_flag"),
    ("GP701", "training_step", "gradients_not_cleared", "clip_after_step"),
    ("GP701", "accumulation_equivalence", "gradients_not_cleared", "window_shifted"),
    ("GP704", "training_step", "clip_after_step", "clip_before_unscale"),
    ("GP705", "training_step", "clip_before_unscale", "clip_after_step"),
    ("GP706", "accumulation_equivalence", "accumulation_not_divided", "unequal_weights"),
    ("GP709", "training_step", "scheduler_before_step", "step_before_backward"),
    ("GP710", "training_step", "step_on_scaled_gradients", "clip_before_unscale"),
    ("GP711", "ddp_consistency", "ranks_drift", "sum_not_averaged"),
    ("GP713", "training_step", "loss_broadcast", "detached_loss"),
    ("GP714", "eval_side_effects", "dropout_in_eval", "input_written"),
    ("GP717", "training_step", "graph_of_an_earlier_step", "gradients_not_cleared"),
    ("GP718", "batch_consistency", "batch_axis_reshaped", "reduced_over_batch"),
    ("GP721", "batch_consistency", "copies_in_other_order", "broadcast_over_batch"),
    ("GP723", "training_step", "gradients_cleared_before_step", "gradients_not_cleared"),
    ("GP727", "training_step", "step_before_backward", "gradients_not_cleared"),
    ("GP729", "batch_consistency", "padding_is_seen", "reduced_over_batch"),
    ("GP733", "batch_consistency", "batch_statistics_in_eval", "padding_is_seen"),
    ("GP734", "batch_consistency", "reduced_over_batch", "future_is_seen"),
    ("GP738", "accumulation_equivalence", "window_shifted", "accumulation_not_divided"),
    ("GP740", "accumulation_equivalence", "unequal_weights", "divided_twice"),
    ("GP802", "checkpoint_equivalence", "no_gradient_through_reentrant", "state_changed"),
    ("GP803", "checkpoint_equivalence", "random_state_not_preserved", "buffer_updated_twice"),
    ("GP804", "checkpoint_equivalence", "buffer_updated_twice", "random_state_not_preserved"),
]
OTHER_CHECKS = set(CHECKS) - {"gradcheck", "gradgradcheck", "nan_gradient", "finding_search", "portrait"}


def suspected(rule: str, line: int = AT, **changes: Any) -> Finding:
    """A finding of this rule, as the analyzer makes it."""
    named = registry.rule(rule)
    assert named is not None
    values = {"rule": rule, "region": Region("pkg/a.py", line, 1, line, 9), "settled_by": named.settled_by}
    return finding(**values | changes)


def failed(name: str, cause: str, line: int | None = AT, **changes: Any) -> CheckInfo:
    place = {} if line is None else {"path": "pkg/a.py", "line": line}
    source = {"source": {"text": f"line {line}", "symbol": "Norm.forward"}}
    values: dict[str, Any] = {"check": name, "diagnosis": Diagnosis(cause=cause, text=f"{cause} it is")}
    return failing(**{**values, **place, "evidence": source, **changes})


def run(*checks: CheckInfo, **changes: Any) -> TargetResult:
    return norm(checks=checks, end_line=40, **changes)


def told(findings: list[Finding], *targets: TargetResult) -> tuple[SettledFinding, ...]:
    return with_failures(settle(findings, targets), targets)


@pytest.mark.parametrize(("rule", "name", "cause", "other"), CONFIRMED)
def test_a_finding_is_confirmed_by_the_right_cause_at_its_place_and_is_the_only_entry(
    rule: str, name: str, cause: str, other: str
) -> None:
    (only,) = told([suspected(rule)], run(failed(name, cause)))
    assert (only.finding.rule, only.settlement.verdict) == (rule, "confirmed")
    assert only.settlement.evidence["checks"] == [{"target": "pkg.a:Norm", "check": name, "device": "cpu"}]
    left, alone = told([suspected(rule)], run(failed(name, other)))
    assert (left.finding.rule, left.settlement.verdict) == (rule, "not_exercised")
    assert alone.finding.rule == name


@pytest.mark.parametrize("name", sorted(PRECISE))
def test_a_check_that_knows_the_line_of_its_fault_confirms_no_finding_of_another_line(name: str) -> None:
    rule, cause = next((rule, cause) for rule, settled_by, cause, _ in CONFIRMED if settled_by == name)
    left, alone = told([suspected(rule)], run(failed(name, cause, ELSEWHERE)))
    assert left.settlement.verdict != "confirmed"
    assert (alone.finding.rule, alone.finding.region.start_line) == (name, ELSEWHERE)


def test_a_failure_that_knows_no_line_confirms_the_one_finding_of_its_kind_in_the_target() -> None:
    for line in (None, norm().declaration.line):
        (only,) = told([suspected("GP714")], run(failed("eval_side_effects", "dropout_in_eval", line)))
        assert only.settlement.verdict == "confirmed"
    first, second, alone = told(
        [suspected("GP714"), suspected("GP714", ELSEWHERE, fingerprint="b" * 32)],
        run(failed("eval_side_effects", "dropout_in_eval", None)),
    )
    assert {first.settlement.verdict, second.settlement.verdict} == {"not_exercised"}
    assert alone.finding.rule == "eval_side_effects"


def test_each_further_fault_of_a_check_confirms_its_finding_or_stands_for_itself() -> None:
    also = [
        {"cause": "gradients_not_cleared", "text": "not cleared", "path": "pkg/a.py", "line": AT},
        {"cause": "loss_broadcast", "text": "broadcast", "path": "pkg/a.py", "line": 36},
        {"cause": "clip_after_step", "text": "no place"},
        "nonsense",
    ]
    step = failed("training_step", "clip_after_step", ELSEWHERE, evidence={"also": also})
    clearing, named, further = told([suspected("GP701")], run(step))
    assert clearing.settlement.verdict == "confirmed"
    assert "not cleared" in clearing.settlement.reason
    found = [(item.finding.name, item.finding.region.start_line) for item in (named, further)]
    assert found == [("clip-after-step", ELSEWHERE), ("loss-broadcast", 36)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("training_step", "gradients_not_cleared"), ("accumulation_equivalence", "gradients_not_cleared")),
        (("memory", "graph_kept_by_history"), ("training_step", "graph_of_an_earlier_step")),
        (("gradgradcheck", "wrong_second_order"), ("hvp", "wrong_second_order")),
        (("state_dict", "unregistered_parameters"), ("device_compare", "left_behind")),
        (("eval_side_effects", "statistic_moves_in_eval"), ("batch_consistency", "batch_statistics_in_eval")),
        (("gradcheck", "missing_gradient"), ("gradient_flow", "detached")),
    ],
)
def test_what_two_checks_come_upon_at_one_line_is_one_entry_told_by_the_first(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    targets = (run(failed(*first), failed(*second)),)
    (only,) = settled = with_failures((), targets)
    assert only.finding.rule == first[0]
    assert only.settlement.evidence["checks"] == [
        {"target": "pkg.a:Norm", "check": name, "device": "cpu"} for name, _ in (first, second)
    ]
    report = report_of(targets=targets, settled=settled)
    assert [check.check for _, check in untold_failures(report)] == [first[0]]


def test_a_check_that_knows_no_line_tells_the_fault_of_one_that_does_in_the_same_target() -> None:
    unplaced = failed("gradcheck", "missing_gradient", norm().declaration.line)
    assert len(told([], run(unplaced, failed("gradient_flow", "detached", ELSEWHERE)))) == 1
    assert len(told([], run(unplaced, failed("memory", "reference_cycle", ELSEWHERE)))) == 2


def test_two_causes_at_one_line_and_two_lines_of_one_check_stay_two_entries() -> None:
    unlike = run(failed("eval_side_effects", "dropout_in_eval"), failed("state_dict", "unsaved_flag"))
    assert len(told([], unlike)) == 2
    apart = run(failed("memory", "graph_kept_by_history"), failed("training_step", "graph_grows", ELSEWHERE))
    assert len(told([], apart)) == 2
    same_check = (run(failed("gradient_flow", "detached")), run(failed("gradient_flow", "detached", ELSEWHERE)))
    assert len(told([], *same_check)) == 2


def test_what_a_checkpoint_does_to_a_second_derivative_is_no_second_entry() -> None:
    through = failed("hvp", "wrong_second_order", norm().declaration.line)
    (only,) = told([suspected("GP803")], run(failed("checkpoint_equivalence", "random_state_not_preserved"), through))
    assert only.settlement.verdict == "confirmed"
    # By itself it tells nothing of the checkpoint.
    left, alone = told([suspected("GP803")], run(through))
    assert (left.settlement.verdict, alone.finding.rule) == ("not_exercised", "hvp")


def test_a_failure_for_another_reason_does_not_outweigh_a_search_that_missed_the_finding() -> None:
    missed = {"rule": "GP714", "fingerprint": suspected("GP714").fingerprint, "outcome": "not_reproduced"}
    search = check(check="finding_search", evidence={"hypotheses": [missed]})
    left, alone = told([suspected("GP714")], run(search, failed("eval_side_effects", "input_written", ELSEWHERE)))
    assert (left.settlement.verdict, alone.finding.rule) == ("not_reproduced", "eval_side_effects")


@pytest.mark.parametrize("rule", ["GP706", "GP723", "GP738"])
def test_a_step_that_is_that_of_the_whole_batch_refutes_what_accumulation_is_suspected_of(rule: str) -> None:
    def passed(**evidence: Any) -> str:
        equal = check(check="accumulation_equivalence", evidence={"micro_batches_per_step": [2, 2], **evidence})
        (settled,) = settle([suspected(rule)], [run(equal, kind=TargetKind.FUNCTION)])
        return settled.settlement.verdict

    assert passed(set_to_one="every") == "not_reproduced"
    assert passed() == "not_exercised"
    assert passed(set_to_one="every", not_compared=["it raises"]) == "not_exercised"


def test_every_rule_that_a_check_settles_says_what_its_fault_looks_like() -> None:
    without = {rule.id for rule in registry.all_rules() if OTHER_CHECKS & set(rule.settled_by)} - set(AIMS)
    assert without == set()


def test_each_cause_is_a_word_of_the_probe_and_each_check_one_that_there_is() -> None:
    words = {
        node.value
        for path in PROBE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for rule, aim in AIMS.items():
        assert aim.causes <= words, (rule, aim.causes - words)
        named = registry.rule(rule)
        assert named is not None
        assert {*named.settled_by, *aim.also} <= set(CHECKS)
