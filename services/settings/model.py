"""The settings class. See the package docstring."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.settings.mail import MailServer, read_address, read_mail_server

# Budgets: nothing of the one means not at all, nothing of the other without end.
_MAY_BE_NOTHING = frozenset({"examples_budget", "analysis_budget"})


class Settings(BaseSettings):
    """What an operator can set.

    Embedded use needs none of it: the database, the broker and the snapshot store live below `data_dir`.
    """

    model_config = SettingsConfigDict(env_prefix="GRADPROOF_", frozen=True, extra="ignore")

    data_dir: Path = Field(default=Path.home() / ".gradproof", description="where the embedded parts keep their files")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite (WAL) below data_dir")
    broker_url: str = Field(
        default="",
        description="redis://…, redis+socket:///… or filesystem://; empty: filesystem:// below data_dir",
    )
    public_url: str = Field(default="http://127.0.0.1:8000", description="how people reach the pages")
    secret_key: SecretStr = Field(
        default=SecretStr(""), description="keys the token hashes; empty: made once and kept below data_dir"
    )

    oidc_issuer: str = Field(
        default="", description="OpenID Connect: the address of an identity provider that people sign in with; https"
    )
    oidc_client_id: str = Field(default="", description="as what Gradproof is registered there")
    oidc_client_secret: SecretStr = Field(default=SecretStr(""), description="its secret there; empty: a public client")
    oidc_name: str = Field(default="your organisation", description="what the button says: Continue with …")
    oidc_organisation: str = Field(
        default="", description="the organisation that newcomers become members of; empty: none"
    )
    oidc_role: Literal["viewer", "triager", "maintainer", "admin"] = Field(
        default="viewer", description="as what they do"
    )

    gpu_classes: tuple[str, ...] = Field(default=(), description="device classes that have a queue `gpu.<class>`")
    nvidia_smi: str = Field(
        default="nvidia-smi", description="the program that says which GPUs there are, what they hold and who uses them"
    )
    device_memory: int = Field(
        default=8 * 2**30, ge=2**28, description="bytes of a GPU's memory that one check may take"
    )
    device_patience: timedelta = Field(
        default=timedelta(minutes=2),
        description="how long work waits while no worker with a GPU is fit for it; then it is run without one",
    )
    device_locks: Path | None = Field(
        default=None,
        description="where the locks of GPUs lie, one place for all workers of a machine; empty: /run/lock",
    )
    concurrency: int = Field(default=2, ge=1, description="jobs that one worker runs at a time")
    target_batch: int = Field(default=12, ge=1, description="targets that share one sandbox and one `import torch`")
    lease: timedelta = Field(default=timedelta(seconds=30), description="how long a silent worker keeps its jobs")
    heartbeat: timedelta = Field(default=timedelta(seconds=5), description="how often a worker renews its leases")
    reconcile_every: timedelta = Field(default=timedelta(seconds=5), description="how often lost jobs are looked for")
    max_attempts: int = Field(default=3, ge=1, description="runs of a job before it is called infra_failed")

    python: Path = Field(
        default=Path(sys.executable), description="the interpreter that submitted code runs under; needs torch"
    )
    sandbox: bool = Field(default=True, description="false only for code you would run yourself")
    sandbox_uid_base: int = Field(default=200_000, description="mode R: the first uid handed to a sandboxed job")
    sandbox_memory: int = Field(default=4 * 2**30, description="bytes of memory of one sandbox")
    sandbox_wall: timedelta = Field(default=timedelta(minutes=20), description="wall clock of one sandbox")
    check_wall: timedelta = Field(default=timedelta(seconds=60), description="wall clock of one check")
    target_wall: timedelta = Field(default=timedelta(seconds=180), description="wall clock of all checks of a target")
    inductor_budget: timedelta = Field(
        default=timedelta(seconds=25), description="time that one batch of targets may spend in inductor"
    )

    compiled_headers_home: Path | None = Field(
        default=None,
        description="where headers that inductor needs are kept, 156 MB for each torch; empty: in the user's cache",
    )
    kept_kernels: bool = Field(
        default=True, description="whether what inductor compiled for a repository is kept for its next analysis"
    )
    kept_kernels_home: Path | None = Field(
        default=None,
        description="where it is kept; empty: below data_dir, and for `gradproof check` in the user's cache",
    )
    kept_kernels_size: int = Field(
        default=2**30, ge=0, description="bytes of it, of all repositories together; the longest unused goes first"
    )

    examples_budget: timedelta = Field(
        default=timedelta(seconds=90),
        description="wall clock for running a repository's own examples, to learn its calls; 0: they are not run",
    )
    analysis_budget: timedelta = Field(
        default=timedelta(minutes=30),
        description="wall clock after which no further target of an analysis is begun; 0: there is no such limit",
    )

    environment: Literal["off", "wheels"] = Field(
        default="off",
        description="wheels: a submitted repository's own requirements are installed for its run, as wheels only",
    )
    environment_extras: tuple[str, ...] = Field(
        default=(), description="groups of optional requirements that are installed as well"
    )
    environment_index: str = Field(
        default="", description="where wheels come from: a URL, or a directory; empty: as uv is configured"
    )
    environment_home: Path | None = Field(
        default=None, description="where built environments are kept; empty: below data_dir"
    )
    environment_wall: timedelta = Field(default=timedelta(minutes=10), description="wall clock of building one")
    environment_size: int = Field(default=4 * 2**30, description="bytes of one, with what building it takes")

    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(IPv4Network("127.0.0.1/32"), IPv6Network("::1/128")),
        description="proxies in front of the API: what they say of a caller's address is believed",
    )
    upload_limit: int = Field(default=64 * 2**20, description="bytes of a request body")
    git_hosts: tuple[str, ...] = Field(default=(), description="hosts that may be cloned from; empty: any public host")
    git_trusted_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        default=(),
        description="networks that are not public and may be cloned from all the same (an own forge)",
    )
    git_ca_file: Path | None = Field(default=None, description="certificate authority of an own forge")
    git_wall: timedelta = Field(default=timedelta(minutes=3), description="wall clock of one fetch")

    request_rate: int = Field(
        default=1200,
        ge=0,
        description="requests a minute that one API process takes of one token or session; 0: there is no such limit",
    )
    submission_rate: int = Field(
        default=120, ge=0, description="analyses that one user or token may submit a minute; 0: there is no such limit"
    )
    open_analyses_of_caller: int = Field(
        default=200,
        ge=0,
        description="analyses of one user or token that may wait or run; 0: there is no such limit",
    )
    open_analyses_of_project: int = Field(
        default=200, ge=0, description="analyses of one project that may wait or run; 0: there is no such limit"
    )
    open_analyses: int = Field(
        default=2000, ge=0, description="all analyses that may wait or run; 0: there is no such limit"
    )
    streams_of_caller: int = Field(
        default=20, ge=1, description="streams of events that one API process keeps open for one user or token"
    )
    streams: int = Field(default=200, ge=1, description="streams of events that one API process keeps open")
    stream_life: timedelta = Field(
        default=timedelta(minutes=15), description="after which a stream of events is ended; clients take it up again"
    )

    retention: int = Field(
        default=0, ge=0, description="days after which ended analyses are dropped with all that is theirs; 0: never"
    )
    kept_analyses: int = Field(
        default=5000, ge=0, description="ended analyses of one project that are kept, the newest ones; 0: all"
    )

    smtp_url: str = Field(
        default="",
        description="the mail server that digests are handed to: smtp://host:587 or smtps://host:465; empty: no mail",
    )
    smtp_user: str = Field(default="", description="as whom; empty: without signing in")
    smtp_password: SecretStr = Field(default=SecretStr(""), description="the password there")
    smtp_starttls: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="whether smtp:// must change over to TLS before anything is sent; auto: unless it is this machine",
    )
    smtp_ca_file: Path | None = Field(default=None, description="certificate authority of an own mail server")
    mail_from: str = Field(default="", description="the address that mail comes from: name@domain")

    forge_organisation: str = Field(
        default="default", description="slug of the organisation that repositories of a new installation belong to"
    )
    github_app_id: str = Field(default="", description="id of the GitHub App; empty: there is none")
    github_private_key_file: Path | None = Field(default=None, description="the App's private key, a .pem file")
    github_webhook_secrets: tuple[SecretStr, ...] = Field(
        default=(), description="secrets that GitHub may sign its webhooks with: one, or while it is changed both"
    )
    github_api_url: str = Field(default="https://api.github.com", description="of GitHub Enterprise: https://…/api/v3")
    github_web_url: str = Field(default="https://github.com", description="how people reach that GitHub")
    gitlab_url: str = Field(default="", description="how people reach GitLab; empty: there is none")
    gitlab_token: SecretStr = Field(default=SecretStr(""), description="token of the bot's account, with scope api")
    gitlab_webhook_secrets: tuple[SecretStr, ...] = Field(
        default=(), description="secret tokens, or signing secrets (`whsec_…`), that webhooks of GitLab come with"
    )
    forge_ca_file: Path | None = Field(default=None, description="certificate authority of an own GitHub or GitLab")

    @field_validator(
        "lease", "heartbeat", "reconcile_every", "sandbox_wall", "check_wall", "target_wall", "inductor_budget",
        "git_wall", "examples_budget", "analysis_budget", "environment_wall", "device_patience",
        "stream_life", mode="before",
    )  # fmt: skip
    @classmethod
    def _plain_numbers_are_seconds(cls, value: object) -> object:
        """The environment holds text, and `5` is how a person writes five seconds."""
        if isinstance(value, str):
            with suppress(ValueError, OverflowError):
                return timedelta(seconds=float(value))
        return value

    @model_validator(mode="after")
    def _limits_are_ordered(self) -> Settings:
        """check < target < sandbox, and heartbeat well inside the lease (service facts: limits in layers)."""
        for name, value in self:
            if isinstance(value, timedelta) and value <= timedelta(0) and name not in _MAY_BE_NOTHING:
                raise ValueError(f"GRADPROOF_{name.upper()} must be longer than nothing")
            if isinstance(value, timedelta) and value < timedelta(0):
                raise ValueError(f"GRADPROOF_{name.upper()} must not be negative")
        if not self.check_wall <= self.target_wall <= self.sandbox_wall:
            raise ValueError("GRADPROOF_CHECK_WALL <= GRADPROOF_TARGET_WALL <= GRADPROOF_SANDBOX_WALL must hold")
        for forge, secrets in (("GITHUB", self.github_webhook_secrets), ("GITLAB", self.gitlab_webhook_secrets)):
            if not all(secret.get_secret_value() for secret in secrets):
                raise ValueError(f"GRADPROOF_{forge}_WEBHOOK_SECRETS has an empty one: anybody could sign with it")
        if self.oidc_issuer and not self.oidc_client_id:
            raise ValueError("GRADPROOF_OIDC_ISSUER needs GRADPROOF_OIDC_CLIENT_ID")
        if self.oidc_issuer and not self.oidc_issuer.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
            raise ValueError("GRADPROOF_OIDC_ISSUER must begin with https:// (http:// only on this very machine)")
        if self.heartbeat * 3 > self.lease:
            raise ValueError("GRADPROOF_LEASE must be at least three times GRADPROOF_HEARTBEAT")
        return self

    @model_validator(mode="after")
    def _mail_is_whole(self) -> Settings:
        """Mail is set up as a whole or not at all."""
        if not self.smtp_url:
            for name in ("smtp_user", "smtp_ca_file", "mail_from"):
                if getattr(self, name):
                    raise ValueError(f"GRADPROOF_{name.upper()} needs GRADPROOF_SMTP_URL")
            return self
        if not self.mail_from:
            raise ValueError("GRADPROOF_SMTP_URL needs GRADPROOF_MAIL_FROM")
        if bool(self.smtp_user) != bool(self.smtp_password.get_secret_value()):
            raise ValueError("GRADPROOF_SMTP_USER and GRADPROOF_SMTP_PASSWORD need each other")
        if self.smtp_ca_file is not None and not self.smtp_ca_file.is_file():
            raise ValueError("GRADPROOF_SMTP_CA_FILE names no file that can be read")
        for name, read in (("smtp_url", read_mail_server), ("mail_from", read_address)):
            try:
                read(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"GRADPROOF_{name.upper()} {error}") from None
        return self

    @property
    def effective_database_url(self) -> str:
        """The SQLAlchemy URL in force; `postgres://` and `postgresql://` are taken to mean psycopg 3."""
        url = self.database_url
        if not url:
            return f"sqlite:///{self.data_dir / 'gradproof.sqlite3'}"
        for prefix in ("postgres://", "postgresql://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @property
    def effective_broker_url(self) -> str:
        """The Celery broker URL in force."""
        return self.broker_url or "filesystem://"

    @property
    def github_is_set(self) -> bool:
        """Whether GitHub can be spoken to, and its webhooks believed."""
        return bool(self.github_app_id and self.github_private_key_file and self.github_webhook_secrets)

    @property
    def gitlab_is_set(self) -> bool:
        """Whether GitLab can be spoken to, and its webhooks believed."""
        return bool(self.gitlab_url and self.gitlab_token.get_secret_value() and self.gitlab_webhook_secrets)

    @property
    def mail_server(self) -> MailServer | None:
        """Where mail is handed in; None: none is sent."""
        return read_mail_server(self.smtp_url) if self.smtp_url else None

    @property
    def environment_dir(self) -> Path:
        """Where environments of submitted repositories are kept."""
        return self.environment_home or self.data_dir / "environments"

    @property
    def compiled_headers_directory(self) -> Path:
        """Where `worker.execution.compiled_headers` keeps what it makes."""
        return self.compiled_headers_home or _user_cache() / "headers"

    @property
    def kept_kernels_directory(self) -> Path:
        """Where a worker keeps what inductor compiled (`worker.execution.kept_kernels`)."""
        return self.kept_kernels_home or self.data_dir / "kernels"

    @property
    def own_kept_kernels_directory(self) -> Path:
        """Where `gradproof check` does."""
        return self.kept_kernels_home or _user_cache() / "kernels"

    @property
    def snapshot_dir(self) -> Path:
        """Where the content-addressed snapshots live."""
        return self.data_dir / "snapshots"


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradproof"
