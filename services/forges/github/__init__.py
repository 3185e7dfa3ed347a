"""GitHub, on github.com or on a GitHub Enterprise Server, spoken to as a GitHub App."""

from __future__ import annotations

from services.forges.github.app import GithubApp, GithubSettings
from services.forges.github.client import GithubClient

__all__ = ["GithubApp", "GithubClient", "GithubSettings"]
