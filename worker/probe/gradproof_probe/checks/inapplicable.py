"""Errors that say that a check does not apply: to what waits for other ranks, and to what runs its own backward.

This module must not judge what ran.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradproof_probe.checks.base import CheckResult

# What torch raises where a collective is called and no group was made.
_NO_GROUP: Final = "process group has not been initialized"
# What it raises where the graph of a loss is asked for that the function itself has walked.
_WALKED: Final = "backward through the graph a second time"
_WHY: Final = {
    _NO_GROUP: "it waits for other ranks: ddp_consistency runs it in two",
    _WALKED: "it runs the backward of what it returns itself: training_step looks at the step it takes",
}


def where_it_applies(result: CheckResult, *, trains: bool) -> CheckResult:
    """The result; `skipped` where its error only says that the check does not apply. `trains`: the target does."""
    if result.verdict != "error":
        return result
    found = next((why for said, why in _WHY.items() if said in result.summary and (trains or said is _NO_GROUP)), None)
    return result if found is None else replace(result, verdict="skipped", summary=found)
