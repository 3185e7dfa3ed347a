"""What was just done, told once on the page that follows a form, with what it takes to undo it.

It travels in a short-lived, signed cookie and not in the address, where anybody could make a page of ours say anything.
This module must not know what an action means.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from services.accounts import signing_key
from services.settings import Settings

COOKIE: Final = "gradproof_notice"
_KEPT_S: Final = 60
# Browsers keep 4,096 bytes of a cookie with its name and attributes: what does not fit is told without its undoing.
_LONGEST: Final = 3_600


class Notice(BaseModel):
    """`undo` are the values of the field `finding` that a form to undo it would send; empty: it can't be undone so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    tone: str = "good"
    undo: tuple[str, ...] = ()


def leave(response: Response, settings: Settings, notice: Notice) -> None:
    """Have the next page tell it."""
    value = _seal(settings, notice)
    if len(value) > _LONGEST:
        value = _seal(settings, notice.model_copy(update={"undo": ()}))
    response.set_cookie(
        COOKIE,
        value,
        max_age=_KEPT_S,
        httponly=True,
        secure=settings.public_url.startswith("https://"),
        samesite="lax",
        path="/",
    )


def waiting(request: Request, settings: Settings) -> Notice | None:
    """What the form before left to be told; None if there is nothing, or somebody else wrote it."""
    value = request.cookies.get(COOKIE)
    return None if value is None else _open(settings, value)


def told(response: Response) -> None:
    """It was told: once is enough."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")


def _seal(settings: Settings, notice: Notice) -> str:
    packed = base64.urlsafe_b64encode(zlib.compress(notice.model_dump_json().encode(), 9)).decode()
    return f"{packed}.{_sign(settings, packed)}"


def _open(settings: Settings, value: str) -> Notice | None:
    packed, _, signature = value.rpartition(".")
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), _sign(settings, packed).encode()):
        return None
    try:
        return Notice.model_validate_json(zlib.decompress(base64.urlsafe_b64decode(packed)))
    except (ValidationError, zlib.error, binascii.Error):
        return None


def _sign(settings: Settings, text: str) -> str:
    return hmac.new(signing_key(settings), f"notice\0{text}".encode(), hashlib.sha256).hexdigest()
