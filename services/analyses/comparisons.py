"""What changed from one analysis to another, read part by part. Changes nothing.

Findings and checks are compared by the database: those of a large analysis are 30,000 rows, of which a page shows 200.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy.orm import Session

from services.analyses.comparing import comparand
from services.analyses.models import AnalysisRow
from services.checks import comparing_repository as checks
from services.checks.pages_repository import verdicts_of
from services.findings import comparing_repository as findings
from services.gates.classes import CheckKey, with_classes
from services.reports.build import finding_info
from services.reports.compare import CheckChange, Comparison, ComparisonCounts, FindingChange
from services.reports.document import CheckClassName, FindingInfo
from services.reports.listing import Slice

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
    shown: Slice[CheckChange] = Slice((), None)
    if asked.wants("check_changes"):
        shown = _check_changes(session, base, head, limit=limit, cursor=asked.cursor)
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
            check_changes=checks.number_of_changes(session, base.id, head.id),
        ),
        next_cursors=following,
    )


def _check_changes(
    session: Session, base: AnalysisRow, head: AnalysisRow, *, limit: int, cursor: str | None
) -> Slice[CheckChange]:
    """Checks whose verdict changed; those that fail now with whether that came with the change."""
    page = checks.page_of_changes(session, base.id, head.id, limit=limit, cursor=cursor)
    classes = _classes(session, base, head, {item.target for item in page.items if item.after == "fail"})
    return Slice(
        tuple(
            CheckChange(
                target=item.target,
                check=item.check,
                device=item.device,
                before=item.before,
                after=item.after,
                baseline_class=classes.get((item.target, item.check, item.device)),
            )
            for item in page.items
        ),
        page.next_cursor,
    )


def _classes(
    session: Session, base: AnalysisRow, head: AnalysisRow, names: Collection[str]
) -> dict[CheckKey, CheckClassName | None]:
    """Of the checks of these targets that fail."""
    if not names:
        return {}
    torch = head.tool.get("torch")
    told = with_classes(
        verdicts_of(session, head.id, names),
        comparand(session, head, base, names),
        torch=None if torch is None else str(torch),
    )
    return {
        (target.declaration.name, check.check, check.device): check.baseline_class
        for target in told
        for check in target.checks
    }


def _note(following: dict[str, str], part: ComparisonPart, cursor: str | None) -> None:
    if cursor is not None:
        following[part] = cursor
