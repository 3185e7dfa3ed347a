"""What changed from one analysis to another, read part by part. Changes nothing.

Findings are compared by the database. Checks are compared here, by their verdicts: those of an analysis are a few
thousand short rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy.orm import Session

from services.analyses.comparing import comparand
from services.analyses.models import AnalysisRow
from services.checks.pages_repository import base_checks, verdicts_of
from services.findings import comparing_repository as findings
from services.gates.classes import BaseCheck, CheckKey, with_classes
from services.reports.build import finding_info
from services.reports.compare import CheckChange, Comparison, ComparisonCounts, FindingChange
from services.reports.document import CheckClassName, FindingInfo
from services.reports.listing import Slice, position_of

ListOfFindings = Literal["new", "fixed", "unchanged", "regressed"]
ComparisonPart = Literal["new", "fixed", "unchanged", "regressed", "finding_changes", "check_changes"]
_FINDINGS: Final[tuple[ListOfFindings, ...]] = ("new", "fixed", "unchanged", "regressed")
DEFAULT_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """Which lists are wanted (None: all, from their beginnings), and from where on."""

    part: ComparisonPart | None = None
    cursor: str | None = None
    limit: int = DEFAULT_LIMIT

    def wants(self, part: ComparisonPart) -> bool:
        """Whether the list is wanted."""
        return self.part in {None, part}


def compared(session: Session, base: AnalysisRow, head: AnalysisRow, asked: Asked, public_url: str) -> Comparison:
    """The differences, in the order of the later analysis. Raises `CursorError`."""
    limit = max(1, min(asked.limit, findings.PAGE_LIMIT))
    following: dict[str, str] = {}
    lists: dict[ListOfFindings, list[FindingInfo]] = {kind: [] for kind in _FINDINGS}
    for kind in _FINDINGS:
        if asked.wants(kind):
            page = findings.page_of_difference(session, base.id, head.id, kind, limit=limit, cursor=asked.cursor)
            lists[kind] = [finding_info(item, public_url) for item in page.items]
            _note(following, kind, page.next_cursor)
    changed: list[FindingChange] = []
    if asked.wants("finding_changes"):
        changes = findings.page_of_changed(session, base.id, head.id, limit=limit, cursor=asked.cursor)
        changed = [
            FindingChange(
                finding=finding_info(item.finding, public_url),
                before=item.before,
                after=item.finding.settlement.verdict,
            )
            for item in changes.items
        ]
        _note(following, "finding_changes", changes.next_cursor)
    checks = _check_changes(session, base, head)
    shown: Slice[CheckChange] = Slice((), None)
    if asked.wants("check_changes"):
        shown = _slice(checks, position_of(asked.cursor), limit)
        _note(following, "check_changes", shown.next_cursor)
    return Comparison(
        base=base.id,
        head=head.id,
        new=lists["new"],
        fixed=lists["fixed"],
        unchanged=lists["unchanged"],
        regressed=lists["regressed"],
        finding_changes=changed,
        check_changes=list(shown.items),
        counts=ComparisonCounts(
            **{kind: findings.number_of_difference(session, base.id, head.id, kind) for kind in _FINDINGS},
            check_changes=len(checks),
        ),
        next_cursors=following,
    )


def _check_changes(session: Session, base: AnalysisRow, head: AnalysisRow) -> list[CheckChange]:
    before, after = base_checks(session, base.id), base_checks(session, head.id)
    keys = [key for key in dict.fromkeys([*after, *before]) if _verdict(before, key) != _verdict(after, key)]
    classes: dict[tuple[str, str, str], CheckClassName | None] = {}
    if any(_verdict(after, key) == "fail" for key in keys):
        torch = head.tool.get("torch")
        told = with_classes(
            verdicts_of(session, head.id), comparand(session, head, base), torch=None if torch is None else str(torch)
        )
        classes = {
            (target.declaration.name, check.check, check.device): check.baseline_class
            for target in told
            for check in target.checks
        }
    return [
        CheckChange(
            target=key[0],
            check=key[1],
            device=key[2],
            before=_verdict(before, key),
            after=_verdict(after, key),
            baseline_class=classes.get(key),
        )
        for key in keys
    ]


def _verdict(checks: Mapping[CheckKey, BaseCheck], key: CheckKey) -> str | None:
    found = checks.get(key)
    return None if found is None else found.verdict


def _slice(changes: list[CheckChange], start: int, limit: int) -> Slice[CheckChange]:
    end = start + limit
    return Slice(tuple(changes[start:end]), str(end) if end < len(changes) else None)


def _note(following: dict[str, str], part: ComparisonPart, cursor: str | None) -> None:
    if cursor is not None:
        following[part] = cursor
