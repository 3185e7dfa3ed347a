"""What goes wrong with settings."""

from __future__ import annotations

from services.problems import BadInputError


class InvalidSettingError(BadInputError):
    """A setting has a value that can't be; names the variable."""

    code = "invalid-setting"
    title = "A setting can't be used"
