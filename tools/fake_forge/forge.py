"""The fake forge as tests and the demo use it."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tools.fake_forge.application import create_application
from tools.fake_forge.clock import Clock
from tools.fake_forge.deliveries import Delivery
from tools.fake_forge.failures import Failure, Hold, Switches
from tools.fake_forge.github.hub import Hub
from tools.fake_forge.github.people import People
from tools.fake_forge.gitlab.hub import GitLabHub
from tools.fake_forge.gitlab.people import GitLab
from tools.fake_forge.serving import Serving
from tools.fake_forge.world import Asked, CheckRun, IssueComment, PullRequest, Repository, Sarif, Thread


class FakeForge(People):
    """A small GitHub over real HTTP, with state. Start it with `start()` and `close()`, or as a context manager.

    Where it is: `url` is the address of the API (REST below it, GraphQL at `/graphql`), `secure_url` the same over TLS,
    and where git clones from (`{secure_url}/owner/name.git`); `authority` is the file with the certificate authority.

    The App under test: `app_id`, `client_id`, `slug`, `bot` (its login), `private_key` (PEM), `webhook_secret`;
    `permissions` and `events` may be changed before `create_repository`. `webhook_url` is where webhooks go; while it
    is None they are recorded in `deliveries` and not sent.

    What people do (see `People`): `create_repository`, `open_pull_request`, `push`, `force_push`, `push_to`,
    `close_pull_request`, `reopen_pull_request`, `merge`, `edit`, `mark_ready`, `convert_to_draft`, `comment`,
    `delete_comment`, `start_thread`, `reply`, `resolve`, `unresolve`, `rerequest`, `request_action`, `rerequest_suite`,
    `install`, `uninstall`, `suspend`, `unsuspend`, `select_repositories`, `set_permissions`, `set_role`, `rename`,
    `transfer`, `ping`; `send` and `redeliver` send webhooks by hand. They return when the receiver has answered. What
    the App's own writes bring about (`check_run`, `issue_comment`, …) is sent by a thread: `settle()` waits for it.

    What went on: `requests` (all, in order), `writes()` (what was really changed, by kind), `deliveries`, `violations`
    (of GitHub's OpenAPI, by the client or by the fake: to be empty). What there is: `check_runs`, `comments`,
    `threads`, `sarifs`.

    What goes wrong: `fail(failure, method, path, times)` with the failures of `tools.fake_forge.failures`; `hold` keeps
    requests waiting. `clock` can be moved.

    `gitlab` is a small GitLab on the same ports, with the same log, failures and clock (see `GitLab`).
    """

    def __init__(
        self,
        *,
        webhook_url: str | None = None,
        webhook_secret: str = "an open secret",
        slug: str = "gradproof",
        port: int = 0,
        secure_port: int = 0,
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fake-forge-"))
        git_root = self._directory / "git"
        git_root.mkdir()
        self._serving = Serving(self._directory, port=port, secure_port=secure_port)
        self.clock = Clock()
        self._switches = Switches()
        hub = Hub(self.clock, self._serving.url, self._serving.secure_url, slug)
        hub.courier.url, hub.secret = webhook_url, webhook_secret
        super().__init__(hub, git_root)
        gitlab = GitLabHub(hub.world, self._serving.secure_url)
        self._application = create_application(hub, gitlab, self._switches, git_root)
        self._traffic = hub.traffic
        self._gitlab_courier = gitlab.courier
        self.gitlab = GitLab(gitlab, git_root)
        self.url = self._serving.url
        self.secure_url = self._serving.secure_url
        self.authority = self._serving.authority

    def start(self) -> Self:
        """Serve until `close`."""
        self._serving.start(self._application)
        return self

    def close(self) -> None:
        """Stop, let go of everything that is held, and remove the repositories."""
        self._switches.clear()
        self._serving.close()
        self._hub.courier.close()
        self._gitlab_courier.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The App

    @property
    def app_id(self) -> int:
        return self._hub.app.app_id

    @property
    def client_id(self) -> str:
        return self._hub.app.client_id

    @property
    def slug(self) -> str:
        return self._hub.app.slug

    @property
    def bot(self) -> str:
        """The login of the App's account, as `gradproof[bot]`."""
        return self._hub.app.bot.login

    @property
    def private_key(self) -> str:
        """The App's RSA key, PEM."""
        return self._hub.authentication.private_key

    @property
    def permissions(self) -> dict[str, str]:
        """What the App asks for: new installations have it."""
        return self._hub.app.permissions

    @property
    def events(self) -> list[str]:
        """What the App is subscribed to."""
        return self._hub.app.events

    @property
    def resolving_needs(self) -> Literal["pull_requests", "contents"]:
        """Which permission an App must have to write, to resolve threads.

        GitHub's documentation doesn't say. Who measured it in 2026 found that `pull_requests` isn't enough, and that
        `contents: write` is needed (github/gh-aw#35726, oven-sh/bun#40468): set this to "contents" to see a bot cope.
        """
        return self._hub.resolving_needs

    @resolving_needs.setter
    def resolving_needs(self, permission: Literal["pull_requests", "contents"]) -> None:
        self._hub.resolving_needs = permission

    @property
    def most_at_once(self) -> int:
        """How many requests of the App were under way at once, at most: 1 if it is as patient as GitHub asks."""
        return self._traffic.most

    @property
    def webhook_url(self) -> str | None:
        return self._hub.courier.url

    @webhook_url.setter
    def webhook_url(self, url: str | None) -> None:
        self._hub.courier.url = url

    @property
    def webhook_secret(self) -> str:
        return self._hub.secret

    @webhook_secret.setter
    def webhook_secret(self, secret: str) -> None:
        self._hub.secret = secret

    def clone_url(self, repository: Repository) -> str:
        """Where git clones it from."""
        return f"{self.secure_url}/{repository.full_name}.git"

    # What went on, and what there is

    @property
    def requests(self) -> list[Asked]:
        """Every request so far, git's too, in order."""
        with self._world.lock:
            return list(self._world.asked)

    def writes(self) -> Counter[str]:
        """How often something was really changed by the App, by kind.

        `check_run.create`, `check_run.update`, `comment.create`, `comment.update`, `comment.delete`, `review.create`,
        `review_comment.create`, `review_comment.reply`, `review_comment.update`, `review_comment.delete`,
        `thread.resolve`, `thread.unresolve`, `comment.minimize`, `comment.unminimize`, `reaction.create`,
        `sarif.upload`. Subtract an earlier one to count a scenario.
        """
        with self._world.lock:
            return Counter(self._world.written)

    @property
    def violations(self) -> list[str]:
        """Where a request, an answer or a webhook was not as GitHub's OpenAPI says."""
        with self._world.lock:
            return list(self._world.violations)

    @property
    def deliveries(self) -> list[Delivery]:
        """Every sending of a webhook so far, in order."""
        return list(self._hub.courier.log)

    def settle(self) -> None:
        """Return when all webhooks that the App's own writes brought about have been sent."""
        self._hub.courier.settle()

    def check_runs(self, pull: PullRequest | None = None) -> list[CheckRun]:
        """All check runs, or those of the pull request's present head."""
        with self._world.lock:
            runs = list(self._world.runs.values())
        return runs if pull is None else [run for run in runs if run.head_sha == pull.head_sha]

    def comments(self, pull: PullRequest) -> list[IssueComment]:
        """The conversation, oldest first."""
        with self._world.lock:
            return list(pull.comments)

    def threads(self, pull: PullRequest) -> list[Thread]:
        """The review threads, oldest first."""
        with self._world.lock:
            return list(pull.threads)

    def sarifs(self) -> list[Sarif]:
        """What was uploaded to code scanning."""
        with self._world.lock:
            return list(self._world.sarifs.values())

    # What goes wrong

    def fail(self, failure: Failure, method: str | None = None, path: str = "", *, times: int | None = 1) -> None:
        """Let the next `times` requests (None: all) fail whose method is that and whose path has that pattern in it."""
        self._switches.add(failure, method, path, times)

    def hold(self, method: str | None = None, path: str = "", *, times: int | None = 1, after: bool = False) -> Hold:
        """Keep the next `times` requests waiting that match, until `release()` of what is returned.

        They wait before they are carried out; with `after` they are carried out, and wait for their answer.
        """
        hold = Hold(after=after)
        self._switches.add(hold, method, path, times)
        return hold

    def heal(self) -> None:
        """Nothing fails and nothing is held any more."""
        self._switches.clear()
