"""What a check found without a rule stands in the same list, once, under a name that moves with no line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analyzer.findings import Severity
from services.findings.failures import is_failure, with_failures
from services.findings.model import SettledFinding, TargetResult
from services.findings.settle import settle
from services.gates import GatePolicy, evaluate
from services.reports.document import CheckInfo, Diagnosis
from services.reports.stories import rule_findings, untold_failures
from tests.reports.samples import arity, check, failing, norm, report_of, target


def at_line(line: int, **changes: Any) -> CheckInfo:
    source = {"text": "return grad * 2", "symbol": "Square.backward"}
    return failing(path="pkg/a.py", line=line, evidence={"source": source}, **changes)


def failures(*targets: TargetResult, known: frozenset[str] = frozenset()) -> list[SettledFinding]:
    return [item for item in with_failures((), targets, known=known) if is_failure(item.finding)]


def test_a_failure_without_a_finding_is_an_error_at_its_line_with_the_diagnosis_as_its_message() -> None:
    (found,) = failures(target(checks=(at_line(14),)))
    assert (found.finding.rule, found.severity, found.settlement.verdict) == ("gradcheck", Severity.ERROR, "confirmed")
    assert (found.finding.region.path, found.finding.region.start_line) == ("pkg/a.py", 14)
    diagnosis = failing().diagnosis
    assert diagnosis is not None
    assert found.finding.message == diagnosis.text
    assert found.finding.symbol == "pkg.a.Square.backward"


def test_its_fingerprint_stays_when_lines_move_and_changes_with_the_text_of_the_line_or_the_cause() -> None:
    (first,) = failures(target(checks=(at_line(14),)))
    (moved,) = failures(target(checks=(at_line(40),)))
    assert first.finding.fingerprint == moved.finding.fingerprint
    other = failing(path="pkg/a.py", line=14, evidence={"source": {"text": "return grad", "symbol": "Square.backward"}})
    (edited,) = failures(target(checks=(other,)))
    (caused,) = failures(target(checks=(at_line(14, diagnosis=Diagnosis(cause="wrong_sign", text="sign")),)))
    assert len({item.finding.fingerprint for item in (first, edited, caused)}) == 3


def test_what_the_base_had_is_known() -> None:
    (first,) = failures(target(checks=(at_line(14),)))
    (again,) = failures(target(checks=(at_line(15),)), known=frozenset({first.finding.fingerprint}))
    assert first.is_new
    assert not again.is_new


def test_several_targets_that_fail_at_one_line_are_one_finding_with_their_names() -> None:
    second = replace(target(), declaration=replace(target().declaration, name="pkg.a:Other"), checks=(at_line(14),))
    (found,) = failures(target(checks=(at_line(14),)), second)
    assert found.settlement.evidence["targets"] == ["pkg.a:Square", "pkg.a:Other"]
    assert "1 more targets" in found.settlement.reason


def test_a_finding_and_a_failure_at_its_place_are_one_story() -> None:
    targets = [target(checks=(failing(path="pkg/a.py", line=13),))]
    (told,) = with_failures(settle([arity()], targets), targets)
    assert told.finding.rule == arity().rule
    assert told.settlement.evidence["checks"] == [{"target": "pkg.a:Square", "check": "gradcheck", "device": "cpu"}]


def test_a_check_that_sees_the_whole_target_is_the_story_of_a_finding_of_its_kind_inside_it() -> None:
    """gradcheck names the first line of a target where it can name no better one."""
    inside = failing(path="pkg/a.py", line=13)
    first_line = target().declaration.line
    raises = Diagnosis(cause="backward_raises", text="the backward raises")
    raising = at_line(first_line, check="gradgradcheck", diagnosis=raises)
    settled = settle([arity()], [target(checks=(inside,))])
    targets = [target(checks=(raising,))]
    assert [item.finding.rule for item in with_failures(settled, targets)] == [arity().rule]
    not_finite = Diagnosis(cause="nan_gradient", text="not finite")
    other = at_line(first_line, check="gradgradcheck", diagnosis=not_finite)
    assert len(with_failures(settled, [target(checks=(other,))])) == 2


def test_each_further_birth_of_a_nan_is_an_entry_at_its_own_line() -> None:
    birth = {"operation": "sqrt", "path": "pkg/a.py", "line": 20, "phase": "backward", "value": "nan"}
    evidence = {"also": [{"birth": birth, "input": "all zeros"}, {"birth": "nonsense"}, 3]}
    both = failing(check="nan_gradient", path="pkg/a.py", line=18, evidence=evidence)
    found = failures(norm(checks=(both,)))
    assert [item.finding.region.start_line for item in found] == [18, 20]
    assert "all zeros" in found[1].finding.message


def test_what_passes_makes_no_entry() -> None:
    assert failures(target(checks=(check(),))) == []


def test_a_check_whose_finding_is_known_fails_no_gate_and_a_new_one_does() -> None:
    targets = [target(checks=(at_line(14),))]
    (new,) = with_failures((), targets)
    assert not evaluate([new], targets, GatePolicy()).passed
    known = with_failures((), targets, known=frozenset({new.finding.fingerprint}))
    assert evaluate(known, targets, GatePolicy()).passed


def test_formats_that_list_both_show_each_fault_once() -> None:
    targets = (target(checks=(failing(path="pkg/a.py", line=13),)), norm(checks=(failing(path="pkg/a.py", line=30),)))
    settled = with_failures(settle([arity()], targets), targets)
    report = report_of(targets=targets, settled=settled)
    assert len(report.findings) == 2
    assert [finding.rule for finding in rule_findings(report)] == [arity().rule]
    assert [untold.name for untold, _ in untold_failures(report)] == ["pkg.a:Norm"]
