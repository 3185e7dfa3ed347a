"""The check of a commit: a title, a summary, annotations page by page, and a conclusion. Pure.

The same review gives the same pages, so that a caller who knows how many were taken can go on with the next one. A
page is never sent twice: a forge adds annotations to those that it has.
"""

from __future__ import annotations

from typing import Final

from services.forges.markdown import fitted, link, plain, row, size, table
from services.forges.review import FailingCheck, Review, Selection, check_infos, lines_of, select
from services.forges.sentences import by_class, check_row, compared, finding_row, gate_lines, headline
from services.forges.values import Annotation, AnnotationLevel, CheckAction, CheckOutput, Conclusion
from services.reports import harnesses
from services.reports.document import CheckInfo, FindingInfo, Placed, TargetInfo
from services.reports.gradient_evidence import gradient_evidence
from services.reports.sources import file_region, shown_region
from services.reports.untrusted import one_line, shorten, visible

LARGEST_SUMMARY: Final = 65_535
LARGEST_TITLE: Final = 255
# Ten pages: nobody reads on, and every page is a write.
MOST_ANNOTATIONS: Final = 500
_LARGEST_MESSAGE: Final = 4_000
_LARGEST_DETAILS: Final = 16_000
_LEVELS: Final[dict[str, AnnotationLevel]] = {"error": "failure", "warning": "warning", "note": "notice"}
_ORDER: Final[tuple[AnnotationLevel, ...]] = ("failure", "warning", "notice")
_MOST_ROWS: Final = 200

RERUN: Final = CheckAction("rerun", "Re-run", "Analyse this commit once more")
EXPLAIN: Final = CheckAction("explain", "Explain", "Say in a comment what was found and why")


def conclusion(review: Review, selection: Selection | None = None) -> Conclusion:
    """What the check comes to: advice is `neutral`; only a gate that failed, and may block, is a `failure`."""
    if review.report.analysis.status == "cancelled":
        return "cancelled"
    if review.fails:
        return "failure"
    if not review.is_final or review.base_is_missing or not review.report.gate.passed:
        return "neutral"  # our own failure must not keep anybody from merging
    return "neutral" if (selection or select(review)).count else "success"


def check_output(review: Review, *, annotate: bool = True) -> CheckOutput:
    """What to write, with all annotations: to be sent in pages of what the forge takes at once.

    Without the results of the base there are none: most would be about what was there before.
    """
    selection = select(review)
    return CheckOutput(
        title=shorten(one_line(headline(review, selection)), LARGEST_TITLE),
        summary=_summary(review, selection),
        annotations=_annotations(review, selection) if annotate and not review.base_is_missing else (),
    )


def pages_of(annotations: tuple[Annotation, ...], at_once: int) -> list[tuple[Annotation, ...]]:
    """Annotations as they are sent, `at_once` of them with a call (0: the forge takes none).

    At least one page, which may be empty: the check itself goes with the first.
    """
    if not annotations or at_once <= 0:
        return [()]
    return [annotations[start : start + at_once] for start in range(0, len(annotations), at_once)]


def actions(review: Review) -> tuple[CheckAction, ...]:
    """The buttons: to run it again, and to explain what there is to explain."""
    return (RERUN, EXPLAIN) if review.is_final and select(review).count else (RERUN,)


def _summary(review: Review, selection: Selection) -> str:
    report = review.report
    head = [gate_lines(review)] if review.is_final else []
    if report.analysis.reason:
        head.append(f"The analysis is {report.analysis.status}: {plain(report.analysis.reason).rstrip('.')}.")
    targets, passed = report.summary.targets, report.summary.checks.get("pass", 0)
    foot = [
        f"Targets run: {targets.run:,} of {targets.found:,}. Checks passed: {passed:,}.",
        f"{compared(review)} {link('The whole report', review.links.report)}.",
    ]
    findings = [finding_row(review, finding) for finding in (*selection.findings, *selection.notes)]
    checks = [check_row(review, failing) for failing in selection.checks]
    total = len(findings) + len(checks)
    listed = [
        *_listed(
            "### Findings" if review.base_is_missing else "### New findings",
            ("severity", "rule", "where", "what"),
            findings,
        ),
        *_listed(
            f"\n### {'Other failing' if findings else 'Failing'} checks: {by_class(selection.checks)}",
            ("class", "check", "where", "why"),
            checks,
        ),
    ]

    def tail(left_out: int) -> str:
        more = left_out + total - len(listed)
        return f"\n{more:,} more of {total:,} in {link('the report', review.links.report)}." if more else ""

    room = LARGEST_SUMMARY - size("\n\n".join([*head, *foot])) - 8
    body = fitted(listed, tail=tail, limit=room, separator="\n")
    return "\n\n".join([*head, *([body] if body else []), *foot])


def _listed(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """The parts of a table under its title: the first row goes with the head."""
    return [f"{title}\n\n{table(head, rows[:1])}", *map(row, rows[1:_MOST_ROWS])] if rows else []


def _annotations(review: Review, selection: Selection) -> tuple[Annotation, ...]:
    """New findings and newly failing checks, the gravest first, as many as anybody reads."""
    made = [
        *(_failing(review, failing) for failing in selection.new_checks),
        *(_finding(review, finding) for finding in (*selection.findings, *selection.notes)),
    ]
    made.sort(key=lambda annotation: _ORDER.index(annotation.level))
    return tuple(made[:MOST_ANNOTATIONS])


def _finding(review: Review, finding: FindingInfo) -> Annotation:
    said = [finding.message]
    if finding.cell:
        said[0] = f"cell {finding.cell}, line {finding.start_line}: {said[0]}"
    if finding.verdict == "confirmed":
        said.append(f"Shown by execution: {finding.verdict_reason}")
    details = [evidence for pair in check_infos(review.report, finding)[:1] for evidence in _evidence(*pair)]
    details.append(f"Evidence and history: {review.links.finding(finding)}")
    return _annotation(
        review,
        finding,
        level=_LEVELS[finding.severity],
        title=f"{finding.rule} {finding.name}",
        message="\n".join(said),
        details="\n".join(details),
    )


def _failing(review: Review, failing: FailingCheck) -> Annotation:
    target, check = failing.target, failing.check
    path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
    cause = [f"Cause: {check.diagnosis.text}"] if check.diagnosis is not None else []
    return _annotation(
        review,
        Placed(path=path, start_line=line, start_column=1, end_line=line, end_column=1),
        level="failure",
        title=f"{check.check} fails on {target.name}",
        message="\n".join([check.summary, *cause, f"New: {failing.reason}."]),
        details="\n".join(_evidence(target, check)),
    )


def _evidence(target: TargetInfo, check: CheckInfo) -> list[str]:
    """The numbers of a failing check, and how sure it is that the target is called so."""
    lines = [f"{check.check} on {target.name} ({check.device}): {check.summary}"]
    lines += [f"{label}: {fact}" for label, fact in gradient_evidence(check.evidence).facts()]
    if target.harness is not None:
        lines += [f"called as: {harnesses.called(target.harness)}", harnesses.grade_sentence(target.harness)]
    return lines


def _annotation(
    review: Review, place: Placed, *, level: AnnotationLevel, title: str, message: str, details: str
) -> Annotation:
    first, last = lines_of(review, place)
    region = file_region(review.sources, shown_region(review.sources, place))
    # GitHub takes columns of a single line only, both ends included.
    columns = (region.start_column, max(region.end_column - 1, region.start_column)) if first == last else (None, None)
    return Annotation(
        path=place.path,
        start_line=first,
        end_line=last,
        level=level,
        title=shorten(one_line(title), LARGEST_TITLE),
        message=shorten(visible(message), _LARGEST_MESSAGE) or title,
        raw_details=shorten(visible(details), _LARGEST_DETAILS),
        start_column=columns[0],
        end_column=columns[1],
    )
