"""What can be wrong with asking for a report."""

from __future__ import annotations

from services.problems import BadInputError


class UnknownFormatError(BadInputError):
    """A report was asked for in a format that does not exist."""

    code = "unknown-format"
    title = "There is no such report format"
