"""The limits of a run, as far as a result can depend on them. This module must not know results."""

from __future__ import annotations

from collections.abc import Mapping

from services.settings import Settings


def bounds_of(settings: Settings) -> Mapping[str, float]:
    """Seconds of a check, of a target, of inductor; bytes of memory; whether there are walls around it at all."""
    return {
        "check_s": settings.check_wall.total_seconds(),
        "target_s": settings.target_wall.total_seconds(),
        "inductor_s": settings.inductor_budget.total_seconds(),
        "memory": float(settings.sandbox_memory),
        "sandbox": float(settings.sandbox),
    }
