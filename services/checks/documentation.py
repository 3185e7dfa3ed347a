"""What the runtime checks do, as data: for `gradproof explain`, `GET /checks`, the docs and the pages.

The checks live in the probe, which only a process with torch may import. `make docs` writes what they say of
themselves into `documentation.json` beside this module; `make check` fails when that file is stale.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class CheckDocumentation:
    """One runtime check: plain Markdown sentences.

    `summary` is one line; `what_it_does` says what is run and compared; `how_it_decides` says how the verdict comes
    about, with the thresholds and their sources.
    """

    name: str
    summary: str
    what_it_does: str
    how_it_decides: str


@cache
def all_checks() -> tuple[CheckDocumentation, ...]:
    """Every check of this version, by name."""
    records = json.loads(files("services.checks").joinpath("documentation.json").read_text(encoding="utf-8"))
    return tuple(CheckDocumentation(**record) for record in records)


def check(name: str) -> CheckDocumentation | None:
    """The check of this name, if there is one."""
    return next((item for item in all_checks() if item.name == name), None)
