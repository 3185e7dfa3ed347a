"""The root of every error that a person can be told about.

A problem has a stable `code`, an HTTP status for the API and an exit code for the command line, so that the same
failure reads the same wherever it surfaces. Each domain package defines its own subclasses in its `errors` module.
This module must not know HTTP frameworks or terminals.
"""

from __future__ import annotations

from typing import ClassVar


class GradproofError(Exception):
    """A failure with a name, a sentence for a person, and structured details.

    `message` says what is wrong and where; `details` holds the offending member, part, key or limit as
    JSON-compatible values.
    """

    code: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "Gradproof failed"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details


class BadInputError(GradproofError):
    """What was given can't be used: 422 over HTTP, exit code 2 on the command line."""

    code = "bad-input"
    title = "The input can't be used"
    http_status = 422
    exit_code = 2


class NotFoundError(GradproofError):
    """What was asked for does not exist, or is not visible to the caller."""

    code = "not-found"
    title = "Not found"
    http_status = 404
    exit_code = 2


class ConflictError(GradproofError):
    """The request contradicts the present state."""

    code = "conflict"
    title = "Conflict"
    http_status = 409
    exit_code = 2


class SurroundingsError(GradproofError):
    """Gradproof's surroundings (sandbox, broker, database, disk) do not allow the work."""

    code = "surroundings"
    title = "The surroundings do not allow this"
    http_status = 503
    exit_code = 3
