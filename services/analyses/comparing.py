"""What an analysis is compared with: the results of its base, and those of earlier runs of the same code.

Gathers plain values for `services.gates.classes`, which decides. This module never commits.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from services.analyses.model import AnalysisOptions
from services.analyses.models import SETTLED_STATUSES, AnalysisRow
from services.checks.comparing_repository import base_checks, base_devices, base_targets, earlier_verdicts
from services.gates.classes import Comparand


def comparand_of(session: Session, row: AnalysisRow) -> Comparand | None:
    """What the analysis is compared with; None without a base."""
    base = None if row.base_id is None else session.get(AnalysisRow, row.base_id)
    return None if base is None else comparand(session, row, base)


def comparand(session: Session, row: AnalysisRow, base: AnalysisRow, names: Collection[str] | None = None) -> Comparand:
    """The same for any two analyses; with what is needed for targets of these names only, if given."""
    torch, devices = base.tool.get("torch"), base.tool.get("devices", [])
    assert isinstance(devices, list)
    return Comparand(
        ran=base.status in SETTLED_STATUSES and not AnalysisOptions.model_validate(base.options).static_only,
        torch=None if torch is None else str(torch),
        # A result of a device is worth as much as the worker's word that it had it.
        devices=frozenset({*map(str, devices), *base_devices(session, base.id)}),
        targets=base_targets(session, base.id, names),
        checks=base_checks(session, base.id, names),
        earlier=earlier_verdicts(session, row.id, row.project_id, names),
    )
