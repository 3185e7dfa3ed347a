"""Takes a webhook: is it signed, is it known, does it concern us? Then it is written down and the doorbell is rung.

Nothing else happens while the forge waits for its answer, which it does for ten seconds. A redelivery has the id of the
first delivery and is harmless. This module must not know what is done with an event, nor HTTP frameworks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import structlog
from pydantic import SecretStr

from services.database import Database
from services.database.base import utc_now
from services.forges import repository, task_repository
from services.forges.events import EVENT, Event
from services.forges.github_events import read_github
from services.forges.gitlab_events import read_gitlab
from services.forges.queueing import queue_task
from services.forges.signatures import Delivery, WebhookSecrets, verify_github, verify_gitlab
from services.forges.webhook_errors import ForgeNotSetError, UnreadableWebhookError
from services.jobs.model import CONTROL_QUEUE
from services.settings import Settings

log = structlog.get_logger(__name__)

Forge = Literal["github", "gitlab"]
Outcome = Literal["queued", "ignored", "duplicate"]
# What GitHub sends at most.
LARGEST_WEBHOOK: Final = 25 * 2**20


@dataclass(frozen=True, slots=True)
class Received:
    """What became of a webhook: it waits for a worker, it doesn't concern us, or it came before."""

    outcome: Outcome
    delivery: str


class Webhooks:
    """The door that forges knock at."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def require_set(self, forge: Forge) -> None:
        """Raises `ForgeNotSetError` where there is no secret to check a signature with."""
        self._secrets(forge)

    def receive(self, forge: Forge, body: bytes, headers: Mapping[str, str]) -> Received:
        """Take one webhook; header names in lower case.

        Raises `ForgeNotSetError`, `SignatureError`, or `UnreadableWebhookError` for one that is signed and not usable.
        """
        delivery = self._verified(forge, body, headers)
        event = self._read(forge, delivery.event, body)
        if event is None:
            return Received("ignored", delivery.identifier)
        with self._database.unit_of_work() as uow:
            row_id = task_repository.record_delivery(
                uow.session,
                forge=forge,
                delivery_id=delivery.identifier,
                event=delivery.event,
                action=event.action,
                payload=EVENT.dump_python(event, mode="json"),
            )
            if not row_id:
                return Received("duplicate", delivery.identifier)
            queue_task(
                uow.session,
                "delivery",
                row_id,
                installation_id=repository.find_installation(uow.session, forge, event.installation.external_id),
                delivery_id=row_id,
            )
            uow.ring(CONTROL_QUEUE)
        log.info("webhook_received", forge=forge, event_name=delivery.event, action=event.action)
        return Received("queued", delivery.identifier)

    def _verified(self, forge: Forge, body: bytes, headers: Mapping[str, str]) -> Delivery:
        secrets = self._secrets(forge)
        if forge == "github":
            return verify_github(body, headers, secrets)
        return verify_gitlab(body, headers, secrets, now=utc_now())

    def _secrets(self, forge: Forge) -> WebhookSecrets:
        settings = self._settings
        values: Sequence[SecretStr]
        if forge == "github":
            is_set, values = settings.github_is_set, settings.github_webhook_secrets
        else:
            is_set, values = settings.gitlab_is_set, settings.gitlab_webhook_secrets
        if not is_set:
            raise ForgeNotSetError(
                f"this service is not connected with {_NAMES[forge]}: see GRADPROOF_{forge.upper()}_… in the settings",
                forge=forge,
            )
        return WebhookSecrets(tuple(value.get_secret_value() for value in values))

    def _read(self, forge: Forge, event: str, body: bytes) -> Event | None:
        try:
            payload: Any = json.loads(body)
        except (ValueError, RecursionError):
            raise UnreadableWebhookError(
                "the webhook is no JSON: choose application/json as its content type"
            ) from None
        if not isinstance(payload, dict):
            raise UnreadableWebhookError("the webhook is no JSON object")
        if forge == "github":
            return read_github(event, payload)
        return read_gitlab(event, payload, server=gitlab_server(self._settings))


_NAMES: Final = {"github": "GitHub", "gitlab": "GitLab"}


def gitlab_server(settings: Settings) -> str:
    """What stands for an installation at GitLab: its server."""
    return urlsplit(settings.gitlab_url).netloc
