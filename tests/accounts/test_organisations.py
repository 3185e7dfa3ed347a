"""Organisations, members, projects: who sees what of whom, and what is written down of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from services.accounts import TokenService
from services.accounts.access import EVERYTHING, SYSTEM, Permission, Subject
from services.accounts.audit import AuditService
from services.accounts.audit_repository import AuditFilter
from services.accounts.errors import (
    LastAdminError,
    MemberNotFoundError,
    OrganisationExistsError,
    OrganisationNameError,
    OrganisationNotFoundError,
    PermissionDeniedError,
    TokenNameError,
    TokenNotFoundError,
    UnknownRoleError,
    UnknownScopeError,
    UserNotFoundError,
)
from services.accounts.models import ApiTokenRow, AuditEventRow
from services.accounts.organisations import OrganisationService
from services.accounts.users import UserService
from services.analyses.errors import AnalysisNotFoundError
from services.analyses.models import AnalysisRow
from services.analyses.service import AnalysisService
from services.database import Database
from services.projects.errors import (
    ProjectArchivedError,
    ProjectExistsError,
    ProjectNameError,
    ProjectNotFoundError,
)
from services.projects.service import ProjectService
from services.projects.settings import InvalidProjectSettingsError
from services.settings import Settings
from services.snapshots.errors import GitUrlError
from tests.accounts.conftest import Person
from tests.jobs.support import SNAPSHOT


@pytest.fixture
def analyses(database: Database, service_settings: Settings) -> AnalysisService:
    return AnalysisService(database, service_settings)


@pytest.fixture
def tokens(database: Database, service_settings: Settings) -> TokenService:
    return TokenService(database, service_settings)


@pytest.fixture
def audit(database: Database) -> AuditService:
    return AuditService(database)


@pytest.fixture
def acme(organisations: OrganisationService) -> str:
    return organisations.create(SYSTEM, "acme", "Acme Research").slug


# ------------------------------------------------------------------------------------------------- organisations


def test_whoever_makes_an_organisation_is_its_first_admin(organisations: OrganisationService, person: Person) -> None:
    operator = person("root", operator=True)
    made = organisations.create(operator, "acme", "Acme Research")
    assert (made.slug, made.name, made.permissions) == ("acme", "Acme Research", EVERYTHING)
    assert [(member.name, member.role) for member in organisations.members(operator, "acme").items] == [
        ("root", "admin")
    ]
    with pytest.raises(OrganisationExistsError):
        organisations.create(operator, "acme")
    for slug in ("", "Acme", "a_b", "-a", "a" * 41, "a/b", "a\n"):
        with pytest.raises(OrganisationNameError):
            organisations.create(operator, slug)


def test_members_see_each_other_and_strangers_see_nothing(
    organisations: OrganisationService, acme: str, person: Person
) -> None:
    viewer, stranger = person("viewer", acme="viewer"), person("stranger", default="admin")
    assert [member.name for member in organisations.members(viewer, acme).items] == ["viewer"]
    assert [found.slug for found in organisations.list(viewer).items] == ["acme"]
    assert [found.slug for found in organisations.list(stranger).items] == ["default"]
    for action in (
        lambda: organisations.get(stranger, acme),
        lambda: organisations.members(stranger, acme),
        lambda: organisations.set_member(stranger, acme, "stranger", "admin"),
        lambda: organisations.remove_member(stranger, acme, "viewer"),
    ):
        with pytest.raises(OrganisationNotFoundError):
            action()
    for role in ("viewer", "triager", "maintainer"):
        member = person(f"a-{role}", acme=role)
        with pytest.raises(PermissionDeniedError):
            organisations.set_member(member, acme, member.name, "admin")
        with pytest.raises(PermissionDeniedError):
            organisations.remove_member(member, acme, "viewer")


def test_admins_look_after_members_and_one_admin_stays(
    organisations: OrganisationService, acme: str, person: Person
) -> None:
    admin = person("admin", acme="admin")
    person("grace")
    assert organisations.set_member(admin, acme, "Grace", "viewer").role == "viewer"
    assert organisations.set_member(admin, acme, "grace", "triager").role == "triager"
    with pytest.raises(UserNotFoundError):
        organisations.set_member(admin, acme, "nobody", "viewer")
    with pytest.raises(UnknownRoleError):
        organisations.set_member(admin, acme, "grace", "king")
    for action in (
        lambda: organisations.remove_member(admin, acme, "admin"),
        lambda: organisations.set_member(admin, acme, "admin", "viewer"),
    ):
        with pytest.raises(LastAdminError):
            action()
    organisations.set_member(admin, acme, "grace", "admin")
    organisations.remove_member(admin, acme, "admin")
    with pytest.raises(OrganisationNotFoundError):
        organisations.get(admin, acme)
    with pytest.raises(MemberNotFoundError):
        organisations.remove_member(SYSTEM, acme, "admin")


def test_two_admins_can_not_both_leave_at_once(organisations: OrganisationService, acme: str, person: Person) -> None:
    admins = [person(f"admin{number}", acme="admin") for number in range(4)]

    def leave(admin: Subject) -> bool:
        try:
            organisations.remove_member(admin, acme, admin.name)
        except LastAdminError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(leave, admins)) == [False, True, True, True]


def test_a_disabled_admin_is_none(
    organisations: OrganisationService, acme: str, person: Person, database: Database
) -> None:
    admin = person("admin", acme="admin")
    person("gone", acme="admin")
    UserService(database).disable(SYSTEM, "gone")
    with pytest.raises(LastAdminError):
        organisations.remove_member(admin, acme, "admin")
    organisations.remove_member(admin, acme, "gone")


# ------------------------------------------------------------------------------------------------------ projects


def test_of_many_projects_only_those_are_given_that_may_be_read(
    projects: ProjectService, organisations: OrganisationService, acme: str, person: Person
) -> None:
    organisations.create(SYSTEM, "other")
    ours, theirs = projects.create(SYSTEM, "acme/vision").id, projects.create(SYSTEM, "other/vision").id
    viewer = person("viewer", acme="viewer")
    found = projects.of_ids(viewer, [ours, theirs, "nothing"])
    assert found == {ours: projects.get(viewer, ours)}


def test_names_belong_to_organisations(
    projects: ProjectService, organisations: OrganisationService, acme: str, person: Person
) -> None:
    organisations.create(SYSTEM, "other")
    maintainer = person("maintainer", acme="maintainer")
    assert projects.create(maintainer, "vision").name == "acme/vision"  # the only organisation
    assert projects.get(maintainer, "vision").name == "acme/vision"
    with pytest.raises(ProjectExistsError):
        projects.create(maintainer, "acme/vision")
    for name in ("other/vision", "nowhere/vision"):
        with pytest.raises(ProjectNotFoundError):
            projects.create(maintainer, name)
    assert projects.create(SYSTEM, "vision").name == "vision"
    assert projects.create(SYSTEM, "other/vision").organisation == "other"
    assert [view.name for view in projects.list(maintainer).items] == ["acme/vision"]
    assert [view.name for view in projects.list(SYSTEM).items] == ["acme/vision", "other/vision", "vision"]
    assert [view.name for view in projects.list(SYSTEM, organisation="other").items] == ["other/vision"]
    in_two = person("two", acme="maintainer", other="maintainer")
    with pytest.raises(ProjectNotFoundError, match="organisation/name"):
        projects.create(in_two, "audio")
    for name in ("", "/x", "a//b", "a/b/c", "x" * 101, "a b", "-x"):
        with pytest.raises(ProjectNameError):
            projects.create(SYSTEM, name)


def test_lists_go_page_by_page(projects: ProjectService) -> None:
    for number in range(5):
        projects.create(SYSTEM, f"p{number}")
    first = projects.list(SYSTEM, limit=2)
    second = projects.list(SYSTEM, limit=2, cursor=first.next_cursor)
    third = projects.list(SYSTEM, limit=2, cursor=second.next_cursor)
    assert [view.name for page in (first, second, third) for view in page.items] == ["p0", "p1", "p2", "p3", "p4"]
    assert third.next_cursor is None


def test_a_maintainer_changes_a_project_and_others_do_not(projects: ProjectService, acme: str, person: Person) -> None:
    maintainer, triager = person("maintainer", acme="maintainer"), person("triager", acme="triager")
    stranger = person("stranger", default="admin")
    made = projects.create(
        maintainer, "acme/vision", repository_url="https://GitHub.com/x/y.git", default_branch="main"
    )
    assert (made.repository_url, made.default_branch) == ("https://github.com/x/y.git", "main")
    assert made.permissions == EVERYTHING - {Permission.ADMINISTER}
    with pytest.raises(PermissionDeniedError):
        projects.update(triager, made.id, archived=True)
    with pytest.raises(ProjectNotFoundError):
        projects.update(stranger, made.id, archived=True)
    changed = projects.update(
        maintainer, made.id, name="sight", settings={"modes": {"GP305": "monitor"}, "bot": {"blocks": True}}
    )
    assert changed.name == "acme/sight"
    assert changed.settings.bot.blocks
    assert changed.repository_url == "https://github.com/x/y.git"
    assert projects.update(maintainer, "acme/sight", repository_url=None).repository_url is None
    for changes, error in (
        ({"name": "other/sight/x"}, ProjectNameError),
        ({"repository_url": "http://github.com/x"}, GitUrlError),
        ({"default_branch": "a b"}, ProjectNameError),
        ({"settings": {"bot": {"inline_most": 31}}}, InvalidProjectSettingsError),
    ):
        with pytest.raises(error):
            projects.update(maintainer, made.id, **changes)
    projects.create(maintainer, "acme/audio")
    with pytest.raises(ProjectExistsError):
        projects.update(maintainer, "acme/audio", name="acme/sight")


def test_an_archived_project_takes_no_analyses_and_is_listed_apart(
    projects: ProjectService, analyses: AnalysisService, database: Database
) -> None:
    projects.create(SYSTEM, "vision")
    before = analyses.submit(SYSTEM, SNAPSHOT, project="vision").analysis_id
    projects.update(SYSTEM, "vision", archived=True)
    with database.reading() as session:
        project_id = session.get_one(AnalysisRow, before).project_id
    of_the_project = Subject("token", "t", "ci", EVERYTHING, project_id=project_id)
    for refused in (
        lambda: analyses.submit(SYSTEM, SNAPSHOT, project="vision"),
        lambda: analyses.submit(of_the_project, SNAPSHOT),
        lambda: analyses.rerun(of_the_project, before),
        lambda: analyses.rerun(SYSTEM, before),
    ):
        with pytest.raises(ProjectArchivedError):
            refused()
    assert len(analyses.list(SYSTEM).items) == 1
    assert projects.list(SYSTEM).items == ()
    assert [view.name for view in projects.list(SYSTEM, archived=True).items] == ["vision"]
    projects.update(SYSTEM, "vision", archived=False)
    assert analyses.submit(SYSTEM, SNAPSHOT, project="vision").created
    assert analyses.rerun(of_the_project, before).created


def test_a_role_in_one_project_is_for_that_project(
    projects: ProjectService, organisations: OrganisationService, acme: str, person: Person, analyses: AnalysisService
) -> None:
    admin, guest = person("admin", acme="admin"), person("guest")
    projects.create(admin, "acme/vision")
    projects.create(admin, "acme/audio")
    organisations.set_project_member(admin, "acme/vision", "guest", "triager")
    assert [view.name for view in projects.list(guest).items] == ["acme/vision"]
    assert analyses.submit(guest, SNAPSHOT, project="acme/vision").created
    for name in ("acme/audio", "acme/new"):
        with pytest.raises(ProjectNotFoundError):
            analyses.submit(guest, SNAPSHOT, project=name)
    with pytest.raises(PermissionDeniedError):
        organisations.set_project_member(guest, "acme/vision", "guest", "admin")
    assert [member.name for member in organisations.project_members(guest, "acme/vision").items] == ["guest"]
    organisations.remove_project_member(admin, "acme/vision", "guest")
    assert projects.list(guest).items == ()
    with pytest.raises(MemberNotFoundError):
        organisations.remove_project_member(admin, "acme/vision", "guest")


# ------------------------------------------------------------------------------------------------------ analyses


def test_submitting_makes_a_project_only_where_that_is_allowed(
    analyses: AnalysisService, projects: ProjectService, acme: str, person: Person
) -> None:
    triager, viewer = person("triager", acme="triager"), person("viewer", acme="viewer")
    made = analyses.submit(triager, SNAPSHOT, project="vision").analysis_id
    assert analyses.get(triager, made).project == "acme/vision"
    assert analyses.get(viewer, made).project == "acme/vision"
    with pytest.raises(PermissionDeniedError):
        analyses.submit(viewer, SNAPSHOT, project="vision")
    for name in ("audio", "acme/audio"):
        with pytest.raises(PermissionDeniedError):
            analyses.submit(viewer, SNAPSHOT, project=name)
    projects.create(SYSTEM, "secret")
    with pytest.raises(ProjectNotFoundError):
        analyses.submit(triager, SNAPSHOT, project="default/secret")
    assert [view.name for view in projects.list(SYSTEM).items] == ["acme/vision", "secret"]


def test_an_analysis_is_seen_by_its_project_or_by_who_asked_for_it(
    analyses: AnalysisService, acme: str, person: Person, tokens: TokenService
) -> None:
    triager, viewer, stranger = person("triager", acme="triager"), person("viewer", acme="viewer"), person("stranger")
    shared = analyses.submit(triager, SNAPSHOT, project="acme/vision").analysis_id
    private = analyses.submit(triager, SNAPSHOT).analysis_id
    assert [item.id for item in analyses.list(triager).items] == [private, shared]
    assert [item.id for item in analyses.list(viewer).items] == [shared]
    assert analyses.list(stranger).items == ()
    assert len(analyses.list(SYSTEM).items) == 2
    for subject, hidden in ((viewer, private), (stranger, shared), (stranger, private)):
        for action in (analyses.get, analyses.parts, analyses.report, analyses.rerun, analyses.cancel):
            with pytest.raises(AnalysisNotFoundError):
                action(subject, hidden)
        with pytest.raises(AnalysisNotFoundError):
            analyses.submit(subject, SNAPSHOT, base=hidden)
    for action in (analyses.rerun, analyses.cancel):
        with pytest.raises(PermissionDeniedError):
            action(viewer, shared)
    with pytest.raises(ProjectNotFoundError):
        analyses.submit(stranger, SNAPSHOT, project="acme/vision")
    assert analyses.list(stranger, project="acme/vision").items == ()
    own = tokens.authenticate(tokens.create("ci", ["submit"], user="triager").text)
    assert own is not None
    assert analyses.get(own, private).id == private
    assert analyses.cancel(own, private).status == "cancelled"


def test_a_token_of_a_project_acts_there_only(
    analyses: AnalysisService, projects: ProjectService, tokens: TokenService
) -> None:
    projects.create(SYSTEM, "vision")
    projects.create(SYSTEM, "audio")
    elsewhere = analyses.submit(SYSTEM, SNAPSHOT, project="audio").analysis_id
    subject = tokens.authenticate(tokens.create("ci", ["submit"], project="vision").text)
    assert subject is not None
    here = analyses.submit(subject, SNAPSHOT).analysis_id
    assert analyses.get(subject, here).project == "vision"
    assert analyses.submit(subject, SNAPSHOT, project="vision").created
    for name in ("audio", "new"):
        with pytest.raises(ProjectNotFoundError):
            analyses.submit(subject, SNAPSHOT, project=name)
    with pytest.raises(AnalysisNotFoundError):
        analyses.get(subject, elsewhere)
    with pytest.raises(PermissionDeniedError):
        projects.update(subject, "vision", archived=True)


# -------------------------------------------------------------------------------------------------------- tokens


def test_a_token_may_no_more_than_whoever_made_it(
    tokens: TokenService, projects: ProjectService, acme: str, person: Person
) -> None:
    maintainer, triager = person("maintainer", acme="maintainer"), person("triager", acme="triager")
    projects.create(maintainer, "acme/vision")
    made = tokens.issue(triager, "  my   laptop ", "admin", lifetime=timedelta(days=1))
    assert made.info.name == "my laptop"
    holder = tokens.authenticate(made.text)
    assert holder is not None
    with pytest.raises(PermissionDeniedError):  # the scope is all, but the role is not
        projects.update(holder, "acme/vision", archived=True)
    of_project = tokens.issue(maintainer, "ci", "triage", lifetime=None, project="acme/vision")
    subject = tokens.authenticate(of_project.text)
    assert subject is not None
    assert not subject.everywhere
    assert [view.name for view in projects.list(subject).items] == ["acme/vision"]
    reader = tokens.authenticate(tokens.create("r", ["read"], user="maintainer").text)
    assert reader is not None
    too_much: list[Callable[[], object]] = [
        lambda: tokens.issue(maintainer, "ci", "admin", lifetime=None, project="acme/vision"),
        lambda: tokens.issue(triager, "ci", "read", lifetime=None, project="acme/vision"),
        lambda: tokens.issue(maintainer, "ci", "read", lifetime=None, installation=True),
        lambda: tokens.issue(subject, "ci", "read", lifetime=None),
        lambda: tokens.issue(reader, "ci", "submit", lifetime=None),
    ]
    for action in too_much:
        with pytest.raises(PermissionDeniedError):
            action()
    for name in ("", " ", "x" * 101, "a\x00b"):
        with pytest.raises(TokenNameError):
            tokens.issue(triager, name, "read", lifetime=None)
    with pytest.raises(UnknownScopeError):
        tokens.issue(triager, "x", "king", lifetime=None)


def test_tokens_are_listed_and_revoked_by_whom_they_concern(
    tokens: TokenService, projects: ProjectService, acme: str, person: Person, database: Database
) -> None:
    maintainer, triager = person("maintainer", acme="maintainer"), person("triager", acme="triager")
    projects.create(maintainer, "acme/vision")
    own = tokens.issue(triager, "own", "read", lifetime=None).info.id
    shared = tokens.issue(maintainer, "ci", "read", lifetime=None, project="acme/vision").info.id
    everything = tokens.create("all", ["read"]).info.id
    assert [token.id for token in tokens.list(triager).items] == [own]
    assert [token.id for token in tokens.list(maintainer).items] == [shared]
    assert [token.id for token in tokens.list(maintainer, project="acme/vision").items] == [shared]
    assert [token.id for token in tokens.list(SYSTEM).items] == [everything, shared, own]
    assert [token.id for token in tokens.list(SYSTEM, cursor=everything, limit=1).items] == [shared]
    for subject, foreign in ((triager, shared), (triager, everything), (maintainer, own), (maintainer, "nobody")):
        with pytest.raises(TokenNotFoundError):
            tokens.withdraw(subject, foreign)
    assert tokens.withdraw(triager, own).revoked_at is not None
    assert tokens.withdraw(triager, own).revoked_at is not None
    assert tokens.withdraw(maintainer, shared).revoked_at is not None


def test_a_token_of_before_there_were_users_acts_everywhere(tokens: TokenService, database: Database) -> None:
    created = tokens.create("old", ["submit"])
    with database.unit_of_work() as uow:
        uow.session.execute(update(ApiTokenRow).values(user_id=None, project_id=None))
    subject = tokens.authenticate(created.text)
    assert subject is not None
    assert subject.everywhere
    assert subject.permissions == {Permission.READ, Permission.SUBMIT}


# --------------------------------------------------------------------------------------------------------- audit


def test_the_log_is_for_those_who_answer_for_it(
    projects: ProjectService,
    organisations: OrganisationService,
    tokens: TokenService,
    person: Person,
    audit: AuditService,
) -> None:
    acme = organisations.create(SYSTEM, "acme").slug
    admin, maintainer = person("admin", acme="admin"), person("maintainer", acme="maintainer")
    viewer, stranger = person("viewer", acme="viewer"), person("stranger", default="admin")
    vision = projects.create(maintainer, "acme/vision")
    projects.update(maintainer, "acme/vision", settings={"bot": {"blocks": True}})
    token = tokens.issue(maintainer, "ci", "read", lifetime=None, project="acme/vision")
    tokens.withdraw(maintainer, token.info.id)
    organisations.set_member(admin, acme, "viewer", "triager")
    seen = [event.action for event in audit.list(maintainer).items]
    assert seen == ["token.revoke", "token.create", "project.change", "project.create"]
    of_admin = audit.list(admin)
    assert [event.action for event in of_admin.items][:5] == ["member.change", *seen]
    assert of_admin.items[0].details == {"name": "viewer", "from": "viewer", "to": "triager"}
    assert (of_admin.items[1].project, of_admin.items[1].actor_name) == ("acme/vision", "maintainer")
    assert of_admin.items[3].details == {"settings": {"from": {}, "to": {"bot": {"blocks": True}}}}
    assert audit.list(viewer).items == ()
    assert "project.create" not in [event.action for event in audit.list(stranger).items]
    assert len(audit.list(SYSTEM).items) > len(of_admin.items)
    with pytest.raises(PermissionDeniedError):
        audit.list(Subject("token", "t", "reader", frozenset({Permission.READ}), everywhere=True))
    first = audit.list(admin, limit=2)
    rest = audit.list(admin, limit=200, cursor=first.next_cursor)
    assert (*first.items, *rest.items) == of_admin.items
    for wanted, actions in (
        (AuditFilter(project_id=vision.id), seen),
        (AuditFilter(project_id=vision.id, action="token"), seen[:2]),
        (AuditFilter(action="token.create"), seen[1:2]),
        (AuditFilter(action="toke"), []),
        (AuditFilter(actor_id=admin.id), ["member.change"]),
        (AuditFilter(organisation_id="nobody"), []),
    ):
        assert [event.action for event in audit.list(admin, wanted=wanted).items] == actions, wanted


def test_no_secret_is_written_down(tokens: TokenService, person: Person, database: Database) -> None:
    text = tokens.issue(person("ada"), "laptop", "read", lifetime=None).text
    with database.reading() as session:
        kept = " ".join(str(vars(row)) for row in session.scalars(select(AuditEventRow)))
    assert text not in kept
    assert text[-10:] not in kept
