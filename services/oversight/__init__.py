"""What an operator watches: queues, workers, the reconciler, what came of the work. Reads only."""

from __future__ import annotations

from services.oversight.service import Figures, OversightService, State
from services.oversight.workplace import Workplace, WorkplaceService

__all__ = ["Figures", "OversightService", "State", "Workplace", "WorkplaceService"]
