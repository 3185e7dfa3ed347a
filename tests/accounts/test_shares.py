"""Links that share one analysis: what they show, and when they end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from services.accounts.access import SYSTEM
from services.accounts.errors import PermissionDeniedError
from services.accounts.organisations import OrganisationService
from services.analyses.errors import AnalysisNotFoundError
from services.analyses.service import AnalysisService
from services.database import Database
from services.database.base import utc_now
from services.projects.errors import ShareLinkNotFoundError
from services.projects.models import ShareLinkRow
from services.projects.service import ProjectService
from services.projects.shares import ShareService
from services.settings import Settings
from tests.accounts.conftest import Person
from tests.jobs.support import SNAPSHOT


@pytest.fixture
def shares(database: Database, service_settings: Settings) -> ShareService:
    return ShareService(database, service_settings)


@pytest.fixture
def analyses(database: Database, service_settings: Settings) -> AnalysisService:
    return AnalysisService(database, service_settings)


def test_a_link_shows_its_analysis_and_nothing_else(
    shares: ShareService, analyses: AnalysisService, projects: ProjectService
) -> None:
    shown = analyses.submit(SYSTEM, SNAPSHOT, project="vision").analysis_id
    hidden = analyses.submit(SYSTEM, SNAPSHOT, project="vision").analysis_id
    link = shares.create(SYSTEM, shown, 7)
    visitor = shares.visit(link.code)
    assert analyses.get(visitor, shown).id == shown
    assert [item.id for item in analyses.list(visitor).items] == [shown]
    with pytest.raises(AnalysisNotFoundError):
        analyses.get(visitor, hidden)
    for action in (
        lambda: analyses.rerun(visitor, shown),
        lambda: analyses.cancel(visitor, shown),
        lambda: shares.create(visitor, shown, 7),
        lambda: shares.revoke(visitor, link.id),
    ):
        with pytest.raises(PermissionDeniedError):
            action()
    assert projects.list(visitor).items == ()


def test_a_link_ends(shares: ShareService, analyses: AnalysisService, database: Database) -> None:
    identity = analyses.submit(SYSTEM, SNAPSHOT).analysis_id
    link = shares.create(SYSTEM, identity, 1000)
    assert link.expires_at - link.created_at == timedelta(days=90)
    assert shares.list(SYSTEM, identity) == (link,)
    assert shares.revoke(SYSTEM, link.id).revoked_at is not None
    over = shares.create(SYSTEM, identity, 1)
    with database.unit_of_work() as uow:
        uow.session.execute(
            update(ShareLinkRow).where(ShareLinkRow.id == over.id).values(expires_at=utc_now() - timedelta(seconds=1))
        )
    alive = shares.create(SYSTEM, identity, 1)
    assert shares.visit(alive.code).analysis_id == identity
    forged = f"{alive.id}.{'0' * 32}"
    for code in (link.code, over.code, forged, link.id, "", ".", "\ud800.é"):
        with pytest.raises(ShareLinkNotFoundError):
            shares.visit(code)


def test_who_may_submit_may_share(
    shares: ShareService, analyses: AnalysisService, organisations: OrganisationService, person: Person
) -> None:
    organisations.create(SYSTEM, "acme")
    triager, viewer = person("triager", acme="triager"), person("viewer", acme="viewer")
    stranger = person("stranger", default="admin")
    identity = analyses.submit(triager, SNAPSHOT, project="vision").analysis_id
    link = shares.create(triager, identity, 7)
    assert link.created_by == "triager"
    for subject, error in ((viewer, PermissionDeniedError), (stranger, AnalysisNotFoundError)):
        with pytest.raises(error):
            shares.create(subject, identity, 7)
        with pytest.raises(error):
            shares.list(subject, identity)
    with pytest.raises(PermissionDeniedError):
        shares.revoke(viewer, link.id)
    for subject, link_id in ((stranger, link.id), (triager, "nobody")):
        with pytest.raises(ShareLinkNotFoundError):
            shares.revoke(subject, link_id)
