"""GitLab, on gitlab.com or self-managed, spoken to with an access token."""

from __future__ import annotations

from services.forges.gitlab.client import GitlabClient
from services.forges.gitlab.forge import GitlabForge, GitlabSettings

__all__ = ["GitlabClient", "GitlabForge", "GitlabSettings"]
