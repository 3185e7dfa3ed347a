"""An analysis that need not be made, because it has been: of the same commit, in the same way, with the same tools.

Used for the base of a change: the merge base of ten pull requests is one commit. This module never commits.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from services.analyses import overview_repository as overviews
from services.analyses.model import AnalysisOptions
from services.version import version

# What does not change what an analysis says.
_INDIFFERENT: Final = {"reuse", "modes"}


def find_baseline(
    session: Session,
    project_id: str,
    options: AnalysisOptions,
    *,
    commit: str | None = None,
    snapshot: str | None = None,
) -> str | None:
    """The newest finished analysis of the project of this commit, or of this snapshot, that can stand for a new one.

    It has to have asked for the same, with the same Gradproof, and with the torch that the newest analysis of the
    project ran with: an older one would make every check incomparable. None: one has to be made.
    """
    if (commit is None) == (snapshot is None):
        raise ValueError("name a commit, or a snapshot")
    wanted = options.model_dump(exclude=_INDIFFERENT)
    present = overviews.newest_torch(session, project_id)
    for found in overviews.finished_of(session, project_id, commit=commit, snapshot=snapshot):
        asked = AnalysisOptions.model_validate(found.options).model_dump(exclude=_INDIFFERENT)
        same_torch = found.tool.get("torch") in {None, present}
        if asked == wanted and found.tool.get("version") == version() and same_torch:
            return found.id
    return None
