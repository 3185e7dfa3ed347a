"""What the routes share: settings, the database behind the use cases, the snapshot store.

Built once by `api.app.create_app`; a route gets it as a dependency and never builds parts of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from fastapi import Depends, Request

from services.accounts import TokenService
from services.accounts.audit import AuditService
from services.accounts.identities import IdentityService
from services.accounts.openid import OpenIdProvider
from services.accounts.organisations import OrganisationService
from services.accounts.sessions import SessionService
from services.accounts.users import UserService
from services.analyses.about import AboutService
from services.analyses.compliance import ComplianceService
from services.analyses.results import ResultService
from services.analyses.service import AnalysisService
from services.database import Database
from services.digests.service import DigestService
from services.forges.overview import PullRequestOverview
from services.forges.receiving import Webhooks
from services.jobs.doorbell import Doorbell
from services.oversight import OversightService, WorkplaceService
from services.projects.hooks import HookService
from services.projects.service import ProjectService
from services.projects.shares import ShareService
from services.reports.sources import DirectorySources, NoSources, Sources
from services.settings import Settings
from services.snapshots import SnapshotStore
from services.snapshots.errors import SnapshotNotFoundError
from services.triage.inbox import Inbox
from services.triage.service import TriageService


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one application."""

    settings: Settings
    database: Database
    doorbell: Doorbell
    store: SnapshotStore
    analyses: AnalysisService
    results: ResultService
    compliance: ComplianceService
    about: AboutService
    inbox: Inbox
    triage: TriageService
    tokens: TokenService
    users: UserService
    identities: IdentityService
    openid: OpenIdProvider | None
    organisations: OrganisationService
    projects: ProjectService
    hooks: HookService
    shares: ShareService
    digests: DigestService
    sessions: SessionService
    audit: AuditService
    oversight: OversightService
    workplace: WorkplaceService
    pull_requests: PullRequestOverview
    webhooks: Webhooks

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """All parts by settings; nothing is connected before it is used."""
        doorbell = Doorbell.open(settings)
        database = Database.open(settings, doorbell.ring)
        return cls(
            settings=settings,
            database=database,
            doorbell=doorbell,
            store=SnapshotStore(settings.snapshot_dir),
            analyses=AnalysisService(database, settings),
            results=ResultService(database, settings),
            compliance=ComplianceService(database, settings),
            about=AboutService(database, settings),
            inbox=Inbox(database),
            triage=TriageService(database),
            tokens=TokenService(database, settings),
            users=UserService(database),
            identities=IdentityService(database, settings),
            openid=OpenIdProvider(settings) if settings.oidc_issuer else None,
            organisations=OrganisationService(database),
            projects=ProjectService(database, settings),
            hooks=HookService(database, settings),
            shares=ShareService(database, settings),
            digests=DigestService(database, settings),
            sessions=SessionService(database, settings),
            audit=AuditService(database),
            oversight=OversightService(database, settings),
            workplace=WorkplaceService(database, settings),
            pull_requests=PullRequestOverview(database),
            webhooks=Webhooks(database, settings),
        )

    def close(self) -> None:
        """Give all connections back."""
        self.database.close()
        self.doorbell.close()

    def sources(self, digest: str | None) -> Sources:
        """The quoted lines of a snapshot; none if the store no longer has it."""
        if digest is None:
            return NoSources()
        try:
            return DirectorySources(self.store.path(digest))
        except SnapshotNotFoundError:
            return NoSources()


def get_context(request: Request) -> Context:
    """The context of the application that a request came to."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


ContextDependency = Annotated[Context, Depends(get_context)]
