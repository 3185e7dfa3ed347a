"""Links that show one analysis, read only, to whoever has them."""

from __future__ import annotations

from fastapi import APIRouter

from api.authentication import Submitter
from api.context import Context, ContextDependency
from api.documents import answers, problems
from api.parameters import AnalysisId
from api.team_schemas import SHARE_EXAMPLE, ShareIn, ShareOut
from services.projects.shares import ShareLink

router = APIRouter(tags=["share links"])

_OF_ANALYSIS = "/analyses/{analysis_id}/shares"


@router.get(_OF_ANALYSIS, summary="List share links", responses=answers([SHARE_EXAMPLE]) | problems(401, 403, 404))
def list_shares(analysis_id: AnalysisId, context: ContextDependency, caller: Submitter) -> list[ShareOut]:
    """The newest links of an analysis, at most 100, also those that are over."""
    return [_out(context, link) for link in context.shares.list(caller, analysis_id)]


@router.post(
    _OF_ANALYSIS,
    status_code=201,
    summary="Share an analysis",
    responses=answers(SHARE_EXAMPLE, status=201) | problems(401, 403, 404, 422),
)
def create_share(analysis_id: AnalysisId, wanted: ShareIn, context: ContextDependency, caller: Submitter) -> ShareOut:
    """A link that shows the analysis to whoever has it, without signing in, for at most 90 days."""
    return _out(context, context.shares.create(caller, analysis_id, wanted.days))


@router.delete(
    "/shares/{link_id}", summary="Revoke a share link", responses=answers(SHARE_EXAMPLE) | problems(401, 403, 404)
)
def revoke_share(link_id: str, context: ContextDependency, caller: Submitter) -> ShareOut:
    """Have a link show nothing, at once. Doing it again changes nothing."""
    return _out(context, context.shares.revoke(caller, link_id))


def _out(context: Context, link: ShareLink) -> ShareOut:
    return ShareOut(
        id=link.id,
        analysis=link.analysis_id,
        address=f"{context.settings.public_url.rstrip('/')}/shared/{link.code}",
        created_by=link.created_by,
        created_at=link.created_at,
        expires_at=link.expires_at,
        revoked_at=link.revoked_at,
    )
