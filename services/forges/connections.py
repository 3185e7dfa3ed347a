"""Opens clients by settings: one connection to each forge for a process, a client for each task.

What must outlive a task (tokens, the pause between writes, answers with ETags) lives in the connection. Keys and tokens
come from the settings alone. This module must not know tables.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.forges.client import ForgeClient
from services.forges.clocks import Clock
from services.forges.errors import ForgeAuthenticationError
from services.forges.github import GithubApp, GithubSettings
from services.forges.gitlab import GitlabForge, GitlabSettings
from services.settings import Settings


class Forges:
    """The forges that this deployment is connected with. Safe to share between threads."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._github: GithubApp | None = None
        self._gitlab: GitlabForge | None = None

    @contextmanager
    def client(self, forge: str, installation: str, repository: str | None = None) -> Iterator[ForgeClient]:
        """A client for an installation, by its id at the forge; with `repository`, for that one alone.

        Raises `ForgeAuthenticationError` where the settings have no such forge, or a key that can't be read.
        """
        opened: ForgeClient = (
            self.github().client(installation, repository_id=repository)
            if forge == "github"
            else self.gitlab().client()
        )
        try:
            yield opened
        finally:
            opened.close()

    def github(self) -> GithubApp:
        """The GitHub App. Raises `ForgeAuthenticationError`."""
        settings = self._settings
        with self._lock:
            if self._github is None:
                if not settings.github_is_set or settings.github_private_key_file is None:
                    raise ForgeAuthenticationError("this service is not connected with GitHub any more")
                self._github = GithubApp(
                    GithubSettings(
                        app_id=settings.github_app_id,
                        private_key=_read(settings.github_private_key_file),
                        api_url=settings.github_api_url,
                        web_url=settings.github_web_url,
                        verify=_authority(settings.forge_ca_file),
                    ),
                    self._clock,
                )
            return self._github

    def gitlab(self) -> GitlabForge:
        """GitLab. Raises `ForgeAuthenticationError`."""
        settings = self._settings
        with self._lock:
            if self._gitlab is None:
                if not settings.gitlab_is_set:
                    raise ForgeAuthenticationError("this service is not connected with GitLab any more")
                self._gitlab = GitlabForge(
                    GitlabSettings(
                        token=settings.gitlab_token.get_secret_value(),
                        web_url=settings.gitlab_url,
                        verify=_authority(settings.forge_ca_file),
                    ),
                    self._clock,
                )
            return self._gitlab

    def close(self) -> None:
        """Let go of connections."""
        with self._lock:
            if self._github is not None:
                self._github.close()


def _read(key: Path) -> str:
    try:
        return key.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise ForgeAuthenticationError(f"GRADPROOF_GITHUB_PRIVATE_KEY_FILE can't be read: {said}") from None


def _authority(file: Path | None) -> ssl.SSLContext | bool:
    if file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as error:
        raise ForgeAuthenticationError(f"GRADPROOF_FORGE_CA_FILE can't be read: {error}") from None
