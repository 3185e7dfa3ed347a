"""JUnit XML, as continuous integration systems read it: a suite for reading, a suite for each target.

XML can't carry most control characters at all, which is why every text goes through `visible` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from services.reports import harnesses
from services.reports.document import CheckInfo, FindingInfo, Report, TargetInfo
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.gradient_evidence import gradient_evidence
from services.reports.stories import rule_findings
from services.reports.untrusted import one_line, shorten, visible

_LONGEST_MESSAGE = 500


class JunitFormat(ReportFormat):
    """Findings and checks as test cases."""

    name = "junit"
    title = "JUnit XML"
    media_type = "application/xml"
    extension = "junit.xml"

    def render(self, report: Report, rendering: Rendering) -> str:  # noqa: ARG002 - it quotes nothing
        root = Element("testsuites", name="gradproof", time=f"{report.analysis.duration_s or 0:.3f}")
        suites = [
            _suite(root, "static findings", (_finding_case(finding, report) for finding in rule_findings(report)))
        ]
        for target in report.targets:
            suites.append(_suite(root, target.name, _target_cases(target)))
            _graded(suites[-1], target)
        for key in ("tests", "failures", "errors", "skipped"):
            root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
        indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _suite(root: Element, name: str, cases: Iterable[Element]) -> Element:
    suite = SubElement(root, "testsuite", name=one_line(name))
    suite.extend(cases)
    suite.set("tests", str(len(suite)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in suite):.3f}")
    return suite


def _graded(suite: Element, target: TargetInfo) -> None:
    """How sure it is that the target is called as its author calls it: of its passing checks as well."""
    if target.harness is not None:
        properties = Element("properties")
        for name, value in (
            ("harness grade", f"{target.harness.grade}: {harnesses.GRADES[target.harness.grade]}"),
            ("harness", harnesses.called(target.harness)),
        ):
            SubElement(properties, "property", name=name, value=one_line(value))
        suite.insert(0, properties)


def _finding_case(finding: FindingInfo, report: Report) -> Element:
    place = f"{finding.place}:{finding.start_column}"
    where = f"in cell {finding.cell} at line" if finding.cell else "at line"
    case = Element(
        "testcase",
        classname=one_line(finding.path),
        name=one_line(f"{finding.rule} {finding.name} {where} {finding.start_line}"),
        file=one_line(finding.path),
        line=str(finding.start_line),
        time="0",
    )
    text = f"{place}\n{finding.message}\n\n{finding.verdict}: {finding.verdict_reason}\n{finding.explanation_url}"
    harness = harnesses.harness_of(report, finding)
    if harness is not None:
        text += f"\n{harnesses.grade_sentence(harness)}"
    if finding.triage in {"accepted", "false_positive"}:
        SubElement(case, "skipped", message=finding.triage)
    elif not finding.is_new:
        SubElement(case, "skipped", message="known: the base or the baseline has it")
    elif finding.severity == "note" or finding.verdict == "not_reproduced":
        SubElement(case, "system-out").text = visible(text)
    else:
        _say(case, "failure", finding.message, text, kind=finding.severity)
    return case


def _target_cases(target: TargetInfo) -> Iterable[Element]:
    if target.not_run_reason is not None and not target.checks:
        case = Element("testcase", classname=one_line(target.name), name="harness", time="0")
        said = SubElement(case, "skipped", message=one_line(f"not run: {target.not_run_reason}"))
        said.text = visible(target.not_run_detail)
        yield case
    for check in target.checks:
        yield _check_case(target, check)


def _check_case(target: TargetInfo, check: CheckInfo) -> Element:
    case = Element(
        "testcase",
        classname=one_line(target.name),
        name=one_line(f"{check.check} [{check.device}]"),
        file=one_line(check.path or target.path),
        line=str(check.line or target.line),
        time=f"{check.duration_s:.3f}",
    )
    text = check.summary
    if target.harness is not None:
        text += f"\n\n{harnesses.called(target.harness)}\n{harnesses.grade_sentence(target.harness)}"
    if check.diagnosis is not None:
        said = "" if check.diagnosis.text == check.summary else f": {check.diagnosis.text}"
        text += f"\n\ncause: {check.diagnosis.cause}{said}"
    if check.verdict == "fail":
        text += "".join(f"\n{label}: {fact}" for label, fact in gradient_evidence(check.evidence).facts())
    if check.repro:
        text += f"\n\n{check.repro}"
    if check.verdict == "fail" and not check.may_block:
        SubElement(case, "skipped", message=one_line(f"fails: {check.seen_from_base}")).text = visible(text)
    elif check.verdict == "fail":
        _say(case, "failure", check.summary, text, kind=check.diagnosis.cause if check.diagnosis else "fail")
    elif check.verdict == "error":
        _say(case, "error", check.summary, text, kind="error")
    elif check.verdict in {"skipped", "inconclusive"}:
        SubElement(case, "skipped", message=one_line(f"{check.verdict}: {check.summary}"))
    return case


def _say(case: Element, tag: str, message: str, text: str, *, kind: str) -> None:
    said = SubElement(case, tag, message=shorten(one_line(message), _LONGEST_MESSAGE), type=one_line(kind))
    said.text = visible(text)
