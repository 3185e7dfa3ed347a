"""What an analysis is of where nobody says so: the main line of its project, or something beside it.

The newest analysis of the main line decides what is on it, by when it was submitted: nobody can tell from a commit
whether it is older than another one. So what may be older, or of another branch, is kept from deciding. This module
must not know what deciding means (`services.triage`).
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from services.analyses import repository
from services.analyses.model import GitSource
from services.analyses.models import OPEN_STATUSES, AnalysisRow, Purpose
from services.projects.repository import main_line_of
from services.snapshots.model import Snapshot


def purpose_of_submission(
    session: Session, project_id: str | None, source: Snapshot | GitSource, base: str | None
) -> Purpose:
    """What is compared with a base is a proposal, and so is another ref than the default branch, where that is known.

    An archive says nothing of its branch: without a base it is of the main line.
    """
    if base is not None:
        return Purpose.PROPOSAL
    if project_id is None or isinstance(source, Snapshot) or source.ref is None:
        return Purpose.MAIN
    default, _ = main_line_of(session, project_id)
    if default is None or source.ref in {default, f"refs/heads/{default}", "HEAD"}:
        return Purpose.MAIN
    return Purpose.PROPOSAL


def purpose_of_rerun(session: Session, old: AnalysisRow) -> Purpose:
    """The same again, but for an analysis of the main line that a newer one has overtaken: that decides nothing now."""
    if old.purpose != Purpose.MAIN or old.project_id is None:
        return Purpose(old.purpose)
    newer = repository.statuses_of_newer(session, old)
    _, baseline_id = main_line_of(session, old.project_id)
    is_present = baseline_id == old.id and newer.isdisjoint(OPEN_STATUSES)
    return Purpose.MAIN if is_present or not newer else Purpose.BASE
