"""What people do on the fake GitHub: push, open, comment, resolve, install, suspend. Each sends its signed webhooks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tools.fake_forge.deliveries import Delivery, Parcel
from tools.fake_forge.git import Files, GitRepository
from tools.fake_forge.github.comments import add_comment, remove_comment
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.github.reviews import add_to_thread, remove_from_thread, start_thread
from tools.fake_forge.world import (
    Account,
    CheckRun,
    Installation,
    IssueComment,
    PullRequest,
    Repository,
    ReviewComment,
    Role,
    Thread,
)

_NOWHERE: Final = "0" * 40


class People:
    """Actions of people. Names of people are made up as one goes: an unknown `by` is a new account."""

    def __init__(self, hub: Hub, git_root: Path) -> None:
        self._hub = hub
        self._world = hub.world
        self._git_root = git_root

    def _acting(self) -> AbstractContextManager[None]:
        return self._hub.courier.acting(self._world.lock)

    # Repositories and installations

    def create_repository(
        self,
        full_name: str,
        files: Files | None = None,
        *,
        private: bool = True,
        installed: bool = True,
        roles: Mapping[str, Role] | None = None,
        default_branch: str = "main",
    ) -> Repository:
        """A repository of an organisation, with one commit of these files; silently.

        `installed` installs the App for all of the owner's repositories, if it isn't yet.
        """
        owner_name, _, name = full_name.partition("/")
        with self._acting():
            owner = self._world.account(owner_name, "Organization")
            repository = self._new_repository(owner, name, default_branch, private=private)
            repository.roles.update(roles or {})
            for login in repository.roles:
                self._world.account(login)
            content = files or {"README.md": f"# {name}\n"}
            self._commit(repository, default_branch, content, message="First commit", author=owner_name, parent=None)
            if installed and self._world.installation_for(repository) is None:
                self._install(owner)
            return repository

    def _new_repository(
        self, owner: Account, name: str, branch: str, *, private: bool, fork_of: Repository | None = None
    ) -> Repository:
        number = self._world.new_id("repository", 2001)
        git = GitRepository.create(self._git_root / f"{number}.git", branch)
        now = self._world.clock.now()
        repository = Repository(number, owner, name, git, private, branch, now, fork_of)
        self._world.repositories[number] = repository
        return repository

    def _install(self, owner: Account) -> Installation:
        number = self._world.new_id("installation", 3001)
        installation = Installation(number, owner, dict(self._hub.app.permissions), self._world.clock.now())
        self._world.installations[number] = installation
        return installation

    def installation(self, owner: str) -> Installation:
        """The installation of that account. Raises `LookupError` if there is none."""
        for installation in self._world.installations.values():
            if installation.account.login == owner:
                return installation
        raise LookupError(f"the App is not installed at {owner}")

    def install(self, owner: str, repositories: Iterable[Repository] | None = None, *, by: str = "ada") -> Installation:
        """Install the App: for all repositories of the account, or for these."""
        with self._acting():
            account = self._world.account(owner, "Organization")
            installation = self._install(account)
            if repositories is not None:
                installation.selected = {each.id for each in repositories}
            self._announce_installation("created", installation, by, self._listed(installation))
            return installation

    def uninstall(self, owner: str, *, by: str = "ada") -> None:
        """Remove the App: its tokens are refused from now on."""
        with self._acting():
            installation = self.installation(owner)
            listed = self._listed(installation)
            del self._world.installations[installation.id]
            self._announce_installation("deleted", installation, by, listed)

    def suspend(self, owner: str, *, by: str = "ada") -> None:
        """Suspend the installation: every request with its tokens is a 403, and no events are sent."""
        with self._acting():
            installation = self.installation(owner)
            installation.suspended_at = self._world.clock.now()
            installation.suspended_by = self._world.account(by)
            self._announce_installation("suspend", installation, by, self._listed(installation))

    def unsuspend(self, owner: str, *, by: str = "ada") -> None:
        with self._acting():
            installation = self.installation(owner)
            installation.suspended_at = installation.suspended_by = None
            self._announce_installation("unsuspend", installation, by, self._listed(installation))

    def select_repositories(self, owner: str, repositories: Iterable[Repository], *, by: str = "ada") -> None:
        """Narrow or widen the installation to these; sends `installation_repositories` added and removed."""
        with self._acting():
            installation = self.installation(owner)
            before = {each.id for each in self._world.repositories.values() if installation.covers(each)}
            installation.selected = {each.id for each in repositories}
            for action, changed in (
                ("added", installation.selected - before),
                ("removed", before - installation.selected),
            ):
                if not changed:
                    continue
                told = [self._world.repositories[number] for number in sorted(changed)]
                short = [self._hub.shapes.repository_in_installation(each) for each in told]
                payload = {
                    "installation": self._hub.shapes.installation(installation),
                    "repository_selection": "selected",
                    "repositories_added": short if action == "added" else [],
                    "repositories_removed": short if action == "removed" else [],
                    "requester": None,
                }
                sender = self._world.account(by)
                self._hub.announce("installation_repositories", action, sender, payload, installation=installation)

    def set_permissions(self, owner: str, **permissions: str | None) -> None:
        """Give the installation permissions, as `checks="write"`, or take them away with None; silently.

        Tokens that are out keep what they have, as on GitHub, but for what is taken away.
        """
        with self._acting():
            installation = self.installation(owner)
            for name, level in permissions.items():
                for held in (installation.permissions, *(t.permissions for t in self._tokens(installation))):
                    if level is None:
                        held.pop(name, None)
                    elif held is installation.permissions:
                        held[name] = level

    def _tokens(self, installation: Installation) -> Iterable[Any]:
        return [token for token in self._world.tokens.values() if token.installation is installation]

    def set_role(self, repository: Repository, login: str, role: Role | None) -> None:
        """What a person may do there; None takes it away."""
        with self._acting():
            self._world.account(login)
            if role is None:
                repository.roles.pop(login, None)
            else:
                repository.roles[login] = role

    def rename(self, repository: Repository, name: str, *, by: str = "ada") -> None:
        """The old name redirects from now on."""
        with self._acting():
            old = repository.name
            self._world.moved[repository.full_name] = repository.id
            repository.name = name
            changes = {"changes": {"repository": {"name": {"from": old}}}}
            self._hub.announce("repository", "renamed", self._world.account(by), changes, repository=repository)

    def transfer(self, repository: Repository, owner: str, *, by: str = "ada") -> None:
        """To another organisation, where the App is installed too (else the webhook reaches nobody)."""
        with self._acting():
            old = self._hub.shapes.user(repository.owner)
            self._world.moved[repository.full_name] = repository.id
            repository.owner = self._world.account(owner, "Organization")
            changes = {"changes": {"owner": {"from": {"user": old}}}}
            self._hub.announce("repository", "transferred", self._world.account(by), changes, repository=repository)

    # Commits and pull requests

    def push_to(
        self, repository: Repository, branch: str, files: Files, *, by: str = "ada", message: str = "A change"
    ) -> str:
        """A commit on a branch (made, if it isn't there, from the default branch). Its name."""
        with self._acting():
            before = repository.branches.get(branch)
            parent = before or repository.branches[repository.default_branch]
            sha = self._commit(repository, branch, files, message=message, author=by, parent=parent)
            self._announce_push(repository, branch, before, sha, by=by)
            for pull in self._pulls_from(repository, branch):
                self._move_head(pull, sha, by)
            return sha

    def open_pull_request(
        self,
        repository: Repository,
        files: Files,
        *,
        by: str = "ada",
        branch: str = "feature",
        fork: bool = False,
        base: str | None = None,
        title: str = "A change",
        body: str | None = None,
        draft: bool = False,
    ) -> PullRequest:
        """Push a branch with one commit, and open a pull request for it; `fork` does so from `by`'s own fork.

        Who opens one from a branch of the repository itself is given the role `write` there, if he has none.
        """
        with self._acting():
            author, base = self._world.account(by), base or repository.default_branch
            source = self._fork(repository, author) if fork else repository
            if not fork:
                repository.roles.setdefault(by, "write")
            start = repository.branches[base]
            sha = self._commit(source, branch, files, message=title, author=by, parent=start)
            if not fork:
                self._announce_push(repository, branch, None, sha, by=by)
            now = self._world.clock.now()
            number = self._world.new_id(f"pull of {repository.id}", 1)
            pull = PullRequest(
                id=self._world.new_id("pull", 10_001),
                number=number,
                repository=repository,
                head_repository=source,
                base=base,
                head=branch,
                base_sha=start,
                head_sha=sha,
                title=title,
                body=body,
                author=author,
                draft=draft,
                created_at=now,
                updated_at=now,
            )
            repository.pulls[number] = pull
            self._publish(pull)
            self._hub.announce_pull("opened", pull, author)
            return pull

    def push(self, pull: PullRequest, files: Files, *, by: str | None = None, message: str = "Another change") -> str:
        """Another commit on the pull request's branch ({} makes one that changes nothing). Its name."""
        return self._push(pull, files, pull.head_sha, by=by, message=message)

    def force_push(
        self, pull: PullRequest, files: Files, *, by: str | None = None, message: str = "All over again"
    ) -> str:
        """Replace all commits of the pull request by this one. Its name."""
        return self._push(pull, files, pull.merge_base(), by=by, message=message)

    def _push(self, pull: PullRequest, files: Files, parent: str, *, by: str | None, message: str) -> str:
        with self._acting():
            who, before = by or pull.author.login, pull.head_sha
            sha = self._commit(pull.head_repository, pull.head, files, message=message, author=who, parent=parent)
            if not pull.is_fork:
                self._announce_push(pull.repository, pull.head, before, sha, by=who)
            self._move_head(pull, sha, who)
            return sha

    def close_pull_request(self, pull: PullRequest, *, by: str = "ada") -> None:
        with self._acting():
            pull.state, pull.closed_at = "closed", self._touch(pull)
            self._hub.announce_pull("closed", pull, self._world.account(by))

    def reopen_pull_request(self, pull: PullRequest, *, by: str = "ada") -> None:
        with self._acting():
            pull.state, pull.closed_at = "open", None
            self._touch(pull)
            self._hub.announce_pull("reopened", pull, self._world.account(by))

    def merge(self, pull: PullRequest, *, by: str = "ada") -> str:
        """Merge with a merge commit. Its name. Raises `RuntimeError` on conflicts."""
        with self._acting():
            repository, now = pull.repository, self._touch(pull)
            before = repository.branches[pull.base]
            message = f"Merge pull request #{pull.number}"
            sha = repository.git.merge(before, pull.head_sha, message, author=by, at=now)
            repository.git.set_ref(f"refs/heads/{pull.base}", sha)
            repository.branches[pull.base] = sha
            pull.state, pull.closed_at, pull.merged_at = "closed", now, now
            pull.merged_by, pull.merge_commit = self._world.account(by), sha
            self._announce_push(repository, pull.base, before, sha, by=by)
            self._hub.announce_pull("closed", pull, self._world.account(by))
            return sha

    def mark_ready(self, pull: PullRequest, *, by: str = "ada") -> None:
        with self._acting():
            pull.draft = False
            self._touch(pull)
            self._hub.announce_pull("ready_for_review", pull, self._world.account(by))

    def convert_to_draft(self, pull: PullRequest, *, by: str = "ada") -> None:
        with self._acting():
            pull.draft = True
            self._touch(pull)
            self._hub.announce_pull("converted_to_draft", pull, self._world.account(by))

    def edit(self, pull: PullRequest, *, title: str | None = None, base: str | None = None, by: str = "ada") -> None:
        """Change the title, the base branch, or both."""
        with self._acting():
            changes: dict[str, Any] = {}
            if title is not None:
                changes["title"] = {"from": pull.title}
                pull.title = title
            if base is not None:
                changes["base"] = {"ref": {"from": pull.base}, "sha": {"from": pull.base_sha}}
                pull.base, pull.base_sha = base, pull.repository.branches[base]
            self._touch(pull)
            self._hub.announce_pull("edited", pull, self._world.account(by), {"changes": changes})

    def _fork(self, repository: Repository, owner: Account) -> Repository:
        for each in self._world.repositories.values():
            if each.fork_of is repository and each.owner is owner:
                return each
        fork = self._new_repository(
            owner, repository.name, repository.default_branch, private=repository.private, fork_of=repository
        )
        for branch, sha in repository.branches.items():
            fork.git.fetch(repository.git, sha, f"refs/heads/{branch}")
            fork.branches[branch] = sha
        fork.roles[owner.login] = "admin"
        return fork

    def _commit(
        self, repository: Repository, branch: str, files: Files, *, message: str, author: str, parent: str | None
    ) -> str:
        now = self._world.clock.now()
        ref = f"refs/heads/{branch}"
        sha = repository.git.commit(ref, files, message, parent=parent, author=author, at=now)
        repository.branches[branch] = sha
        self._world.account(author)
        return sha

    def _publish(self, pull: PullRequest) -> None:
        """Have the base repository know the head, as `refs/pull/N/head`."""
        ref, git = f"refs/pull/{pull.number}/head", pull.repository.git
        if pull.is_fork:
            git.fetch(pull.head_repository.git, pull.head_sha, ref)
        else:
            git.set_ref(ref, pull.head_sha)

    def _move_head(self, pull: PullRequest, sha: str, by: str) -> None:
        before, pull.head_sha = pull.head_sha, sha
        self._publish(pull)
        pull.base_sha = pull.repository.branches[pull.base]
        self._touch(pull)
        for thread in pull.threads:
            thread.follow(sha)
        if pull.state == "open":
            more = {"before": before, "after": sha}
            self._hub.announce_pull("synchronize", pull, self._world.account(by), more)

    def _pulls_from(self, repository: Repository, branch: str) -> list[PullRequest]:
        return [
            pull
            for each in self._world.repositories.values()
            for pull in each.pulls.values()
            if pull.head_repository is repository and pull.head == branch and pull.state == "open"
        ]

    def _touch(self, pull: PullRequest) -> Any:
        pull.updated_at = self._world.clock.now()
        return pull.updated_at

    def _announce_push(self, repository: Repository, branch: str, before: str | None, sha: str, *, by: str) -> None:
        """A push, and the check suite that GitHub makes for it."""
        hub, git = self._hub, repository.git
        since = before or repository.branches[repository.default_branch]
        commits = git.commits(since, sha)
        forced = before is not None and git.merge_base(before, sha) != before
        told = {
            "ref": f"refs/heads/{branch}",
            "before": before or _NOWHERE,
            "after": sha,
            "created": before is None,
            "deleted": False,
            "forced": forced,
            "base_ref": None,
            "compare": f"{hub.web}/{repository.full_name}/compare/{since[:12]}...{sha[:12]}",
            "commits": [hub.shapes.commit_in_webhook(repository, each) for each in commits[-20:]],
            "head_commit": hub.shapes.commit_in_webhook(repository, sha),
            "pusher": {"name": by, "email": f"{by}@users.example"},
            "repository": hub.shapes.repository_in_push(repository),
        }
        sender = self._world.account(by)
        hub.announce("push", None, sender, told, repository=repository)
        suite = self._world.suite(repository, sha)
        suite.head_branch = branch
        hub.announce(
            "check_suite", "requested", sender, {"check_suite": hub.shapes.check_suite(suite)}, repository=repository
        )

    # Conversation

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

    def _listed(self, installation: Installation) -> list[Repository]:
        return [each for each in self._world.repositories.values() if installation.covers(each)]

    def _announce_installation(
        self, action: str, installation: Installation, by: str, repositories: list[Repository]
    ) -> None:
        told = {
            "installation": self._hub.shapes.installation(installation),
            "repositories": [self._hub.shapes.repository_in_installation(each) for each in repositories],
            "requester": None,
        }
        sender = self._world.account(by)
        self._hub.announce("installation", action, sender, told, installation=installation)
