"""Credentials for fetching: a repository of an installation is fetched as the application may see it.

Asked for anew by each fetch, since a token lives for an hour; handed on in memory alone, never stored. This module must
not know git.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from services.database import Database
from services.forges import repository
from services.forges.connections import Forges


class Cloning:
    """What fetches of analyses are to send along."""

    def __init__(self, database: Database, forges: Forges) -> None:
        self._database = database
        self._forges = forges

    def headers(self, analysis_id: str) -> Mapping[str, str]:
        """The headers for the source of an analysis; none if no installation of its project has that repository.

        Only the project's own repositories count: a project must not get at those of others by naming their address.
        Raises `ForgeError`.
        """
        with self._database.reading() as session:
            found = repository.clone_of(session, analysis_id)
            if found is None:
                return {}
            place, installation, url = found
            asked = (place.forge, installation.external_id, place.external_id, place.full_name)
        forge, external_id, repository_id, full_name = asked
        with self._forges.client(forge, external_id, repository_id) as client:
            access = client.clone_access(full_name)
        return access.headers if _origin(access.url) == _origin(url) else {}


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
