"""What keeps somebody from getting a digest."""

from __future__ import annotations

from services.problems import BadInputError, ConflictError


class UnknownPeriodError(BadInputError):
    """A digest was asked for in a rhythm that there is not."""

    code = "unknown-period"
    title = "There is no such period"


class NoMailError(ConflictError):
    """This server sends no mail, or the account has no address to send it to."""

    code = "no-mail"
    title = "No mail can be sent"
