"""What people do on the fake GitHub: all of it; here they talk, re-run checks, and send webhooks by hand."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from tools.fake_forge.deliveries import Delivery, Parcel
from tools.fake_forge.github.authors import Authors
from tools.fake_forge.github.comments import add_comment, remove_comment
from tools.fake_forge.github.reviews import add_to_thread, remove_from_thread, start_thread
from tools.fake_forge.world import (
    CheckRun,
    IssueComment,
    PullRequest,
    Repository,
    ReviewComment,
    Thread,
)


class People(Authors):
    """Actions of people. Each sends its signed webhooks, and returns when the receiver has answered."""

    def comment(self, pull: PullRequest, body: str, *, by: str = "ada") -> IssueComment:
        """A comment of a person, a command to the bot perhaps."""
        with self._acting():
            return add_comment(self._hub, pull, self._world.account(by), body)

    def delete_comment(self, comment: IssueComment | ReviewComment, *, by: str = "ada") -> None:
        """A person deletes a comment, his own or the bot's."""
        with self._acting():
            remove = remove_comment if isinstance(comment, IssueComment) else remove_from_thread
            remove(self._hub, comment, self._world.account(by))  # type: ignore[arg-type]

    def start_thread(self, pull: PullRequest, path: str, line: int, body: str, *, by: str = "ada") -> Thread:
        """A person comments on a line of the new side. Raises `Refusal` for lines outside the diff."""
        with self._acting():
            place = {"path": path, "line": line, "side": "RIGHT", "body": body}
            return start_thread(self._hub, pull, self._world.account(by), place)

    def reply(self, thread: Thread, body: str, *, by: str = "ada") -> ReviewComment:
        with self._acting():
            return add_to_thread(self._hub, thread, self._world.account(by), body)

    def resolve(self, thread: Thread, *, by: str = "ada") -> None:
        with self._acting():
            thread.resolved_by = self._world.account(by)
            self._announce_thread("resolved", thread, by)

    def unresolve(self, thread: Thread, *, by: str = "ada") -> None:
        with self._acting():
            thread.resolved_by = None
            self._announce_thread("unresolved", thread, by)

    def _announce_thread(self, action: str, thread: Thread, by: str) -> None:
        pull, hub = thread.pull, self._hub
        told = {"pull_request": hub.shapes.simple_pull(pull), "thread": hub.shapes.thread(thread)}
        sender = self._world.account(by)
        hub.announce("pull_request_review_thread", action, sender, told, repository=pull.repository)

    # Checks

    def rerequest(self, run: CheckRun, *, by: str = "ada") -> None:
        """ "Re-run" on a check run."""
        with self._acting():
            self._hub.announce_run("rerequested", run, self._world.account(by))

    def request_action(self, run: CheckRun, identifier: str, *, by: str = "ada") -> None:
        """A button that the check run offers."""
        with self._acting():
            told = {"requested_action": {"identifier": identifier}}
            self._hub.announce_run("requested_action", run, self._world.account(by), **told)

    def rerequest_suite(self, repository: Repository, sha: str, *, by: str = "ada") -> None:
        """ "Re-run all checks"."""
        with self._acting():
            told = {"check_suite": self._hub.shapes.check_suite(self._world.suite(repository, sha))}
            self._hub.announce("check_suite", "rerequested", self._world.account(by), told, repository=repository)

    # Webhooks by hand

    def ping(self) -> None:
        """What GitHub sends when the App's webhook is set up."""
        with self._acting():
            hook = {
                "type": "App",
                "id": 7001,
                "name": "web",
                "active": True,
                "events": list(self._hub.app.events),
                "config": {"content_type": "json", "insecure_ssl": "0", "url": self._hub.courier.url or ""},
                "created_at": "2026-01-01T00:00:00Z",
                "updated_at": "2026-01-01T00:00:00Z",
                "app_id": self._hub.app.app_id,
            }
            told = {"zen": "Keep it logically awesome.", "hook_id": 7001, "hook": hook}
            first = next(iter(self._world.installations.values()), None)
            self._hub.announce("ping", None, self._hub.app.owner, told, installation=first)

    def send(
        self,
        event: str,
        payload: Mapping[str, Any] | bytes,
        *,
        secret: str | None = None,
        signature: str | bytes | None = None,
        guid: str | None = None,
    ) -> Delivery:
        """Send anything as a webhook: an example payload, bytes that are no JSON, a forged one.

        `secret` signs with another secret; `signature` stands in the header as it is, well-formed or not, ASCII or not
        (empty: there is no such header); `guid` is the delivery's.
        """
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        guid = guid or str(uuid.uuid4())
        headers = self._hub.headers(event, guid, body, secret if secret is not None else self._hub.secret)
        if signature is not None:
            headers["X-Hub-Signature-256"] = signature
            if not signature:
                del headers["X-Hub-Signature-256"]
        action = payload.get("action") if not isinstance(payload, bytes) else None
        return self._hub.courier.send(Parcel(guid, event, action, headers, body))

    def redeliver(self, delivery: Delivery) -> Delivery:
        """The same bytes under the same GUID once more: GitHub's redelivery, or an attacker's replay."""
        return self._hub.courier.send(Parcel.again(delivery))
