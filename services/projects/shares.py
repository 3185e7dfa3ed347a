"""Links that show one analysis, read only, to whoever has them, until they end.

A link holds the id of its row under a MAC: nothing in the database lets anybody in. Whoever follows it is a subject
that can read this one analysis and nothing else.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from sqlalchemy.orm import Session

from services.accounts.access import Permission, Subject
from services.accounts.audit import note
from services.accounts.errors import PermissionDeniedError
from services.accounts.secret import signing_key
from services.analyses import repository as analyses
from services.analyses.errors import AnalysisNotFoundError
from services.analyses.models import AnalysisRow
from services.database import Database
from services.database.base import utc_now
from services.projects import hook_repository as repository
from services.projects.errors import ShareLinkNotFoundError
from services.projects.models import ShareLinkRow
from services.settings import Settings

LONGEST_DAYS: Final = 90
LISTED: Final = 100


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A link. `code` is the last part of its address."""

    id: str
    analysis_id: str
    code: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class ShareService:
    """Making, listing, revoking and following links. Whoever may submit in a project may share what is in it."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._key = hmac.new(signing_key(settings), b"gradproof share links 1", sha256).digest()

    def create(self, subject: Subject, analysis_id: str, days: int) -> ShareLink:
        """Share an analysis for at most 90 days. Raises `AnalysisNotFoundError`, `PermissionDeniedError`."""
        with self._database.unit_of_work() as uow:
            analysis = _found(uow.session, subject, analysis_id)
            now = utc_now()
            row = ShareLinkRow(
                analysis_id=analysis.id,
                created_by=subject.name,
                created_at=now,
                expires_at=now + timedelta(days=max(1, min(days, LONGEST_DAYS))),
            )
            uow.session.add(row)
            uow.session.flush()
            details = {"until": row.expires_at.isoformat()}
            note(
                uow.session, subject, "share.create", "analysis", analysis.id,
                project_id=analysis.project_id, details=details,
            )  # fmt: skip
            return self._link(row)

    def list(self, subject: Subject, analysis_id: str) -> tuple[ShareLink, ...]:
        """The links of an analysis, the newest first. Raises as `create` does."""
        with self._database.reading() as session:
            analysis = _found(session, subject, analysis_id)
            return tuple(self._link(row) for row in repository.links_of(session, analysis.id, LISTED))

    def revoke(self, subject: Subject, link_id: str) -> ShareLink:
        """Make a link show nothing, at once; doing it again changes nothing.

        Raises `ShareLinkNotFoundError`, also where `subject` can't see the analysis, and `PermissionDeniedError`.
        """
        with self._database.unit_of_work() as uow:
            row = uow.session.get(ShareLinkRow, link_id)
            try:
                analysis = None if row is None else _found(uow.session, subject, row.analysis_id)
            except AnalysisNotFoundError:
                analysis = None
            if row is None or analysis is None:
                raise ShareLinkNotFoundError(f"there is no link {link_id[:50]!r}", id=link_id[:50])
            if row.revoked_at is None:
                row.revoked_at = utc_now()
                note(uow.session, subject, "share.revoke", "analysis", analysis.id, project_id=analysis.project_id)
            return self._link(row)

    def visit(self, code: str) -> Subject:
        """Who follows a link: a subject that can read its analysis only. Raises `ShareLinkNotFoundError`."""
        link_id, _, signature = code.partition(".")
        genuine = hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(link_id).encode())
        with self._database.reading() as session:
            row = session.get(ShareLinkRow, link_id) if genuine else None
        if row is None or row.revoked_at is not None or row.expires_at <= utc_now():
            raise ShareLinkNotFoundError("this link is over, was revoked, or is damaged: ask whoever sent it")
        return Subject("link", row.id, "a shared link", frozenset({Permission.READ}), analysis_id=row.analysis_id)

    def _link(self, row: ShareLinkRow) -> ShareLink:
        return ShareLink(
            id=row.id,
            analysis_id=row.analysis_id,
            code=f"{row.id}.{self._sign(row.id)}",
            created_by=row.created_by,
            created_at=row.created_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
        )

    def _sign(self, link_id: str) -> str:
        # 128 bits: an address that people copy, which ends in three months at the latest.
        return hmac.new(self._key, link_id.encode("utf-8", "replace"), sha256).hexdigest()[:32]


def _found(session: Session, subject: Subject, analysis_id: str) -> AnalysisRow:
    row = analyses.find_visible(session, subject, analysis_id)
    if row is None:
        raise AnalysisNotFoundError(f"there is no analysis {analysis_id[:50]!r}", id=analysis_id[:50])
    if analyses.find_visible(session, subject, analysis_id, Permission.SUBMIT) is None:
        raise PermissionDeniedError(
            "sharing needs the permission 'submit' in the project", permission=Permission.SUBMIT.value
        )
    return row
