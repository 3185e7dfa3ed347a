"""Parts of addresses that are judged before the domain sees them."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends

from services.analyses.errors import AnalysisNotFoundError

# What no id looks like is not found without asking: PostgreSQL refuses a NUL in a text with an error of its own.
ID_PATTERN = r"^[0-9a-z]{20,40}$"


def _existing_form(analysis_id: str) -> str:
    if not re.fullmatch(ID_PATTERN, analysis_id):
        raise AnalysisNotFoundError(f"there is no analysis {analysis_id[:50]!r}", id=analysis_id[:50])
    return analysis_id


AnalysisId = Annotated[str, Depends(_existing_form)]
