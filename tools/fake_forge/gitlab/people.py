"""What people do on the fake GitLab. Each sends its webhooks, with the plain token or signed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

from tools.fake_forge.deliveries import Delivery, Parcel
from tools.fake_forge.git import Files, GitRepository
from tools.fake_forge.gitlab.hub import GitLabHub
from tools.fake_forge.gitlab.notes import add_note, add_system_note, place_of, remove_note, reply_to, start_discussion
from tools.fake_forge.gitlab.state import DEVELOPER, Discussion, MergeRequest, Note, Project, Status


class GitLab:
    """`forge.gitlab`: a small GitLab below `{url}/api/v4`, and git below `secure_url`.

    The bot is `bot`, its access token `token` (more by `new_token`); webhooks go to `webhook_url`, with `webhook_token`
    in `X-Gitlab-Token` (None: not) and signed by `signing_token` (None: not), which begins with `whsec_`. Requests,
    writes, violations, failures and the clock are the forge's own; kinds of writes are `note.create`, `note.update`,
    `note.delete`, `discussion.create`, `discussion.reply`, `discussion.resolve`, `discussion.unresolve`,
    `status.create`, `award.create`.
    """

    def __init__(self, hub: GitLabHub, git_root: Path) -> None:
        self._hub = hub
        self._state = hub.state
        self._git_root = git_root
        self.bot = hub.state.bot.username
        self.token = hub.new_access_token()

    @property
    def webhook_url(self) -> str | None:
        return self._hub.courier.url

    @webhook_url.setter
    def webhook_url(self, url: str | None) -> None:
        self._hub.courier.url = url

    @property
    def webhook_token(self) -> str | None:
        return self._hub.token

    @webhook_token.setter
    def webhook_token(self, token: str | None) -> None:
        self._hub.token = token

    @property
    def signing_token(self) -> str | None:
        return self._hub.signing_token

    @signing_token.setter
    def signing_token(self, token: str | None) -> None:
        self._hub.signing_token = token

    @property
    def deliveries(self) -> list[Delivery]:
        """Every sending of a webhook so far, in order."""
        return list(self._hub.courier.log)

    def settle(self) -> None:
        """Return when all webhooks that the bot's own writes brought about have been sent."""
        self._hub.courier.settle()

    def clone_url(self, project: Project) -> str:
        return f"{self._hub.web}/{project.path}.git"

    # People, projects, tokens

    def new_token(self, *, hours: float | None = None) -> str:
        """Another access token of the bot; it ends after so many hours of the forge's clock."""
        with self._acting():
            text = self._hub.new_access_token()
            if hours is not None:
                self._state.tokens[text] = self._state.world.clock.now() + timedelta(hours=hours)
            return text

    def revoke(self, token: str) -> None:
        with self._acting():
            del self._state.tokens[token]

    def create_project(
        self, path: str, files: Files | None = None, *, private: bool = True, bot_level: int = DEVELOPER
    ) -> Project:
        """A project with one commit of these files, of which the bot is a member; silently. Groups may be nested."""
        with self._acting():
            project = self._new_project(path, private=private)
            if bot_level:
                project.members[self.bot] = bot_level
            self._commit(project, project.default_branch, files or {"README.md": "# Demo\n"}, "First commit", by="root")
            return project

    def set_access(self, project: Project, username: str, level: int) -> None:
        """Make somebody a member with that access level; 0 takes it away."""
        with self._acting():
            self._state.user(username)
            if level:
                project.members[username] = level
            else:
                project.members.pop(username, None)

    def user_id(self, username: str) -> int:
        return self._state.user(username).id

    # Merge requests

    def open_merge_request(
        self,
        project: Project,
        files: Files,
        *,
        by: str = "ada",
        branch: str = "feature",
        fork: bool = False,
        title: str = "A change",
        draft: bool = False,
    ) -> MergeRequest:
        """Push a branch with one commit, and open a merge request for it; `fork` does so from `by`'s own fork."""
        with self._acting():
            author, start = self._state.user(by), project.branches[project.default_branch]
            source = self._fork(project, by) if fork else project
            if not fork:
                project.members.setdefault(by, DEVELOPER)
            sha = self._commit(source, branch, files, title, by=by, parent=start)
            if not fork:
                self._hub.announce_push(project, branch, "0" * 40, sha, by=author)
            now = self._state.world.clock.now()
            iid = self._state.world.new_id(f"merge request of {project.id}", 1)
            merge_request = MergeRequest(
                id=self._state.world.new_id("merge request", 200_001),
                iid=iid,
                project=project,
                source=source,
                source_branch=branch,
                target_branch=project.default_branch,
                start_sha=start,
                head_sha=sha,
                title=title,
                author=author,
                draft=draft,
                created_at=now,
                updated_at=now,
            )
            project.merge_requests[iid] = merge_request
            self._publish(merge_request)
            self._hub.announce_merge_request("open", merge_request, author)
            return merge_request

    def push(self, merge_request: MergeRequest, files: Files, *, by: str | None = None) -> str:
        """Another commit on its branch. Its name."""
        return self._push(merge_request, files, merge_request.head_sha, by=by)

    def force_push(self, merge_request: MergeRequest, files: Files, *, by: str | None = None) -> str:
        """Replace all of its commits by this one. Its name."""
        return self._push(merge_request, files, merge_request.base_sha, by=by)

    def _push(self, merge_request: MergeRequest, files: Files, parent: str, *, by: str | None) -> str:
        with self._acting():
            who = self._state.user(by or merge_request.author.username)
            before, source = merge_request.head_sha, merge_request.source
            branch = merge_request.source_branch
            sha = self._commit(source, branch, files, "Another change", by=who.username, parent=parent)
            if source is merge_request.project:
                self._hub.announce_push(source, branch, before, sha, by=who)
            merge_request.head_sha = sha
            merge_request.start_sha = merge_request.project.branches[merge_request.target_branch]
            merge_request.updated_at = self._state.world.clock.now()
            self._publish(merge_request)
            for discussion in merge_request.discussions:
                discussion.follow()
            add_system_note(self._hub, merge_request, who, "added 1 commit")
            self._hub.announce_merge_request("update", merge_request, who, oldrev=before)
            return sha

    def close_merge_request(self, merge_request: MergeRequest, *, by: str = "ada") -> None:
        with self._acting():
            merge_request.state = "closed"
            self._hub.announce_merge_request("close", merge_request, self._state.user(by))

    def reopen_merge_request(self, merge_request: MergeRequest, *, by: str = "ada") -> None:
        with self._acting():
            merge_request.state = "opened"
            self._hub.announce_merge_request("reopen", merge_request, self._state.user(by))

    def merge(self, merge_request: MergeRequest, *, by: str = "ada") -> str:
        """Merge with a merge commit. Its name. Raises `RuntimeError` on conflicts."""
        with self._acting():
            project, target, now = merge_request.project, merge_request.target_branch, self._state.world.clock.now()
            before = project.branches[target]
            sha = project.git.merge(before, merge_request.head_sha, "Merge", author=by, at=now)
            project.git.set_ref(f"refs/heads/{target}", sha)
            project.branches[target] = sha
            merge_request.state, merge_request.merge_commit = "merged", sha
            self._hub.announce_push(project, target, before, sha, by=self._state.user(by))
            self._hub.announce_merge_request("merge", merge_request, self._state.user(by))
            return sha

    # Conversation

    def comment(self, merge_request: MergeRequest, body: str, *, by: str = "ada") -> Note:
        """A comment that stands alone, a command to the bot perhaps."""
        with self._acting():
            return add_note(self._hub, merge_request, self._state.user(by), body)

    def start_discussion(
        self, merge_request: MergeRequest, path: str, line: int, body: str, *, by: str = "ada"
    ) -> Discussion:
        """A thread at an added line. Raises `Refusal` if it is none."""
        with self._acting():
            place = place_of(merge_request, path, line)
            return start_discussion(self._hub, merge_request, self._state.user(by), body, position=place)

    def reply(self, discussion: Discussion, body: str, *, by: str = "ada") -> Note:
        with self._acting():
            return reply_to(self._hub, discussion, self._state.user(by), body)

    def delete_note(self, note: Note) -> None:
        """Somebody deletes a note: GitLab sends no webhook."""
        with self._acting():
            remove_note(note)

    def resolve(self, discussion: Discussion, *, by: str = "ada") -> None:
        """GitLab sends no webhook."""
        with self._acting():
            discussion.resolved_by = self._state.user(by)

    # What there is

    def notes(self, merge_request: MergeRequest) -> list[Note]:
        """The notes that somebody wrote, oldest first."""
        with self._state.world.lock:
            return [note for note in merge_request.notes() if not note.system]

    def discussions(self, merge_request: MergeRequest) -> list[Discussion]:
        """Threads that can be resolved, oldest first."""
        with self._state.world.lock:
            return [each for each in merge_request.discussions if not each.individual]

    def statuses(self, project: Project, sha: str) -> list[Status]:
        with self._state.world.lock:
            return [each for each in project.statuses if each.sha == sha]

    # Webhooks by hand

    def send(self, event: str, payload: Mapping[str, Any] | bytes, **headers: str | bytes | None) -> Delivery:
        """Send anything as a webhook. Headers replace those that it would have, by name with `_` for `-`; None: not."""
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        guid = str(uuid.uuid4())
        told = {name.lower(): value for name, value in self._hub.headers(event, guid, body).items()}
        for name, value in headers.items():
            key = name.replace("_", "-").lower()
            told.pop(key, None)
            if value is not None:
                told[key] = value
        return self._hub.courier.send(Parcel(guid, event, None, told, body))

    def redeliver(self, delivery: Delivery) -> Delivery:
        """The same bytes and headers once more."""
        return self._hub.courier.send(Parcel.again(delivery))

    def _acting(self) -> AbstractContextManager[None]:
        return self._hub.courier.acting(self._state.world.lock)

    def _new_project(self, path: str, *, private: bool, fork_of: Project | None = None) -> Project:
        number = self._state.world.new_id("gitlab project", 501)
        git = GitRepository.create(self._git_root / f"gitlab-{number}.git")
        project = Project(number, path, git, private, "main", self._state.world.clock.now(), fork_of)
        self._state.projects[number] = project
        return project

    def _fork(self, project: Project, owner: str) -> Project:
        found = next((each for each in self._state.projects.values() if each.path == f"{owner}/{project.name}"), None)
        if found is None:
            found = self._new_project(f"{owner}/{project.name}", private=project.private, fork_of=project)
            for branch, sha in project.branches.items():
                found.git.fetch(project.git, sha, f"refs/heads/{branch}")
                found.branches[branch] = sha
        return found

    def _commit(
        self, project: Project, branch: str, files: Files, message: str, *, by: str, parent: str | None = None
    ) -> str:
        now = self._state.world.clock.now()
        sha = project.git.commit(f"refs/heads/{branch}", files, message, parent=parent, author=by, at=now)
        project.branches[branch] = sha
        return sha

    def _publish(self, merge_request: MergeRequest) -> None:
        ref = f"refs/merge-requests/{merge_request.iid}/head"
        if merge_request.source is merge_request.project:
            merge_request.project.git.set_ref(ref, merge_request.head_sha)
        else:
            merge_request.project.git.fetch(merge_request.source.git, merge_request.head_sha, ref)
