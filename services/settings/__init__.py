"""Everything an operator can set, in one frozen class.

Read from the environment (`GRADPROOF_…`); durations are timedeltas and sizes are bytes. Nothing else in the product
reads environment variables. Unsafe values for production are refused here, with the name of the variable.
"""

from __future__ import annotations

from services.settings.model import Settings

__all__ = ["Settings"]
