"""What waits for other ranks can't be run by checks that have one process: that says nothing about the target.

This module must not judge what ran.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradproof_probe.checks.base import CheckResult

# What torch raises where a collective is called and no group was made.
_NO_GROUP: Final = "process group has not been initialized"


def without_other_ranks(result: CheckResult) -> CheckResult:
    """Where a check could only say that there is no process group, it does not apply."""
    if result.verdict != "error" or _NO_GROUP not in result.summary:
        return result
    return replace(result, verdict="skipped", summary="it waits for other ranks: ddp_consistency runs it in two")
