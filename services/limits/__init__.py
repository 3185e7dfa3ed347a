"""How much one caller may ask for, and how much work may wait: rates and quotas, and what is said when one is used up.

Whoever asks for too much hears which limit it was, how much of it is used and when it is free again; nothing is
queued that nobody will have the patience for.
"""

from __future__ import annotations

from services.limits.errors import LimitReachedError
from services.limits.quotas import require_room
from services.limits.rates import Rates

__all__ = ["LimitReachedError", "Rates", "require_room"]
