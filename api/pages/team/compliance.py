"""The compliance record of an analysis as a page to print, and as the file that its digest is of."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from api.pages.team.desk import Looking
from api.parameters import AnalysisId

router = APIRouter()

# A page that can still be printed; the file holds all of it.
_SHOWN: Final = 500


@router.get("/analyses/{analysis_id}/compliance")
def compliance_page(desk: Looking, analysis_id: AnalysisId) -> Response:
    """What was checked, with what, and who accepted what."""
    record = desk.context.compliance.record(desk.subject, analysis_id)
    summary = desk.context.results.summary(desk.subject, analysis_id)
    return desk.page(
        "compliance.html",
        section="analyses",
        record=record,
        summary=summary,
        findings=record.findings[:_SHOWN],
        targets=record.targets[:_SHOWN],
        suppressions=record.suppressions[:_SHOWN],
    )


@router.get("/analyses/{analysis_id}/compliance.json")
def compliance_file(desk: Looking, analysis_id: AnalysisId) -> Response:
    """The record itself."""
    record = desk.context.compliance.record(desk.subject, analysis_id)
    name = f"compliance-{analysis_id}.json"
    return Response(
        record.model_dump_json(indent=1),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
