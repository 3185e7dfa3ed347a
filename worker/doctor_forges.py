"""Whether GitHub and GitLab can be spoken to, as `gradproof doctor` tells it: nothing about a forge that is not set.

A key or token is tried by asking who we are with it, which writes nothing. None of them is ever shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from services.forges.connections import Forges
from services.forges.errors import ForgeError
from services.settings import Settings

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "github": ("github_app_id", "github_private_key_file", "github_webhook_secrets"),
    "gitlab": ("gitlab_url", "gitlab_token", "gitlab_webhook_secrets"),
}


def examine_forges(settings: Settings) -> Iterator[tuple[str, bool, str, str]]:
    """Of each forge that is set, or half set: its name, whether it works, what was found, and what to do."""
    for forge, names in _NEEDED.items():
        missing = [f"GRADPROOF_{name.upper()}" for name in names if not _is_set(settings, name)]
        if len(missing) == len(names):
            continue
        if missing:
            yield forge, False, f"{', '.join(missing)} is not set: nothing is taken from there", "see docs/bot.md"
            continue
        yield (forge, *_asked(forge, settings))


def _is_set(settings: Settings, name: str) -> bool:
    value = getattr(settings, name)
    return bool(value.get_secret_value() if hasattr(value, "get_secret_value") else value)


def _asked(forge: str, settings: Settings) -> tuple[bool, str, str]:
    forges = Forges(settings)
    try:
        if forge == "github":
            who, where = forges.github().identity(), settings.github_api_url
        else:
            where = settings.gitlab_url
            with forges.client("gitlab", "") as client:
                who = client.identity()
    except ForgeError as error:
        return False, error.message, f"look at GRADPROOF_{forge.upper()}_…; see docs/bot.md"
    finally:
        forges.close()
    return True, f"{where} answers; comments are by {who.login}", ""
