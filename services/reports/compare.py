"""What changed from one analysis to another: findings that came and went, checks whose verdict changed.

Findings are matched by fingerprint, checks by target, name and device. A check that ran on one side only is not
comparable, which is said rather than guessed. Of large analyses each list holds a part, and says where it goes on.
This module must not know the database.
"""

from __future__ import annotations

from pydantic import Field

from services.reports.document import (
    CheckClassName,
    CheckInfo,
    CheckVerdict,
    Document,
    FindingInfo,
    FindingVerdict,
    Report,
)


class FindingChange(Document):
    """A finding of both sides whose verdict is no longer the same."""

    finding: FindingInfo
    before: FindingVerdict
    after: FindingVerdict


class CheckChange(Document):
    """A check whose verdict differs; null: it did not run on that side, so that the two can't be compared."""

    target: str
    check: str
    device: str
    before: CheckVerdict | None
    after: CheckVerdict | None
    baseline_class: CheckClassName | None = Field(
        default=None, description="of a check that fails now: whether that came with the change"
    )


class ComparisonCounts(Document):
    """How many there are, whatever the lists hold of them."""

    new: int
    fixed: int
    unchanged: int
    regressed: int
    check_changes: int


class Comparison(Document):
    """`new` and `unchanged` are findings of the later analysis, `fixed` those of the base that are gone.

    `regressed` are those of `new` that the project had seen fixed before.
    """

    base: str = Field(description="id of the analysis compared with")
    head: str = Field(description="id of the analysis looked at")
    new: list[FindingInfo]
    fixed: list[FindingInfo]
    unchanged: list[FindingInfo]
    finding_changes: list[FindingChange]
    check_changes: list[CheckChange]
    regressed: list[FindingInfo] = Field(default=[])
    counts: ComparisonCounts | None = Field(default=None, description="null where the lists are whole")
    next_cursors: dict[str, str] = Field(
        default={}, description="by list that has more: the `cursor` for its next page, asked for with `part`"
    )


def compare(base: Report, head: Report) -> Comparison:
    """The differences, in the order of the later report."""
    before = {finding.fingerprint: finding for finding in base.findings}
    after = {finding.fingerprint: finding for finding in head.findings}
    return Comparison(
        base=base.analysis.id,
        head=head.analysis.id,
        new=[finding for key, finding in after.items() if key not in before],
        fixed=[finding for key, finding in before.items() if key not in after],
        unchanged=[finding for key, finding in after.items() if key in before],
        regressed=[finding for key, finding in after.items() if key not in before and finding.triage == "regressed"],
        finding_changes=[
            FindingChange(finding=finding, before=before[key].verdict, after=finding.verdict)
            for key, finding in after.items()
            if key in before and before[key].verdict != finding.verdict
        ],
        check_changes=_check_changes(base, head),
    )


def _check_changes(base: Report, head: Report) -> list[CheckChange]:
    before, after = _results(base), _results(head)
    changes = []
    for key in dict.fromkeys([*after, *before]):
        old, new = before.get(key), after.get(key)
        if (old and old.verdict) != (new and new.verdict):
            target, check, device = key
            changes.append(
                CheckChange(
                    target=target,
                    check=check,
                    device=device,
                    before=old.verdict if old else None,
                    after=new.verdict if new else None,
                    baseline_class=new.baseline_class if new else None,
                )
            )
    return changes


def _results(report: Report) -> dict[tuple[str, str, str], CheckInfo]:
    return {(target.name, check.check, check.device): check for target in report.targets for check in target.checks}
