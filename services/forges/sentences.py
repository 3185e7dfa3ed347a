"""What the check, the comment and the lines say alike of one finding, one check, one gate. Markdown; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.forges.markdown import link, plain, prose, span
from services.forges.review import FailingCheck, Review, Selection, check_infos, place_link
from services.reports.document import CLASS_WORDS, CheckClassName, CheckInfo, FindingInfo, Placed
from services.reports.gradient_evidence import gradient_evidence

_VERDICTS: Final = {
    "confirmed": "shown by execution",
    "not_exercised": "not exercised",
    "static_only": "read from the source",
    "not_reproduced": "executed, and held",
}
# The facts that say how wrong it is; the rest stands in the report.
_TELLING: Final = ("situation", "worst", "input", "born")
_CLASSES: Final[tuple[CheckClassName, ...]] = ("new", "already_failing", "flaky", "not_comparable")


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 finding`, `2 findings`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def headline(review: Review, selection: Selection) -> str:
    """The whole in a few words, as plain text."""
    status = review.report.analysis.status
    if status == "cancelled":
        return "The analysis was cancelled"
    if not review.is_final:
        return "The analysis could not be finished"
    partly = " (not everything could be run)" if status == "partial" else ""
    if review.base_is_missing:
        return f"What is new is not known: the base could not be analysed{partly}"
    if not selection.count:
        notes = f", {counted(len(selection.notes), 'note')}" if selection.notes else ""
        return f"No new findings{notes}{partly}"
    said = []
    if selection.findings:
        confirmed = sum(finding.verdict == "confirmed" for finding in selection.findings)
        shown = f", {confirmed:,} shown by execution" if confirmed else ""
        said.append(f"{counted(len(selection.findings), 'new finding')}{shown}")
    if selection.new_checks:
        said.append(counted(len(selection.new_checks), "newly failing check"))
    return f"{'; '.join(said)}{partly}"


def gate_lines(review: Review, *, only_failed: bool = False) -> str:
    """The conditions of the gate, each with what decided it."""
    gate = review.report.gate
    advice = ""
    if not (gate.passed or review.fails):
        blocks_not = (
            "what Gradproof could not do blocks nothing" if review.blocks else "this project lets no gate block"
        )
        advice = f" It only advises: {blocks_not}."
    lines = [f"**The gate {'passed' if gate.passed else 'failed'}.**{advice}"]
    conditions = [
        f"- {'✓' if condition.passed else '✗'} {plain(condition.name)}: {plain(condition.explanation)}"
        for condition in gate.conditions
        if not (only_failed and condition.passed)
    ]
    return "\n".join([*lines, *([""] if conditions else []), *conditions])


def finding_row(review: Review, finding: FindingInfo) -> tuple[str, ...]:
    """Severity, rule, place and what is known, for a table."""
    rule = link(f"**{plain(finding.rule)}** {plain(finding.name)}", review.links.finding(finding))
    return finding.severity, rule, place_link(review, finding), told(review, finding, short=True)


def told(review: Review, finding: FindingInfo, *, short: bool = False) -> str:
    """What a finding says, and what execution showed of it with its numbers."""
    said = prose(finding.message, 300 if short else 1_500)
    if finding.verdict != "confirmed":
        return f"{said} ({_VERDICTS[finding.verdict]})"
    facts = numbers(review, finding)
    separator = "<br>" if short else "\n\n"
    shown = prose(finding.verdict_reason, 300 if short else 1_000)
    return f"{said}{separator}**Shown by execution:** {shown}{f' {facts}' if facts else ''}"


def numbers(review: Review, finding: FindingInfo) -> str:
    """How wrong it is, from the evidence of the first failing check that a finding rests on."""
    for _, check in check_infos(review.report, finding):
        facts = check_numbers(check)
        if facts:
            return facts
    return ""


def check_numbers(check: CheckInfo) -> str:
    """The telling facts of a failing check, as sentences."""
    facts = [fact for label, fact in gradient_evidence(check.evidence).facts() if label in _TELLING]
    return " ".join(f"{plain(fact[:1].upper() + fact[1:], 240).rstrip('.')}." for fact in facts[:2])


def check_row(review: Review, failing: FailingCheck) -> tuple[str, ...]:
    """Class, check, target and why, for a table."""
    target, check = failing.target, failing.check
    path, line = (check.path, check.line or 1) if check.path else (target.path, target.line)
    place = Placed(path=path, start_line=line, start_column=1, end_line=line, end_column=1)
    cause = prose(check.diagnosis.text if check.diagnosis is not None else check.summary, 200)
    return (
        CLASS_WORDS[failing.kind],
        f"{plain(check.check)} ({plain(check.device)})",
        f"{span(target.name, 120)} at {place_link(review, place)}",
        f"{cause} ({plain(failing.reason, 160)})",
    )


def by_class(failing: Sequence[FailingCheck]) -> str:
    """How many there are of each class: `2 new, 1 flaky`."""
    counts = ((CLASS_WORDS[kind], sum(each.kind == kind for each in failing)) for kind in _CLASSES)
    return ", ".join(f"{count:,} {words}" for words, count in counts if count)


def compared(review: Review) -> str:
    """Which commit this is about, and what it is compared with."""
    head = f"As of {review.links.of_commit(review.links.head_sha)}"
    if review.base_is_missing:
        return f"{head}, compared with nothing: the commit that the change branched off from could not be analysed."
    if review.base_sha is None:
        return f"{head}, compared with nothing: everything counts as new."
    return f"{head}, compared with {review.links.of_commit(review.base_sha)}."
