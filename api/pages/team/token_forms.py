"""The form that makes a token, wherever it stands: what it offers, and what it says."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Form
from pydantic import BaseModel, ConfigDict

from services.accounts import Scope

SCOPES = (
    (Scope.SUBMIT.value, "read and submit analyses"),
    (Scope.READ.value, "read only"),
    (Scope.TRIAGE.value, "also decide about findings"),
    (Scope.ADMIN.value, "everything that you may"),
)


class NewToken(BaseModel):
    """What was asked for. `days` is empty for a token that never expires."""

    model_config = ConfigDict(extra="ignore")

    name: str = ""
    scope: str = ""
    days: Literal["", "30", "90", "365"] = "90"

    @property
    def lifetime(self) -> timedelta | None:
        """For how long it is good."""
        return timedelta(days=int(self.days)) if self.days else None


NewTokenForm = Annotated[NewToken, Form()]
