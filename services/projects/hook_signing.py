"""How calls of hooks are signed, as Standard Webhooks has it: HMAC-SHA256 over id, time and body.

The secret of a hook is derived from its id and the key of the installation, so that it can be shown again and is not
kept. Pure but for reading that key.
"""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import Final

from services.accounts.secret import secret_key
from services.settings import Settings

_PREFIX: Final = "whsec_"


def hook_secret(settings: Settings, hook_id: str) -> str:
    """The secret of a hook as its owner puts it into the other side."""
    return _PREFIX + base64.b64encode(_key(settings, hook_id)).decode()


def signed_headers(settings: Settings, hook_id: str, *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one call. The id stays the same when it is repeated, the time does not."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(_key(settings, hook_id), signed, sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


def _key(settings: Settings, hook_id: str) -> bytes:
    return hmac.new(secret_key(settings), f"gradproof hook 1\0{hook_id}".encode(), sha256).digest()
