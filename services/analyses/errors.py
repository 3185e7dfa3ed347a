"""What can be wrong with a submission or with what is asked about an analysis."""

from __future__ import annotations

from services.problems import BadInputError, ConflictError, NotFoundError


class AnalysisNotFoundError(NotFoundError):
    """No analysis has this id."""

    code = "analysis-not-found"
    title = "No such analysis"


class InvalidOptionsError(BadInputError):
    """An option of a submission is unknown or has an unusable value."""

    code = "invalid-options"
    title = "The options can't be used"


class IdempotencyConflictError(ConflictError):
    """The same idempotency key came with another submission before."""

    code = "idempotency-conflict"
    title = "This Idempotency-Key was used for another submission"


class AnalysisEndedError(ConflictError):
    """The analysis has ended and can't be cancelled."""

    code = "analysis-ended"
    title = "The analysis has ended"


class ReportUnavailableError(ConflictError):
    """There is nothing to report on: the source was never fetched."""

    code = "report-unavailable"
    title = "There is no report yet"
