"""Why an analysis is made: a plain value that a submission may bring along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.analyses.models import Purpose


@dataclass(frozen=True, slots=True)
class Occasion:
    """Why an analysis is made: of which line, for which pull request.

    Without a purpose, `purposes` says what the analysis is of.
    """

    purpose: Purpose | None = None
    branch: str | None = None
    pull_request_id: str | None = None


NO_OCCASION: Final = Occasion()
