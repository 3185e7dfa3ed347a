"""What an operator watches: queues, workers, the reconciler, what came of the work. Reads only."""

from __future__ import annotations

from services.oversight.service import Figures, OversightService, State

__all__ = ["Figures", "OversightService", "State"]
