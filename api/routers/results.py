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
from services.analyses.comparisons import DEFAULT_LIMIT, Asked, ComparisonPart
from services.checks.pages_repository import CheckSelection, TargetSelection
from services.findings.pages_repository import FindingSelection
from services.reports.compare import Comparison
from services.reports.compliance import Circumstances, ComplianceRecord, compliance_record
from services.reports.document import CheckVerdict, FindingInfo, FindingVerdict, TriageState
from services.reports.formats import FORMATS

router = APIRouter(prefix="/analyses/{analysis_id}", tags=["results"])

Format = StrEnum("Format", {name: name for name in FORMATS})  # type: ignore[misc] # the choices are data
_DEFAULT_FORMAT = Format("json")


_RECORD = compliance_record(examples.REPORT, Circumstances(project="vision", bounds={"check_s": 60.0})).model_dump(
    mode="json"
)
_PAGING = {"cursor", "limit"}


class _Paging(Body):
    cursor: str | None = Field(default=None, max_length=60, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=200)


class FindingFilters(_Paging):
    """Which findings to list."""

    rule: str | None = Field(default=None, max_length=100, description="id, name, or beginning of ids")
    severity: str | None = Field(default=None, pattern="^(error|warning|note)$")
    verdict: FindingVerdict | None = None
    path: str | None = Field(default=None, max_length=1000, description="a file, or a directory that ends in `/`")
    is_new: bool | None = Field(default=None, description="whether the base analysis lacks it")
    triage: TriageState | None = None

    text: str | None = Field(default=None, max_length=200, description="in message, path, symbol or fingerprint")

    def selection(self) -> FindingSelection:
        """The same for the domain."""
        return FindingSelection(**self.model_dump(exclude=_PAGING))


class TargetFilters(_Paging):
    """Which targets to list."""

    kind: str | None = Field(default=None, pattern="^(module|function|autograd_function)$")
    path: str | None = Field(default=None, max_length=1000, description="a file, or a directory that ends in `/`")
    run: bool | None = Field(default=None, description="whether a check ran on it")

    def selection(self) -> TargetSelection:
        """The same for the domain."""
        return TargetSelection(**self.model_dump(exclude=_PAGING))


class CheckFilters(_Paging):
    """Which check results to list."""

    check: str | None = Field(default=None, max_length=100)
    verdict: CheckVerdict | None = None
    device: str | None = Field(default=None, max_length=100)
    target: str | None = Field(default=None, max_length=1000)

    def selection(self) -> CheckSelection:
        """The same for the domain."""
        return CheckSelection(**self.model_dump(exclude=_PAGING))


class ComparisonFilters(Body):
    """Which lists of a comparison, and where they go on."""

    base: Identifier = Field(description="id of the analysis to compare with")
    part: ComparisonPart | None = Field(default=None, description="only this list")
    cursor: str | None = Field(default=None, max_length=20, description="the list's entry of `next_cursors`")
    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=500, description="entries of each list")


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
    found = context.results.findings(
        caller, analysis_id, filters.selection(), limit=filters.limit, cursor=filters.cursor
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
    found = context.results.targets(
        caller, analysis_id, filters.selection(), limit=filters.limit, cursor=filters.cursor
    )
    targets = [
        TargetOut(
            name=entry.target.name,
            kind=entry.target.kind,
            path=entry.target.path,
            line=entry.target.line,
            harness=entry.target.harness,
            not_run_reason=entry.target.not_run_reason,
            checks=dict(Counter(check.verdict for check in entry.target.checks)),
        )
        for entry in found.items
    ]
    return Page(items=targets, next_cursor=found.next_cursor)


@router.get(
    "/checks",
    summary="Check results, filtered and page by page",
    responses=answers(examples.CHECKS) | problems(401, 403, 404, 409, 422),
)
def list_checks(
    analysis_id: AnalysisId, context: ContextDependency, caller: Reader, filters: Annotated[CheckFilters, Query()]
) -> Page[CheckOut]:
    """Check results in the order of their targets."""
    found = context.results.checks(caller, analysis_id, filters.selection(), limit=filters.limit, cursor=filters.cursor)
    checks = [CheckOut(target=item.target, **dict(item.check)) for item in found.items]
    return Page(items=checks, next_cursor=found.next_cursor)


@router.get(
    "/compliance",
    summary="The compliance record",
    responses=answers(_RECORD) | problems(401, 403, 404, 409),
)
def get_compliance_record(analysis_id: AnalysisId, context: ContextDependency, caller: Reader) -> ComplianceRecord:
    """What was checked, with which versions, devices, tolerances and seed, and who accepted what, until when and why.

    `digest` is SHA-256 over everything else, as JSON with sorted keys and without spaces: the record can be verified
    without a server.
    """
    return context.compliance.record(caller, analysis_id)


@router.get(
    "/compare",
    summary="What changed since another analysis",
    responses=answers(examples.COMPARISON) | problems(401, 403, 404, 409, 422),
)
def compare_with(
    analysis_id: AnalysisId,
    context: ContextDependency,
    caller: Reader,
    filters: Annotated[ComparisonFilters, Query()],
) -> Comparison:
    """New, fixed, unchanged and regressed findings, and the checks whose verdict changed.

    Each list holds `limit` entries at most; `counts` tells how many there are, and `next_cursors` where a list goes on.
    """
    asked = Asked(filters.part, filters.cursor, filters.limit)
    return context.results.compare(caller, filters.base, analysis_id, asked)
