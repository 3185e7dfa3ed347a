"""Everything an operator can set, in one frozen class.

Read from the environment (`GRADPROOF_…`); durations are timedeltas and sizes are bytes. Nothing else in the product
reads environment variables. Unsafe values for production are refused here, with the name of the variable.
"""

from __future__ import annotations

from services.settings.errors import InvalidSettingError
from services.settings.model import Settings
from services.settings.reading import read_settings

__all__ = ["InvalidSettingError", "Settings", "read_settings"]
