"""The parts of the fake GitLab that operations and people share: state, JSON, senders, webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from tools.fake_forge.deliveries import Courier, Parcel
from tools.fake_forge.exchange import Refusal
from tools.fake_forge.gitlab.shapes import GitLabShapes
from tools.fake_forge.gitlab.state import GitLabState, MergeRequest, Note, Project, User
from tools.fake_forge.world import World

Headers = dict[str, str | bytes]


class GitLabHub:
    """Everything but the rules."""

    def __init__(self, world: World, web: str) -> None:
        self.state = GitLabState(world)
        self.shapes = GitLabShapes(web)
        self.web = web
        self.courier = Courier(world.clock, first_id=1)
        self.token: str | None = "a plain secret"
        self.signing_token: str | None = None

    def new_access_token(self) -> str:
        """Another token of the bot, for a year as GitLab has it at most."""
        text = f"glpat-{secrets.token_urlsafe(20)}"
        self.state.tokens[text] = None
        return text

    def sender(self, headers: Mapping[str, str]) -> User | None:
        """Whose token it is; None if there is none. Raises `Refusal` for a token that isn't good."""
        text = headers.get("private-token") or headers.get("authorization", "").removeprefix("Bearer ")
        if not text:
            return None
        return self.known(text)

    def known(self, text: str) -> User:
        """Whose token that is. Raises `Refusal`."""
        end = self.state.tokens.get(text, "unknown")
        if end == "unknown":
            raise _unauthorised("401 Unauthorized", "message")
        if end is not None and end <= self.state.world.clock.now():  # type: ignore[operator]
            raise _unauthorised("invalid_token", "error")
        return self.state.bot

    # Webhooks

    def announce(self, event: str, payload: Mapping[str, Any], *, soon: bool = False) -> None:
        """Make a webhook; `event` is GitLab's name of it, as `Merge Request Hook`."""
        body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        guid = str(uuid.uuid4())
        action = payload.get("object_attributes", {}).get("action")
        parcel = Parcel(guid, event, action, self.headers(event, guid, body), body, repository=payload["project"]["id"])
        if soon:
            self.courier.post(parcel)
        else:
            self.courier.put(parcel)

    def headers(self, event: str, guid: str, body: bytes) -> Headers:
        """With the plain token, with a signature, with both, or with neither: as the webhook is set up."""
        headers: Headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitLab/18.11.0",
            "Idempotency-Key": guid,
            "X-Gitlab-Event": event,
            "X-Gitlab-Event-UUID": str(uuid.uuid4()),
            "X-Gitlab-Instance": self.web,
            "X-Gitlab-Webhook-UUID": "5f7cd1b5-2b6d-4d5c-8f57-5a3d0b6b7a11",
        }
        if self.token is not None:
            headers["X-Gitlab-Token"] = self.token.encode()
        if self.signing_token is not None:
            seconds = str(int(self.state.world.clock.now().timestamp()))
            headers["webhook-id"], headers["webhook-timestamp"] = guid, seconds
            headers["webhook-signature"] = standard_signature(self.signing_token, guid, seconds, body)
        return headers

    def announce_merge_request(
        self, action: str, merge_request: MergeRequest, by: User, *, oldrev: str | None = None
    ) -> None:
        attributes = self.shapes.merge_request_in_webhook(merge_request) | {"action": action}
        if oldrev is not None:
            attributes["oldrev"] = oldrev
        self.announce(
            "Merge Request Hook",
            {
                "object_kind": "merge_request",
                "event_type": "merge_request",
                "user": self.shapes.user_in_webhook(by),
                "project": self.shapes.project_in_webhook(merge_request.project),
                "repository": self._repository(merge_request.project),
                "object_attributes": attributes,
                "labels": [],
                "changes": {},
            },
        )

    def announce_note(self, action: str, note: Note, *, soon: bool = False) -> None:
        merge_request = note.discussion.merge_request
        self.announce(
            "Note Hook",
            {
                "object_kind": "note",
                "event_type": "note",
                "user": self.shapes.user_in_webhook(note.author),
                "project_id": merge_request.project.id,
                "project": self.shapes.project_in_webhook(merge_request.project),
                "repository": self._repository(merge_request.project),
                "object_attributes": self.shapes.note_in_webhook(note) | {"action": action},
                "merge_request": self.shapes.merge_request_in_webhook(merge_request),
            },
            soon=soon,
        )

    def announce_push(self, project: Project, branch: str, before: str, sha: str, *, by: User) -> None:
        commits = project.git.commits(before, sha) if int(before, 16) else [sha]
        self.announce(
            "Push Hook",
            {
                "object_kind": "push",
                "event_name": "push",
                "before": before,
                "after": sha,
                "ref": f"refs/heads/{branch}",
                "ref_protected": branch == project.default_branch,
                "checkout_sha": sha,
                "user_id": by.id,
                "user_name": by.username.capitalize(),
                "user_username": by.username,
                "project_id": project.id,
                "project": self.shapes.project_in_webhook(project),
                "commits": [self.shapes.commit_in_webhook(project, each) for each in commits[-20:]],
                "total_commits_count": len(commits),
                "repository": self._repository(project),
            },
        )

    def _repository(self, project: Project) -> dict[str, Any]:
        told = self.shapes.project(project)
        return {
            "name": project.name,
            "url": told["ssh_url_to_repo"],
            "description": None,
            "homepage": told["web_url"],
            "git_http_url": told["http_url_to_repo"],
        }


def standard_signature(signing_token: str, number: str, seconds: str, body: bytes) -> str:
    """Standard Webhooks: `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, under the key in `whsec_…`."""
    key = base64.b64decode(signing_token.removeprefix("whsec_"))
    signed = f"{number}.{seconds}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


def _unauthorised(message: str, key: str) -> Refusal:
    refusal = Refusal(401, message, headers={"www-authenticate": 'Bearer realm="GitLab"'})
    refusal.body = {key: message}
    return refusal
