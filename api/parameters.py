"""Parts of addresses that are judged before the domain sees them."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends

from services.analyses.errors import AnalysisNotFoundError
from services.projects.errors import ProjectNotFoundError
from services.projects.service import NAME_PATTERN

# What no id looks like is not found without asking: PostgreSQL refuses a NUL in a text with an error of its own.
ID_PATTERN = r"^[0-9a-z]{20,40}$"


def _existing_form(analysis_id: str) -> str:
    if not re.fullmatch(ID_PATTERN, analysis_id):
        raise AnalysisNotFoundError(f"there is no analysis {analysis_id[:50]!r}", id=analysis_id[:50])
    return analysis_id


AnalysisId = Annotated[str, Depends(_existing_form)]


def _project_as_called(project: str) -> str:
    """The stroke of a full name can't stand in an address: `organisation~name` does, or the id."""
    called = project.replace("~", "/")
    if not re.fullmatch(NAME_PATTERN, called):
        raise ProjectNotFoundError(f"there is no project {project[:120]!r}", project=project[:120])
    return called


ProjectKey = Annotated[str, Depends(_project_as_called)]
