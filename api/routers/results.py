"""What came of an analysis: the report in every format, its parts page by page, the comparison with another one."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from api import examples
from api.authentication import Reader
from api.context import ContextDependency
from api.documents import REPORT_RESPONSE, answers, problems
from api.downloads import report_download
from api.parameters import AnalysisId
from api.schemas import Body, CheckOut, Identifier, Page, TargetOut
from services.reports.compare import Comparison, compare
from services.reports.document import CheckVerdict, FindingInfo, FindingVerdict, TriageState
from services.reports.formats import FORMATS
from services.reports.listing import take

router = APIRouter(prefix="/analyses/{analysis_id}", tags=["results"])

Format = StrEnum("Format", {name: name for name in FORMATS})  # type: ignore[misc] # the choices are data
_DEFAULT_FORMAT = Format("json")


class _Paging(Body):
    cursor: str | None = Field(default=None, max_length=20, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=200)


class FindingFilters(_Paging):
    """Which findings to list."""

    rule: str | None = Field(default=None, max_length=100, description="id, name, or beginning of ids")
    severity: str | None = Field(default=None, pattern="^(error|warning|note)$")
    verdict: FindingVerdict | None = None
    path: str | None = Field(default=None, max_length=1000, description="a file, or a directory that ends in `/`")
    is_new: bool | None = Field(default=None, description="whether the base analysis lacks it")
    triage: TriageState | None = None

    def take(self, finding: FindingInfo) -> bool:
        """Whether a finding is wanted."""
        return (
            (self.rule is None or finding.name == self.rule or finding.rule.startswith(self.rule))
            and (self.severity is None or finding.severity == self.severity)
            and (self.verdict is None or finding.verdict == self.verdict)
            and (self.path is None or _lies_in(finding.path, self.path))
            and (self.is_new is None or finding.is_new == self.is_new)
            and (self.triage is None or finding.triage == self.triage)
        )


class TargetFilters(_Paging):
    """Which targets to list."""

    kind: str | None = Field(default=None, pattern="^(module|function|autograd_function)$")
    path: str | None = Field(default=None, max_length=1000, description="a file, or a directory that ends in `/`")
    run: bool | None = Field(default=None, description="whether a check ran on it")

    def take(self, target: TargetOut) -> bool:
        """Whether a target is wanted."""
        return (
            (self.kind is None or target.kind == self.kind)
            and (self.path is None or _lies_in(target.path, self.path))
            and (self.run is None or bool(target.checks) == self.run)
        )


class CheckFilters(_Paging):
    """Which check results to list."""

    check: str | None = Field(default=None, max_length=100)
    verdict: CheckVerdict | None = None
    device: str | None = Field(default=None, max_length=100)
    target: str | None = Field(default=None, max_length=1000)

    def take(self, check: CheckOut) -> bool:
        """Whether a result is wanted."""
        return all(
            wanted is None or wanted == found
            for wanted, found in (
                (self.check, check.check),
                (self.verdict, check.verdict),
                (self.device, check.device),
                (self.target, check.target),
            )
        )


@router.get("/report", summary="The report", response_class=Response, responses=REPORT_RESPONSE)
def get_report(
    analysis_id: AnalysisId,
    context: ContextDependency,
    caller: Reader,
    name: Annotated[Format, Query(alias="format")] = _DEFAULT_FORMAT,
) -> Response:
    """The report as it stands, also while the analysis is running, in one of the formats."""
    return report_download(context, caller, analysis_id, name.value)


@router.get(
    "/findings",
    summary="Findings, filtered and page by page",
    responses=answers(examples.FINDINGS) | problems(401, 403, 404, 409, 422),
)
def list_findings(
    analysis_id: AnalysisId, context: ContextDependency, caller: Reader, filters: Annotated[FindingFilters, Query()]
) -> Page[FindingInfo]:
    """Findings in the order of path and line."""
    found = take(
        context.analyses.report(caller, analysis_id).findings, filters.take, cursor=filters.cursor, limit=filters.limit
    )
    return Page(items=list(found.items), next_cursor=found.next_cursor)


@router.get(
    "/targets",
    summary="Targets, filtered and page by page",
    responses=answers(examples.TARGETS) | problems(401, 403, 404, 409, 422),
)
def list_targets(
    analysis_id: AnalysisId, context: ContextDependency, caller: Reader, filters: Annotated[TargetFilters, Query()]
) -> Page[TargetOut]:
    """Targets in the order of path and line, each with the number of its checks by verdict."""
    targets = [
        TargetOut(
            name=target.name,
            kind=target.kind,
            path=target.path,
            line=target.line,
            harness=target.harness,
            not_run_reason=target.not_run_reason,
            checks=dict(Counter(check.verdict for check in target.checks)),
        )
        for target in context.analyses.report(caller, analysis_id).targets
    ]
    found = take(targets, filters.take, cursor=filters.cursor, limit=filters.limit)
    return Page(items=list(found.items), next_cursor=found.next_cursor)


@router.get(
    "/checks",
    summary="Check results, filtered and page by page",
    responses=answers(examples.CHECKS) | problems(401, 403, 404, 409, 422),
)
def list_checks(
    analysis_id: AnalysisId, context: ContextDependency, caller: Reader, filters: Annotated[CheckFilters, Query()]
) -> Page[CheckOut]:
    """Check results in the order of their targets."""
    checks = [
        CheckOut(target=target.name, **dict(check))
        for target in context.analyses.report(caller, analysis_id).targets
        for check in target.checks
    ]
    found = take(checks, filters.take, cursor=filters.cursor, limit=filters.limit)
    return Page(items=list(found.items), next_cursor=found.next_cursor)


@router.get(
    "/compare",
    summary="What changed since another analysis",
    responses=answers(examples.COMPARISON) | problems(401, 403, 404, 409, 422),
)
def compare_with(
    analysis_id: AnalysisId,
    context: ContextDependency,
    caller: Reader,
    base: Annotated[Identifier, Query(description="id of the analysis to compare with")],
) -> Comparison:
    """New, fixed and unchanged findings, and the checks whose verdict changed."""
    return compare(context.analyses.report(caller, base), context.analyses.report(caller, analysis_id))


def _lies_in(path: str, wanted: str) -> bool:
    return path.startswith(wanted) if wanted.endswith("/") else path == wanted
