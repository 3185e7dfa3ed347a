"""Policy over new findings and check results: passes or fails, and says which condition decided."""

from __future__ import annotations

from services.gates.evaluate import evaluate
from services.gates.policy import GatePolicy, RuleMode, retain

__all__ = ["GatePolicy", "RuleMode", "evaluate", "retain"]
