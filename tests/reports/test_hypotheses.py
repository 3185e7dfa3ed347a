"""Each finding that a check can settle is sent along with the targets that can reach it, and with no others."""

from __future__ import annotations

from typing import Any

from analyzer.findings import Edit, Finding, Fix, FixSafety, Region, TargetDeclaration, TargetKind
from services.findings.hypotheses import Suspicions
from tests.reports.samples import finding


def declared(name: str, line: int, end_line: int, path: str = "pkg/a.py") -> TargetDeclaration:
    return TargetDeclaration(f"pkg.a:{name}", TargetKind.MODULE, path, line, end_line, "", "pkg.a", name)


def at(line: int, **changes: Any) -> Finding:
    return finding(region=Region("pkg/a.py", line, 1, line, 9), fingerprint=str(line), **changes)


def sent(suspicions: Suspicions, target: TargetDeclaration) -> list[object]:
    return [record["fingerprint"] for record in suspicions.of(target)]


def test_a_finding_goes_to_every_target_around_it_and_to_no_other() -> None:
    outer, inner, other = declared("Outer", 1, 20), declared("Outer.Inner", 5, 10), declared("Other", 30, 40)
    suspicions = Suspicions([at(7), at(15), at(30)], [outer, inner, other])
    assert sent(suspicions, outer) == ["7", "15"]
    assert sent(suspicions, inner) == ["7"]
    assert sent(suspicions, other) == ["30"]


def test_a_finding_in_a_helper_goes_to_the_targets_of_its_file_which_may_call_it() -> None:
    first, second = declared("First", 10, 20), declared("Second", 30, 40)
    elsewhere = declared("Third", 1, 40, path="pkg/b.py")
    suspicions = Suspicions([at(3), at(25), at(12)], [first, second, elsewhere])
    assert sent(suspicions, first) == ["3", "12", "25"]
    assert sent(suspicions, second) == ["3", "25"]
    assert sent(suspicions, elsewhere) == []


def test_of_many_targets_only_the_nearest_hear_of_a_finding_in_a_helper() -> None:
    targets = [declared(f"T{number}", 10 * number + 1, 10 * number + 5) for number in range(100)]
    suspicions = Suspicions([at(508)], targets)
    told = [target.line for target in targets if sent(suspicions, target)]
    assert told == [471, 481, 491, 501, 511, 521, 531, 541]


def test_a_target_with_endless_findings_is_sent_the_first_of_them() -> None:
    target = declared("T", 1, 1000)
    assert sent(Suspicions([at(line) for line in range(1000, 0, -1)], [target]), target) == [
        str(line) for line in range(1, 201)
    ]


def test_what_nothing_executes_goes_nowhere() -> None:
    target = declared("T", 1, 20)
    assert Suspicions([at(7, settled_by=())], [target]).of(target) == ()


def test_a_record_says_where_and_what_with_the_operand_of_the_rule() -> None:
    target = declared("T", 1, 20)
    suspected = at(7, hypothesis={"operand": "x.norm()", "singular_set": "== 0"})
    assert Suspicions([suspected], [target]).of(target) == (
        {
            "rule": "GP102",
            "fingerprint": "7",
            "path": "pkg/a.py",
            "symbol": "pkg.a.Norm.forward",
            "severity": "warning",
            "operand": "x.norm()",
            "singular_set": "== 0",
            "line": 7,
            "end_line": 7,
            "start_column": 1,
            "end_column": 9,
            "fix": [],
        },
    )


def test_a_rule_that_names_another_line_in_its_hypothesis_does_not_move_the_place() -> None:
    target = declared("T", 1, 20)
    (record,) = Suspicions([at(7, hypothesis={"line": 3})], [target]).of(target)
    assert record["line"] == 7


def test_the_change_that_would_mend_a_finding_is_sent_with_it() -> None:
    target = declared("T", 1, 20)
    region = Region("pkg/a.py", 7, 3, 7, 5)
    fix = Fix(FixSafety.SAFE, (Edit(region, "x + eps"),))
    (record,) = Suspicions([at(7, fix=fix)], [target]).of(target)
    assert record["fix"] == [
        {
            "path": "pkg/a.py",
            "start_line": 7,
            "start_column": 3,
            "end_line": 7,
            "end_column": 5,
            "replacement": "x + eps",
        }
    ]
