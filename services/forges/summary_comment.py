"""The one comment in the conversation: written when there is something to say, edited in place, short when it is over.

It is found again by a hidden marker on its first line and by its author. Its digest leaves commits and analyses out, so
that a push that changes nothing about the findings edits nothing: "as of" then names an earlier commit. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.forges.markdown import fitted, link, marker, plain, read_marker, row, size, span, table
from services.forges.review import Review, Selection, select, short
from services.forges.sentences import by_class, check_row, compared, counted, finding_row, gate_lines, headline
from services.reports.document import FindingInfo

LARGEST_BODY: Final = 65_536
_KIND: Final = "summary"
_MOST_ROWS: Final = 50
_MOST_FIXED: Final = 10
_NO_COMMIT: Final = "0" * 40


@dataclass(frozen=True, slots=True)
class Summary:
    """The comment to be written. Equal digests say the same of the findings."""

    body: str
    digest: str
    is_clean: bool


def summary_marker(project: str, number: int) -> str:
    """The first line of the comment of a pull request of a project."""
    return marker(_KIND, f"{project}:{number}")


def is_summary(body: str, project: str, number: int) -> bool:
    """Whether a body is that comment. Its author has to be us as well: anybody can copy a marker."""
    return read_marker(_KIND, body) == f"{project}:{number}"


def summary(review: Review, *, project: str, number: int, said_before: bool, always: bool = False) -> Summary | None:
    """The comment as it should read; None: leave everything as it is.

    `said_before`: there is such a comment. Without one, nothing is written while there is nothing new to say, unless
    `always`. An analysis that failed or was cancelled says nothing, and takes nothing back.
    """
    selection = select(review)
    if not review.is_final or not (selection.count or said_before or always):
        return None
    body = _body(review, selection, project, number)
    timeless = replace(review, links=replace(review.links, head_sha=_NO_COMMIT, report=""), base_sha=None)
    said = _body(timeless, selection, project, number)
    return Summary(body, hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest(), not selection.count)


def _body(review: Review, selection: Selection, project: str, number: int) -> str:
    head = [f"{summary_marker(project, number)}\n### Gradproof: {plain(headline(review, selection))}"]
    foot = [f"{compared(review)} {link('The whole report', review.links.report)}."]
    if not selection.count:
        head.append(_over(review))
        return "\n\n".join([*head, *_fixed(review.fixed), *foot])
    head.append(gate_lines(review, only_failed=True))
    foot.append(_how_to_answer(selection))
    findings = [finding_row(review, finding) for finding in selection.findings]
    checks = [check_row(review, failing) for failing in selection.new_checks]
    listed = [
        *_listed(("severity", "rule", "where", "what"), findings, begin=""),
        *_listed(("class", "check", "where", "why"), checks, begin="\n" if findings else ""),
    ]
    total = len(findings) + len(checks)

    def tail(left_out: int) -> str:
        more = left_out + total - len(listed)
        return f"\n{more:,} more of {total:,} in {link('the report', review.links.report)}." if more else ""

    beside = [*_notes(review, selection), *_others(review, selection), *_fixed(review.fixed)]
    # What stands beside the findings is dropped before any of them is.
    room = LARGEST_BODY - size("\n\n".join([*head, *foot])) - 8
    body = fitted(listed, tail=tail, limit=room, separator="\n")
    aside = fitted(beside, tail=lambda _: "", limit=room - size(body) - 2)
    return "\n\n".join([*head, body, *([aside] if aside else []), *foot])


def _listed(head: tuple[str, ...], rows: list[tuple[str, ...]], *, begin: str) -> list[str]:
    """The parts of a table: the first row goes with the head."""
    return [f"{begin}{table(head, rows[:1])}", *map(row, rows[1:_MOST_ROWS])] if rows else []


def _over(review: Review) -> str:
    """What is left to say when nothing is new any more."""
    if review.report.analysis.status == "partial":
        reason = plain(review.report.analysis.reason or "it did not come to its end").rstrip(".")
        return f"Nothing new in what was run. The analysis is partial: {reason}."
    return "Nothing new to look at."


def _notes(review: Review, selection: Selection) -> list[str]:
    if not selection.notes:
        return []
    return [f"{counted(len(selection.notes), 'new note')} in {link('the report', review.links.report)}."]


def _others(review: Review, selection: Selection) -> list[str]:
    """Failing checks that say nothing about the change, folded away."""
    others = selection.other_checks
    if not others:
        return []
    rows = [check_row(review, failing) for failing in others[:_MOST_ROWS]]
    title = f"Failing checks that do not count against this change: {by_class(others)}"
    return [f"<details><summary>{title}</summary>\n\n{table(('class', 'check', 'where', 'why'), rows)}\n\n</details>"]


def _fixed(fixed: Sequence[FindingInfo]) -> list[str]:
    if not fixed:
        return []
    names = [f"{plain(finding.rule)} {plain(finding.name)} at {_where(finding)}" for finding in fixed[:_MOST_FIXED]]
    more = f" and {len(fixed) - _MOST_FIXED:,} more" if len(fixed) > _MOST_FIXED else ""
    return [f"Fixed by this change: {'; '.join(names)}{more}."]


def _where(finding: FindingInfo) -> str:
    """Where it was: on the base, so that no line of the head can be linked."""
    return span(finding.place, 160)


def _how_to_answer(selection: Selection) -> str:
    example = short(selection.findings[0]) if selection.findings else "FINDING"
    return (
        f"<sub>Not a fault? `/gradproof ignore {example} REASON` in a comment, and it is not told again. "
        f"`/gradproof explain {example}` says more, `/gradproof help` what else there is.</sub>"
    )
