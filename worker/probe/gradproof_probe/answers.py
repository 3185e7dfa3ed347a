"""Children of a target's process: where they work, and what they answered.

A child may have run submitted code, so that what it says may be anything; here it only has to have a form that the
code around can read. What it means is judged by the supervisor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from gradproof_probe.missing_modules import install
from gradproof_probe.offline import go_offline
from gradproof_probe.processes import End, LineWriter, watch

Answer = dict[str, Any]
ANSWERS: Final = ("harness", "parts", "unit", "check", "fix")


def settle_in(scratch: Path, stand_ins: Collection[str]) -> None:
    """A directory of its own for a target's process, no network, and stand-ins for modules known to be missing."""
    home = scratch / f"target-{os.getpid()}"
    home.mkdir()
    os.chdir(home)
    os.environ["TMPDIR"] = os.environ["HOME"] = str(home)
    go_offline()
    install(stand_ins)


def listen(work: Callable[[LineWriter], None], deadline: float) -> tuple[dict[str, Answer], End]:
    """By its type the last line of each that the child said, and how it ended."""
    said: dict[str, Answer] = {}

    def hear(line: bytes) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict) and value.get("type") in ANSWERS and _is_whole(value):
            said[value["type"]] = value

    end = watch(work, deadline=lambda: deadline, on_line=hear)
    return said, end


def _is_whole(answer: Answer) -> bool:
    """The answer of a check has a result with its evidence."""
    result = answer.get("result")
    return answer["type"] != "check" or (isinstance(result, dict) and isinstance(result.get("evidence"), dict))
