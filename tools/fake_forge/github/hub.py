"""The parts of the fake GitHub that operations and people share: state, JSON, senders, webhooks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

from tools.fake_forge.clock import Clock
from tools.fake_forge.contract import contract
from tools.fake_forge.deliveries import Courier, Parcel, github_signature
from tools.fake_forge.github.authentication import Authentication
from tools.fake_forge.github.shapes import Shapes
from tools.fake_forge.github.traffic import Traffic
from tools.fake_forge.world import Account, AppIdentity, CheckRun, Installation, PullRequest, Repository, World

APP_ID: Final = 424242
# What service.md §2.2 asks for, and what GitHub sends an App that asks for it.
PERMISSIONS: Final = {"checks": "write", "contents": "read", "metadata": "read", "pull_requests": "write"}
EVENTS: Final = (
    "check_run",
    "check_suite",
    "issue_comment",
    "pull_request",
    "pull_request_review_comment",
    "pull_request_review_thread",
    "push",
    "repository",
)
# Sent to every App, subscribed or not.
_ALWAYS: Final = frozenset({"installation", "installation_repositories", "ping"})


class Hub:
    """Everything but the rules."""

    def __init__(self, clock: Clock, api: str, web: str, slug: str) -> None:
        self.world = World(clock)
        self.api = api
        self.web = web
        bot = self.world.account(f"{slug}[bot]", "Bot")
        owner = self.world.account("gradproof-makers", "Organization")
        self.app = AppIdentity(app_id=APP_ID, slug=slug, owner=owner, bot=bot, created_at=clock.now())
        self.app.permissions = dict(PERMISSIONS)
        self.app.events = list(EVENTS)
        self.shapes = Shapes(self.world, self.app, api, web)
        self.authentication = Authentication(self.world, APP_ID, self.app.client_id)
        self.courier = Courier(clock, first_id=9_000_001)
        self.secret = "an open secret"
        self.contract = contract()
        self.traffic = Traffic()
        self.resolving_needs: Literal["pull_requests", "contents"] = "pull_requests"

    def announce(
        self,
        event: str,
        action: str | None,
        sender: Account,
        payload: Mapping[str, Any],
        *,
        repository: Repository | None = None,
        installation: Installation | None = None,
        soon: bool = False,
    ) -> None:
        """Make a webhook for the App, if it is installed there, not suspended, and subscribed.

        It is sent at the end of what is going on; `soon` leaves the sending to a thread. The payload is checked against
        GitHub's description of it.
        """
        installed = installation or (self.world.installation_for(repository) if repository else None)
        if installed is None or (event not in _ALWAYS and event not in self.app.events):
            return
        if installed.suspended_at is not None and event != "installation":
            return
        whole = self._whole(action, sender, payload, repository, installed)
        name = f"{event}.{action}" if action else event
        self.world.violations += self.contract.webhook(name, whole)
        body = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()
        guid = str(uuid.uuid4())
        headers = self.headers(event, guid, body, self.secret)
        about = repository.id if repository else None
        parcel = Parcel(guid, event, action, headers, body, installation=installed.id, repository=about)
        if soon:
            self.courier.post(parcel)
        else:
            self.courier.put(parcel)

    def headers(self, event: str, guid: str, body: bytes, secret: str) -> dict[str, str | bytes]:
        """The headers of a webhook, signed."""
        return {
            "Accept": "*/*",
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/fa4e0f5",
            "X-GitHub-Delivery": guid,
            "X-GitHub-Event": event,
            "X-GitHub-Hook-ID": "7001",
            "X-GitHub-Hook-Installation-Target-ID": str(self.app.app_id),
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-Hub-Signature-256": github_signature(secret, body),
        }

    def announce_pull(
        self, action: str, pull: PullRequest, sender: Account, more: Mapping[str, Any] | None = None
    ) -> None:
        """A `pull_request` webhook."""
        told = {"number": pull.number, "pull_request": self.shapes.pull(pull), **(more or {})}
        self.announce("pull_request", action, sender, told, repository=pull.repository)

    def announce_run(self, action: str, run: CheckRun, sender: Account, **more: Any) -> None:
        """A `check_run` webhook; those that the App's own writes bring about are sent soon."""
        told = {"check_run": self.shapes.check_run_in_webhook(run), **more}
        soon = sender is self.app.bot
        self.announce("check_run", action, sender, told, repository=run.suite.repository, soon=soon)

    def _whole(
        self,
        action: str | None,
        sender: Account,
        payload: Mapping[str, Any],
        repository: Repository | None,
        installation: Installation,
    ) -> dict[str, Any]:
        whole: dict[str, Any] = ({"action": action} if action else {}) | dict(payload)
        if repository is not None:
            whole.setdefault("repository", self.shapes.repository(repository))
            if repository.owner.kind == "Organization":
                whole["organization"] = self._organization(repository.owner)
        whole["sender"] = self.shapes.user(sender)
        whole.setdefault("installation", self.shapes.installation_in_webhook(installation))
        return whole

    def _organization(self, account: Account) -> dict[str, Any]:
        user, address = self.shapes.user(account), f"{self.api}/orgs/{account.login}"
        kept = {key: user[key] for key in ("login", "id", "node_id", "avatar_url")}
        links = {f"{name}_url": f"{address}/{name}" for name in ("repos", "events", "hooks", "issues")}
        people = {"members_url": f"{address}/members{{/member}}", "public_members_url": f"{address}/public_members"}
        return kept | links | people | {"url": address, "description": None}
