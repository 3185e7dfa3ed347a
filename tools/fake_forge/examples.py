"""Real payloads of GitHub's webhooks, for tests of what reads them."""

from __future__ import annotations

import json
from typing import Any

from tools.fake_forge.contract import EXAMPLES


def webhook_examples() -> dict[str, dict[str, Any]]:
    """One of each kind, by event and action (`pull_request.opened`, `push`); years old some of them."""
    payloads: dict[str, dict[str, Any]] = json.loads(EXAMPLES.read_text(encoding="utf-8"))["payloads"]
    return payloads
