"""The one way in which a configuration is wrong: at a line of a file, under a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.problems import BadInputError

MAX_MISTAKES: Final = 20  # more help nobody, and the file is untrusted


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong. `key` is written as in the file, with its table in front; "" is the file itself."""

    line: int
    key: str
    message: str


class ConfigurationError(BadInputError):
    """A configuration that can't be used: `file`, `line` and `key` of the first mistake, and up to 20 `mistakes`."""

    code = "configuration"
    title = "The configuration is not valid"

    def __init__(self, file: str, mistakes: Sequence[Mistake], *, count: int | None = None) -> None:
        """`count` is how many mistakes there are, when not all of them are given."""
        ordered = sorted(mistakes)[:MAX_MISTAKES]
        first = ordered[0]
        others = (count or len(mistakes)) - 1
        more = f" (and {others} more)" if others else ""
        key = f"{first.key}: " if first.key else ""
        super().__init__(
            f"{file}:{first.line}: {key}{first.message}{more}",
            file=file,
            line=first.line,
            key=first.key,
            mistakes=[{"line": mistake.line, "key": mistake.key, "message": mistake.message} for mistake in ordered],
        )
        self.file = file
        self.line = first.line
        self.key = first.key
        self.mistakes = tuple(ordered)
