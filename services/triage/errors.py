"""What can be wrong with a question or a decision about findings of a project."""

from __future__ import annotations

from services.problems import BadInputError, NotFoundError


class FindingNotFoundError(NotFoundError):
    """The project, or the analysis, has no finding with this fingerprint."""

    code = "finding-not-found"
    title = "No such finding"


class TargetNotFoundError(NotFoundError):
    """The analysis has no such target."""

    code = "target-not-found"
    title = "No such target"


class InvalidDecisionError(BadInputError):
    """A decision lacks its reason, ends in the past, or can't be made in the present state of the finding."""

    code = "invalid-decision"
    title = "The decision can't be taken"
