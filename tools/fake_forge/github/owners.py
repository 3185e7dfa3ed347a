"""What owners do on the fake GitHub: make, rename and transfer repositories, install, suspend and remove the App."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tools.fake_forge.git import Files, GitRepository
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.world import (
    Account,
    Installation,
    Repository,
    Role,
)


class Owners:
    """Names of people are made up as one goes: an unknown `by` is a new account."""

    def __init__(self, hub: Hub, git_root: Path) -> None:
        self._hub = hub
        self._world = hub.world
        self._git_root = git_root

    def _acting(self) -> AbstractContextManager[None]:
        return self._hub.courier.acting(self._world.lock)

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

    def _commit(
        self, repository: Repository, branch: str, files: Files, *, message: str, author: str, parent: str | None
    ) -> str:
        now = self._world.clock.now()
        ref = f"refs/heads/{branch}"
        sha = repository.git.commit(ref, files, message, parent=parent, author=author, at=now)
        repository.branches[branch] = sha
        self._world.account(author)
        return sha

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
