"""The report document is built from plain values, with counts that add up."""

from __future__ import annotations

import json

from analyzer.findings import Edit, Fix, FixSafety
from services.findings.model import SettledFinding, Settlement
from services.reports.document import FixInfo, Report
from services.reports.formats import Rendering, report_format
from tests.reports.samples import finding, hostile_report, norm, report_of, rich_report, target


def test_the_counts_add_up() -> None:
    report = rich_report()
    assert report.summary.findings == {"warning": 1, "error": 1}
    assert report.summary.checks == {"fail": 1, "pass": 2, "skipped": 1}
    assert report.summary.targets.model_dump() == {
        "found": 3,
        "run": 2,
        "not_run": {"constructor unsolved": 1},
        "not_eligible": {},
    }
    assert report.summary.suppressed == 1


def test_a_target_that_nobody_ran_is_counted_as_not_asked_for() -> None:
    report = report_of((), (norm(checks=()), target()))
    assert report.summary.targets.not_run == {"not asked for": 1}


def test_a_finding_carries_its_place_its_fix_and_what_explains_it() -> None:
    info = rich_report().findings[0]
    assert (info.path, info.start_line, info.start_column, info.end_line, info.end_column) == (
        "pkg/a.py",
        18,
        16,
        18,
        28,
    )
    assert info.fix.safety == "safe"
    assert info.fix.edits[0].replacement == "torch.nn.functional.normalize(x)"
    assert info.related[0].message == "x may be a row of zeros"


def test_a_rule_is_explained_by_the_server_if_there_is_one_else_by_the_documentation() -> None:
    assert report_of((finding(),)).findings[0].explanation_url == "docs/rules/GP102.md"
    served = report_of((finding(),), public_url="https://gradproof.example/")
    assert served.findings[0].explanation_url == "https://gradproof.example/rules/GP102"


def test_json_is_the_document_and_reads_back_the_same() -> None:
    for report in (rich_report(), hostile_report()):
        written = report_format("json").render(report, Rendering())
        assert Report.model_validate_json(written) == report
        assert json.loads(written)["schema_version"] == "1"


def _with_fix(outcome: object) -> FixInfo:
    mended = finding(fix=Fix(FixSafety.SAFE, (Edit(finding().region, "x + eps"),)))
    evidence = {} if outcome is None else {"fix": outcome}
    settled = SettledFinding(mended, Settlement("confirmed", "because", evidence))
    return report_of(settled=(settled,)).findings[0].fix


def test_a_fix_says_whether_it_was_run_and_is_clean() -> None:
    shown = _with_fix({"verified": True, "reason": "it is clean"})
    assert (shown.safety, shown.verified, shown.verified_reason) == ("safe", True, "it is clean")
    assert _with_fix(None).verified is None


def test_a_fix_that_was_shown_not_to_mend_the_fault_is_not_offered_as_safe() -> None:
    refuted = _with_fix({"verified": False, "reason": "with the fix, 3 values are not finite"})
    assert (refuted.safety, refuted.verified) == ("unsafe", False)


def test_a_fix_that_could_not_be_run_stays_as_reading_left_it() -> None:
    untried = _with_fix({"verified": False, "reason": "not tried: the input is too long to be kept"})
    assert (untried.safety, untried.verified) == ("safe", None)
