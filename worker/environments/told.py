"""The layer of a snapshot, and a line about it for the report of the analysis."""

from __future__ import annotations

from pathlib import Path

from services.jobs.model import Claim
from worker.environments.layers import layer_for
from worker.tools import Tools


def packages_for(source: Path, claim: Claim, tools: Tools) -> Path | None:
    """The packages that a run of the snapshot at `source` gets beside those of its interpreter."""
    layer = layer_for(source, tools.settings)
    if layer is None:
        return None
    told = layer.told()
    tools.report(claim, lambda: tools.results.environment(claim, told))
    return layer.packages_at
