"""Reads the settings of this process, with errors that a person can act on."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from services.settings.errors import InvalidSettingError
from services.settings.model import Settings


def read_settings(**changes: Any) -> Settings:
    """The settings of the environment, with `changes` on top.

    Raises `InvalidSettingError`, which names the variable and what is wrong with it.
    """
    try:
        return Settings(**changes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        variable = f"GRADPROOF_{str(first['loc'][0]).upper()}: " if first["loc"] else ""
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InvalidSettingError(f"{variable}{message}") from error
    except SettingsError as error:
        # A list that is not JSON: pydantic names the field in its text.
        raise InvalidSettingError(f"{error}: lists are written as JSON") from error
