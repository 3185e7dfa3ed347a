"""What authors do on the fake GitHub: push, and open, change, close and merge pull requests."""

from __future__ import annotations

from typing import Any, Final

from tools.fake_forge.git import Files
from tools.fake_forge.github.owners import Owners
from tools.fake_forge.world import (
    Account,
    PullRequest,
    Repository,
)

_NOWHERE: Final = "0" * 40


class Authors(Owners):
    """Each action sends its webhooks: a push, the check suite that GitHub makes for it, the pull request."""

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
