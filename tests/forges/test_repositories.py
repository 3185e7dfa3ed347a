"""What is held of pull requests, repositories and projects while others add to them, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text

from services.analyses.models import AnalysisRow
from services.database import Database
from services.forges import repository
from services.forges.events import InstallationRef, RepositoryRef
from services.forges.models import ForgeTaskRow, InstallationRow, PullRequestRow
from services.forges.queueing import queue_task
from services.projects.models import ProjectRow

REF = RepositoryRef(
    external_id="5",
    full_name="acme/models",
    clone_url="https://github.com/acme/models.git",
    web_url="https://github.com/acme/models",
    is_private=True,
    default_branch="main",
)


@pytest.fixture
def installation_id(database: Database) -> str:
    with database.unit_of_work() as uow:
        ref = InstallationRef(external_id="1", account="acme")
        row = repository.ensure_installation(uow.session, "github", ref, "default")
        uow.session.flush()
        return row.id


# On PostgreSQL: SQLite has one writer at a time, so that nobody can hold a row against another.
@pytest.mark.parametrize("service_settings", ["production"], indirect=True)
def test_a_task_is_queued_for_a_pull_request_that_somebody_holds(database: Database, installation_id: str) -> None:
    with database.unit_of_work() as uow:
        installation = uow.session.get_one(InstallationRow, installation_id)
        place = repository.ensure_repository(uow.session, installation, REF, "acme.models")
        pull = PullRequestRow(
            repository_id=place.id, number=1, base_ref="main", base_sha="a", head_ref="work", head_sha="b", silence={}
        )
        uow.session.add(pull)
        uow.session.flush()
        place_id, pull_id = place.id, pull.id
    with database.unit_of_work() as one, database.unit_of_work() as other:
        # As who ends an analysis does: the new row refers to the pull request.
        queue_task(one.session, "publish", pull_id, installation_id=installation_id, pull_request_id=pull_id)
        other.session.execute(text("SET LOCAL lock_timeout = '2s'"))
        assert repository.lock_pull_request(other.session, pull_id) is not None
        assert repository.find_pull_request(other.session, place_id, 1) is not None
    with database.reading() as session:
        assert session.scalars(select(ForgeTaskRow.pull_request_id)).all() == [pull_id]


def test_a_newer_push_ends_what_the_bot_waits_for_and_nobody_else_does(
    database: Database, installation_id: str
) -> None:
    with database.unit_of_work() as uow:
        installation = uow.session.get_one(InstallationRow, installation_id)
        project_id = repository.ensure_repository(uow.session, installation, REF, "acme.models").project_id

    def submitted(by: str = installation_id, *, base: str | None = None, **values: str) -> str:
        with database.unit_of_work() as uow:
            purpose = "main" if base is None else "proposal"
            row = AnalysisRow(
                project_id=project_id, base_id=base, submitted_by=by, source_kind="git", **{"purpose": purpose} | values
            )
            uow.session.add(row)
            uow.session.flush()
            return row.id

    overtaken, compared_before, compared_now = submitted(), submitted(), submitted()
    submitted(base=compared_before, status="finished")
    submitted(base=compared_now)
    submitted(status="running")
    submitted("somebody")
    submitted(purpose="base")
    newer = submitted()
    submitted()
    with database.reading() as session:
        found = repository.overtaken_main_analyses(session, project_id, installation_id, newer)
    assert found == [overtaken, compared_before]


def project_of(database: Database, installation_id: str, ref: RepositoryRef = REF) -> str:
    with database.unit_of_work() as uow:
        installation = uow.session.get_one(InstallationRow, installation_id)
        return repository.ensure_repository(uow.session, installation, ref, "acme.models").project_id


def test_a_project_that_is_for_the_repository_becomes_its_project(database: Database, installation_id: str) -> None:
    with database.unit_of_work() as uow:
        row = ProjectRow(name="acme.models", repository_url="https://github.com/Acme/models/", settings={})
        uow.session.add(row)
        uow.session.flush()
        made_before = row.id
    assert project_of(database, installation_id) == made_before == project_of(database, installation_id)
    # Another repository that came to the same name and address has a project of its own.
    other = project_of(database, installation_id, REF.model_copy(update={"external_id": "6"}))
    with database.reading() as session:
        assert session.get_one(ProjectRow, other).name == "acme.models.6"


@pytest.mark.parametrize("address", [None, "https://github.com/acme/other.git"])
def test_a_project_that_somebody_made_for_something_else_is_left_alone(
    database: Database, installation_id: str, address: str | None
) -> None:
    with database.unit_of_work() as uow:
        uow.session.add_all(
            ProjectRow(name=name, repository_url=address, default_branch="work", settings={})
            for name in ("acme.models", "acme.models.5")
        )
    project_id = project_of(database, installation_id)
    with database.reading() as session:
        rows = session.scalars(select(ProjectRow).order_by(ProjectRow.id)).all()
    assert [(row.repository_url, row.default_branch) for row in rows[:2]] == [(address, "work")] * 2
    assert (rows[2].id, rows[2].repository_url) == (project_id, REF.clone_url)
    assert rows[2].name.startswith("acme.models.")
