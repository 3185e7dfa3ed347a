"""Every route, asked by everybody: who gets in, who is refused, for whom it does not exist.

`ROUTES` names every call and every page that there is; a new one without a line here fails. Each is asked on real
objects of a project, by subjects of every role and by tokens of every kind; and, if its address names something, on
those of a project in somebody else's organisation, which must not exist for any of them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from api.app import create_app
from api.pages.badges import badge_address
from services.accounts.access import EVERYTHING, SYSTEM, Permission, Role, Subject, allowed
from services.accounts.models import UserRow
from services.accounts.organisations import OrganisationService
from services.accounts.passwords import hash_password
from services.accounts.service import TokenService
from services.accounts.sessions import SessionService
from services.accounts.users import UserService
from services.analyses.service import AnalysisService
from services.database import Database
from services.forges.models import InstallationRow, PullRequestRow, RepositoryRow
from services.projects.hooks import HookService
from services.projects.models import HookDeliveryRow
from services.projects.service import ProjectService
from services.projects.shares import ShareService
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from tests.reports.samples import check
from tests.routes import every_route
from tests.serving import MODULE, RunningServer, Workshop, upload

READ, SUBMIT, TRIAGE = Permission.READ, Permission.SUBMIT, Permission.TRIAGE
CONFIGURE, ADMINISTER = Permission.CONFIGURE, Permission.ADMINISTER
NOTHING: Final[frozenset[Permission]] = frozenset()


@dataclass(frozen=True)
class Who:
    """Somebody who asks. `most` is the most that it may anywhere, `here` what it may in the project of the table."""

    name: str
    most: frozenset[Permission]
    here: frozenset[Permission]
    in_organisation: frozenset[Permission]
    everywhere: bool = False
    is_user: bool = False
    is_session: bool = False


def _member(name: str, role: Role) -> Who:
    return Who(name, EVERYTHING, allowed(role), allowed(role), is_user=True)


READING = frozenset({READ})
TRIAGING = frozenset({READ, SUBMIT, TRIAGE})
NOBODY = Who("nobody", NOTHING, NOTHING, NOTHING)
EVERYBODY = (
    NOBODY,
    Who("foreign", EVERYTHING, NOTHING, NOTHING, is_user=True),
    _member("viewer", Role.VIEWER),
    _member("triager", Role.TRIAGER),
    _member("maintainer", Role.MAINTAINER),
    _member("admin", Role.ADMIN),
    Who("project token", TRIAGING, TRIAGING, NOTHING),
    Who("admin's token that reads", READING, READING, READING, is_user=True),
    Who("installation token that reads", READING, READING, READING, everywhere=True),
    Who("installation token", EVERYTHING, EVERYTHING, EVERYTHING, everywhere=True),
)


# --------------------------------------------------------------------------------------------------- expectations

ALLOWED, UNKNOWN, REFUSED, MISSING = "allowed", "401", "403", "404"
Expectation = Callable[[Who], str]


def public(who: Who) -> str:
    return ALLOWED


def always(outcome: str) -> Expectation:
    """Whoever it is, since it is not who asks that counts."""
    return lambda _who: outcome


def signed_in(who: Who) -> str:
    return UNKNOWN if who is NOBODY else ALLOWED


def token_with(permission: Permission) -> Expectation:
    """Whose token has a scope; what is shown depends on who it is."""

    def expect(who: Who) -> str:
        if who is NOBODY:
            return UNKNOWN
        return ALLOWED if permission in who.most else REFUSED

    return expect


def in_project(permission: Permission) -> Expectation:
    """A page: what can't be read does not exist, what can't be done is refused."""

    def expect(who: Who) -> str:
        if who is NOBODY:
            return UNKNOWN
        if READ not in who.here:
            return MISSING
        return ALLOWED if permission in who.here else REFUSED

    return expect


def call_in_project(permission: Permission, scope: Permission | None = None) -> Expectation:
    """A call: the scope of the token is judged first."""

    def expect(who: Who) -> str:
        if who is not NOBODY and (scope or permission) not in who.most:
            return REFUSED
        return in_project(permission)(who)

    return expect


def in_organisation(permission: Permission, scope: Permission | None = None) -> Expectation:
    def expect(who: Who) -> str:
        if who is NOBODY:
            return UNKNOWN
        if scope is not None and scope not in who.most:
            return REFUSED
        if READ not in who.in_organisation:
            return MISSING
        return ALLOWED if permission in who.in_organisation else REFUSED

    return expect


def operators(who: Who) -> str:
    if who is NOBODY:
        return UNKNOWN
    return ALLOWED if who.everywhere and ADMINISTER in who.most else REFUSED


def own_tokens(who: Who) -> str:
    """Whoever may make tokens: users for themselves, operators for the installation."""
    if who is NOBODY:
        return UNKNOWN
    return ALLOWED if ADMINISTER in who.most and (who.is_user or who.everywhere) else REFUSED


def tokens_of_project(who: Who) -> str:
    """Another one's token does not exist for whoever does not look after it."""
    if who is NOBODY:
        return UNKNOWN
    if ADMINISTER not in who.most:
        return REFUSED
    return ALLOWED if CONFIGURE in who.here else MISSING


def users_only(who: Who) -> str:
    if who is NOBODY:
        return UNKNOWN
    return ALLOWED if who.is_user and who.most == EVERYTHING else REFUSED


# ---------------------------------------------------------------------------------------------------- the routes


@dataclass(frozen=True)
class Line:
    """What a route expects, and what it has to be sent. `fresh` makes what asking for it uses up."""

    expect: Expectation
    json: Any = None
    form: Mapping[str, str] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    fine: tuple[int, ...] = ()
    fresh: str | None = None
    upload: bool = False


SHARED = {"code": "{share_code}"}
API = "/api/v1"
PROJECT = f"{API}/projects/{{project}}"
ANALYSIS = f"{API}/analyses/{{analysis_id}}"
ORGANISATION = f"{API}/organisations/{{organisation}}"
PAGE = "/projects/{project_id}"
DECISION = {"state": "accepted", "reason": "known"}
PASSWORD = "staple horse battery"
HOOK = "https://hooks.example/x"

ROUTES: dict[str, Line] = {
    # documentation, health, ways in
    f"GET {API}/checks": Line(public),
    f"GET {API}/rules": Line(public),
    f"GET {API}/rules/{{rule_id}}": Line(public),
    "GET /healthz": Line(public),
    "GET /readyz": Line(public, fine=(503,)),
    "GET /rules": Line(public),
    "GET /rules/{rule_id}": Line(public),
    "GET /checks/{name}": Line(public, names={"name": "gradcheck"}),
    "GET /static/{name}": Line(public, names={"name": "site.css"}),
    "GET /favicon.ico": Line(public),
    "GET /badges/{project_id}/{code}.svg": Line(public),  # whoever has its address
    "GET /sign-in": Line(public),
    "GET /projects": Line(public),  # the old address of `/`: a redirect
    "POST /sign-in": Line(always(UNKNOWN), form={"token": "gp_api_wrong"}),
    "GET /sign-in/{code}": Line(always(UNKNOWN)),
    "GET /openid/sign-in": Line(always(MISSING)),  # no provider is set up
    "GET /openid/callback": Line(always(MISSING)),
    "POST /webhooks/{forge}": Line(always(MISSING)),  # no forge is
    f"POST {API}/webhooks/{{forge}}": Line(always(MISSING)),
    "POST /sign-out": Line(public, form={}, fresh="session"),
    "POST /sign-out/everywhere": Line(signed_in, form={}, fresh="session"),
    # for the API: an installation, its analyses and what came of them
    "GET /metrics": Line(token_with(READ)),
    f"GET {API}/analyses": Line(token_with(READ)),
    f"POST {API}/analyses": Line(call_in_project(SUBMIT), upload=True),
    f"GET {ANALYSIS}": Line(call_in_project(READ)),
    f"GET {ANALYSIS}/events": Line(call_in_project(READ)),
    f"GET {ANALYSIS}/report": Line(call_in_project(READ)),
    f"GET {ANALYSIS}/findings": Line(call_in_project(READ)),
    f"GET {ANALYSIS}/targets": Line(call_in_project(READ)),
    f"GET {ANALYSIS}/checks": Line(call_in_project(READ)),
    f"GET {ANALYSIS}/compare": Line(call_in_project(READ), query={"base": "{analysis_id}"}),
    f"GET {ANALYSIS}/compliance": Line(call_in_project(READ)),
    f"POST {ANALYSIS}/rerun": Line(call_in_project(SUBMIT)),
    f"POST {ANALYSIS}/cancel": Line(call_in_project(SUBMIT), fresh="open_analysis"),
    f"GET {ANALYSIS}/shares": Line(call_in_project(SUBMIT)),
    f"POST {ANALYSIS}/shares": Line(call_in_project(SUBMIT), json={"days": 1}),
    f"DELETE {API}/shares/{{link_id}}": Line(call_in_project(SUBMIT), fresh="share"),
    # for the API: projects and people
    f"GET {API}/projects": Line(token_with(READ)),
    f"POST {API}/projects": Line(in_organisation(CONFIGURE, CONFIGURE), json={"name": "{slug}/p{number}"}),
    f"GET {PROJECT}": Line(call_in_project(READ)),
    f"PATCH {PROJECT}": Line(call_in_project(CONFIGURE), json={"default_branch": "main"}),
    f"GET {PROJECT}/members": Line(call_in_project(READ)),
    f"PUT {PROJECT}/members/{{user}}": Line(call_in_project(ADMINISTER), json={"role": "viewer"}),
    f"DELETE {PROJECT}/members/{{user}}": Line(call_in_project(ADMINISTER), fresh="guest"),
    f"GET {PROJECT}/hooks": Line(call_in_project(CONFIGURE)),
    f"POST {PROJECT}/hooks": Line(call_in_project(CONFIGURE), json={"url": HOOK}, fresh="hook"),
    f"PATCH {PROJECT}/hooks/{{hook_id}}": Line(call_in_project(CONFIGURE), json={"disabled": False}),
    f"DELETE {PROJECT}/hooks/{{hook_id}}": Line(call_in_project(CONFIGURE), fresh="hook"),
    f"GET {PROJECT}/hooks/{{hook_id}}/deliveries": Line(call_in_project(CONFIGURE)),
    f"POST {PROJECT}/hooks/{{hook_id}}/deliveries/{{delivery_id}}/repeat": Line(call_in_project(CONFIGURE)),
    f"GET {PROJECT}/findings": Line(call_in_project(READ)),
    f"GET {PROJECT}/findings/{{fingerprint}}": Line(call_in_project(READ)),
    f"PATCH {PROJECT}/findings/{{fingerprint}}": Line(call_in_project(TRIAGE), json=DECISION),
    f"POST {PROJECT}/findings/bulk": Line(
        call_in_project(TRIAGE), json={**DECISION, "fingerprints": ["{fingerprint}"]}
    ),
    f"POST {PROJECT}/findings/{{fingerprint}}/comments": Line(call_in_project(TRIAGE), json={"text": "seen"}),
    f"GET {API}/organisations": Line(token_with(READ)),
    f"POST {API}/organisations": Line(operators, json={"name": "o{number}"}),
    f"GET {ORGANISATION}": Line(in_organisation(READ)),
    f"GET {ORGANISATION}/members": Line(in_organisation(READ)),
    f"PUT {ORGANISATION}/members/{{user}}": Line(in_organisation(ADMINISTER, ADMINISTER), json={"role": "viewer"}),
    f"DELETE {ORGANISATION}/members/{{user}}": Line(in_organisation(ADMINISTER, ADMINISTER), fresh="member"),
    f"GET {API}/tokens": Line(token_with(READ)),
    f"POST {API}/tokens": Line(own_tokens, json={"name": "x", "scope": "read"}),
    f"DELETE {API}/tokens/{{token_id}}": Line(tokens_of_project, fresh="token"),
    f"GET {API}/audit": Line(token_with(CONFIGURE)),
    # pages of analyses
    "GET /": Line(signed_in),
    "GET /analyses": Line(signed_in),
    "GET /inbox": Line(signed_in),
    "GET /workers": Line(signed_in),
    "GET /analyses/{analysis_id}": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/about": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/compliance": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/compliance.json": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/findings": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/findings/{fingerprint}": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/left-out": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/progress": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/report/{format_name}": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/targets": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/targets/{which:path}": Line(in_project(READ)),
    "GET /analyses/{analysis_id}/compare": Line(signed_in, query={"base": "{analysis_id}"}),  # leads to the next one
    "GET /compare": Line(in_project(READ), query={"base": "{analysis_id}", "head": "{analysis_id}"}),
    "GET /analyses/{analysis_id}/shares": Line(in_project(SUBMIT)),
    "POST /analyses/{analysis_id}/shares": Line(in_project(SUBMIT), form={}),
    "POST /analyses/{analysis_id}/shares/{link_id}/revoke": Line(in_project(SUBMIT), form={}, fresh="share"),
    "GET /pull-requests/{pull_request_id}": Line(in_project(READ)),
    "POST /analyses/{analysis_id}/rerun": Line(in_project(SUBMIT), form={}),
    "POST /analyses/{analysis_id}/cancel": Line(in_project(SUBMIT), form={}, fresh="open_analysis"),
    # pages of projects
    "GET /projects/new": Line(signed_in),
    "POST /projects/new": Line(in_organisation(CONFIGURE), form={"name": "{slug}/p{number}"}),
    "GET /projects/{organisation}/{name}": Line(in_project(READ)),
    f"GET {PAGE}": Line(in_project(READ)),
    f"GET {PAGE}/findings": Line(in_project(READ)),
    f"GET {PAGE}/findings/{{fingerprint}}": Line(in_project(READ)),
    f"GET {PAGE}/rules": Line(in_project(READ)),
    f"GET {PAGE}/audit": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/audit.csv": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/bot": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/triage": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/gate": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/hooks": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/hooks/{{hook_id}}": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/members": Line(in_project(CONFIGURE)),
    f"GET {PAGE}/settings/tokens": Line(in_project(CONFIGURE)),
    "POST /findings/decide": Line(
        in_project(TRIAGE), form={"finding": "{project_id}:{fingerprint}", "reason": "known"}
    ),
    f"POST {PAGE}/findings/{{fingerprint}}/decide": Line(in_project(TRIAGE), form={"reason": "known"}),
    f"POST {PAGE}/findings/{{fingerprint}}/assign": Line(in_project(TRIAGE), form={}),
    f"POST {PAGE}/findings/{{fingerprint}}/comments": Line(in_project(TRIAGE), form={"text": "seen"}),
    f"POST {PAGE}/rules": Line(in_project(CONFIGURE), form={}),
    f"POST {PAGE}/rules/adopt": Line(in_project(CONFIGURE), form={}),
    f"POST {PAGE}/settings": Line(in_project(CONFIGURE), form={"name": "{slug}/vision"}),
    f"POST {PAGE}/settings/archive": Line(in_project(CONFIGURE), form={}, fresh="unarchive"),
    f"POST {PAGE}/settings/restore": Line(in_project(CONFIGURE), form={}),
    f"POST {PAGE}/settings/bot": Line(in_project(CONFIGURE), form={}),
    f"POST {PAGE}/settings/triage": Line(in_project(CONFIGURE), form={"assign": "owner"}),
    f"POST {PAGE}/settings/gate": Line(in_project(CONFIGURE), form={}),
    f"POST {PAGE}/settings/hooks": Line(in_project(CONFIGURE), form={"url": HOOK}, fresh="hook"),
    f"POST {PAGE}/settings/hooks/{{hook_id}}/{{action}}": Line(in_project(CONFIGURE), form={}, fresh="hook"),
    f"POST {PAGE}/settings/hooks/{{hook_id}}/deliveries/{{delivery_id}}/repeat": Line(in_project(CONFIGURE), form={}),
    f"POST {PAGE}/settings/members": Line(in_project(ADMINISTER), form={"user": "guest", "role": "viewer"}),
    f"POST {PAGE}/settings/tokens": Line(in_project(CONFIGURE), form={"name": "x", "scope": "read"}),
    f"POST {PAGE}/settings/tokens/{{token_id}}/revoke": Line(in_project(CONFIGURE), form={}, fresh="token"),
    # pages of organisations, of the installation, of oneself
    "GET /organisations": Line(signed_in),
    "POST /organisations": Line(operators, form={"slug": "o{number}"}),
    "GET /organisations/{slug}": Line(in_organisation(READ)),
    "POST /organisations/{slug}/members": Line(in_organisation(ADMINISTER), form={"user": "guest", "role": "viewer"}),
    "GET /organisations/{slug}/audit": Line(in_organisation(ADMINISTER)),
    "GET /organisations/{slug}/audit.csv": Line(in_organisation(ADMINISTER)),
    "GET /installation": Line(operators),
    "POST /installation/users": Line(operators, form={"name": "u{number}"}),
    "POST /installation/users/{name}/{action}": Line(
        operators, form={}, names={"name": "expendable", "action": "disable"}
    ),
    "GET /me": Line(signed_in),
    "POST /me": Line(users_only, form={"display_name": "x"}),
    "POST /me/digest": Line(users_only, form={}),
    "POST /me/password": Line(users_only, form={"old": PASSWORD, "new": PASSWORD}),
    "POST /me/sessions/{session_id}/end": Line(signed_in, form={}),
    "POST /me/tokens": Line(own_tokens, form={"name": "x", "scope": "read"}),
    "POST /me/tokens/{token_id}/revoke": Line(tokens_of_project, form={}, fresh="token"),
    # what a share link shows, to whoever has it
    "GET /shared/{code}": Line(public, names=SHARED),
    "GET /shared/{code}/about": Line(public, names=SHARED),
    "GET /shared/{code}/findings": Line(public, names=SHARED),
    "GET /shared/{code}/findings/{fingerprint}": Line(public, names=SHARED),
    "GET /shared/{code}/left-out": Line(public, names=SHARED),
    "GET /shared/{code}/progress": Line(public, names=SHARED),
    "GET /shared/{code}/targets": Line(public, names=SHARED),
    "GET /shared/{code}/targets/{which:path}": Line(public, names=SHARED),
}


# ------------------------------------------------------------------------------------------------------ the world


@dataclass
class Place:
    """The objects of one project, by the names that addresses have for them."""

    names: dict[str, str]


class World:
    """Two organisations with a project each, in which there is one of everything; and everybody of the table."""

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self.settings = settings
        self.database = Database.open(settings, lambda _queue: None)
        self._scratch = scratch
        self._count = 0
        self._hash = hash_password(PASSWORD)
        self._cookies: dict[str, str] = {}
        self.organisations = OrganisationService(self.database)
        self.users = UserService(self.database)
        self.projects = ProjectService(self.database, settings)
        self.tokens = TokenService(self.database, settings)
        self.sessions = SessionService(self.database, settings)
        self.hooks = HookService(self.database, settings)
        self.shares = ShareService(self.database, settings)
        self.analyses = AnalysisService(self.database, settings)
        for slug in ("acme", "other"):
            self.organisations.create(SYSTEM, slug)
        for name in ("guest", "expendable"):
            self.users.create(SYSTEM, name, password=None)
        self.here = self._place("acme")
        self.elsewhere = self._place("other")
        self.bearers = {who.name: self._token(who) for who in EVERYBODY if who is not NOBODY}

    def close(self) -> None:
        self.database.close()

    def _place(self, slug: str) -> Place:
        project = self.projects.create(SYSTEM, f"{slug}/vision").id
        workshop = Workshop(self.settings)
        with read_directory(self._scratch) as tree:
            snapshot = SnapshotStore(self.settings.snapshot_dir).put(tree)
        analysis = self.analyses.submit(SYSTEM, snapshot, project=f"{slug}/vision").analysis_id
        workshop.read()
        workshop.probe(check(verdict="fail", path="pkg/a.py", line=6))
        workshop.close()
        report = self.analyses.report(SYSTEM, analysis)
        hook = self.hooks.create(SYSTEM, project, HOOK).id
        link = self.shares.create(SYSTEM, analysis, 1)
        with self.database.unit_of_work() as uow:
            delivery = HookDeliveryRow(hook_id=hook, event="analysis.finished")
            installation = InstallationRow(forge="github", external_id=slug, account=slug, organisation_id="default")
            uow.session.add_all([delivery, installation])
            uow.session.flush()
            repository = RepositoryRow(
                forge="github", external_id=slug, full_name=f"{slug}/vision", clone_url="https://github.com/x/y",
                web_url="https://github.com/x/y", default_branch="main", installation_id=installation.id,
                project_id=project,
            )  # fmt: skip
            uow.session.add(repository)
            uow.session.flush()
            request = PullRequestRow(
                repository_id=repository.id, number=1, base_ref="main", base_sha="0" * 40, head_ref="x",
                head_sha="1" * 40,
            )  # fmt: skip
            uow.session.add(request)
            uow.session.flush()
            names = {"delivery_id": delivery.id, "pull_request_id": request.id}
        return Place(
            {
                **names,
                "analysis_id": analysis,
                "project": project,
                "project_id": project,
                "organisation": slug,
                "slug": slug,
                "hook_id": hook,
                "link_id": link.id,
                "share_code": link.code,
                "token_id": self.tokens.create("x", ["read"], project=f"{slug}/vision").info.id,
                "fingerprint": report.findings[0].fingerprint,
                "which:path": report.targets[0].name,
                "format_name": "json",
                "user": "guest",
                "name": "vision",
                "action": "disable",
                "rule_id": "GP101",
                "code": "0.0.0",
                "forge": "github",
                "session_id": "0" * 27,
            }
        )

    def _token(self, who: Who) -> str:
        """A token that may as much as the subject: of a user all that the role allows."""
        if who.name == "project token":
            return self.tokens.create(who.name, ["triage"], project="acme/vision").text
        if who.everywhere:
            return self.tokens.create(who.name, ["admin" if ADMINISTER in who.most else "read"]).text
        if who.name == "admin's token that reads":
            return self.tokens.create(who.name, ["read"], user="admin").text
        user = self.users.create(SYSTEM, who.name, password=None)
        with self.database.unit_of_work() as uow:  # hashed once for all of them
            uow.session.get_one(UserRow, user.id).password = self._hash
        slug, role = ("other", "admin") if who.name == "foreign" else ("acme", who.name)
        self.organisations.set_member(SYSTEM, slug, who.name, role)
        return self.tokens.create(who.name, ["admin"], user=who.name).text

    def subject(self, who: Who) -> Subject:
        """Whoever looks at pages: a user who signed in, or the holder of a token."""
        if who.is_user and who.most == EVERYTHING:
            user = self.users.find(who.name)
            return Subject("user", user.id, user.name, EVERYTHING, user_id=user.id)
        subject = self.tokens.authenticate(self.bearers[who.name])
        assert subject is not None
        return subject

    def session(self, who: Who) -> str:
        """What the browser of somebody has in its cookie."""
        known = self._cookies.get(who.name)
        if known is None or self.sessions.find(known) is None:
            known = self._cookies[who.name] = self.sessions.begin(self.subject(who))
        return known

    def fresh(self, what: str | None, place: Place) -> dict[str, str]:
        """Something to be used up."""
        project, slug = place.names["project"], place.names["slug"]
        if what == "hook":
            for spent in self.hooks.list(SYSTEM, project):
                if spent.id != place.names["hook_id"]:
                    self.hooks.remove(SYSTEM, project, spent.id)
            return {"hook_id": self.hooks.create(SYSTEM, project, HOOK).id}
        if what == "share":
            return {"link_id": self.shares.create(SYSTEM, place.names["analysis_id"], 1).id}
        if what == "token":
            return {"token_id": self.tokens.create("x", ["read"], project=f"{slug}/vision").info.id}
        if what == "unarchive":
            self.projects.update(SYSTEM, project, archived=False)
        if what == "guest":
            self.organisations.set_project_member(SYSTEM, project, "guest", "viewer")
        if what == "member":
            self.organisations.set_member(SYSTEM, slug, "guest", "viewer")
        if what == "open_analysis":
            return {"analysis_id": self.analyses.rerun(SYSTEM, place.names["analysis_id"]).analysis_id}
        return {}

    def number(self) -> int:
        self._count += 1
        return self._count


@pytest.fixture(scope="module")
def world(migrated_sqlite_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("access")
    shutil.copy(migrated_sqlite_file, directory / "gradproof.sqlite3")
    scratch = directory / "scratch" / "pkg"
    scratch.mkdir(parents=True)
    (scratch / "__init__.py").write_text("")
    (scratch / "a.py").write_text(MODULE)
    made = World(_settings(directory), scratch.parent)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[RunningServer]:
    with RunningServer(world.settings) as running:
        yield running


def _settings(directory: Path) -> Settings:
    """Without limits on how much is asked for, which have tests of their own."""
    many = 1_000_000
    return Settings(
        data_dir=directory,
        request_rate=many,
        open_analyses_of_caller=many,
        open_analyses_of_project=many,
        open_analyses=many,
    )


# ------------------------------------------------------------------------------------------------------- the table


def ask(world: World, client: httpx.Client, who: Who, route: str, place: Place) -> str:
    """What becomes of a request: one of the outcomes above, or the status that nobody expected."""
    line = ROUTES[route]
    names = {
        **place.names,
        "number": str(world.number()),
        **{key: name.format(**place.names) for key, name in line.names.items()},
        **world.fresh(line.fresh, place),
    }

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        if isinstance(value, Mapping):
            return {key: filled(each) for key, each in value.items()}
        return re.sub(r"\{([a-z_:]+)\}", lambda match: names[match[1]], value) if isinstance(value, str) else value

    method, path = route.split(" ", 1)
    url = badge_address(world.settings, names["project_id"]) if "/badges/" in path else filled(path)
    more: dict[str, Any] = {"headers": {}, "params": filled(line.query)}
    if line.upload:
        more |= {
            "files": upload({"pkg/a.py": f"{MODULE}# {names['number']}\n"}),
            "data": filled({"project": "{slug}/vision"}),
        }
    elif line.json is not None:
        more["json"] = filled(line.json)
    if who is not NOBODY and path.startswith((API, "/metrics")):
        more["headers"]["Authorization"] = f"Bearer {world.bearers[who.name]}"
    elif who is not NOBODY:
        cookie = world.session(who)
        more["headers"]["Cookie"] = f"gradproof_session={cookie}"
        session = world.sessions.find(cookie)
        assert session is not None
        if line.form is not None:
            more["data"] = {**filled(line.form), "csrf": session.form_key}
    if line.form is not None and "data" not in more:
        more["data"] = {**filled(line.form), "csrf": "guessed"}
    response = client.request(method, url, **more)
    client.cookies.clear()
    if response.status_code < 400 or response.status_code in line.fine:
        return ALLOWED
    return str(response.status_code)


def judged(world: World, server: RunningServer, who: Who, place: Place, expected: Mapping[str, str]) -> list[str]:
    """Every route that answers otherwise."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        found = {route: ask(world, client, who, route, place) for route in expected}
    return [f"{route}: {found[route]}, not {expected[route]}" for route in expected if found[route] != expected[route]]


def test_every_route_has_its_line(world: World) -> None:
    there = {f"{method} {path}" for method, path in every_route(create_app(world.settings))}
    assert sorted(there - set(ROUTES)) == [], "these routes have no line in ROUTES"
    assert sorted(set(ROUTES) - there) == [], "these lines have no route"


@pytest.mark.parametrize("who", EVERYBODY, ids=lambda who: who.name)
def test_everybody_gets_what_the_table_says(world: World, server: RunningServer, who: Who) -> None:
    expected = {route: line.expect(who) for route, line in ROUTES.items()}
    assert judged(world, server, who, world.here, expected) == []


@pytest.mark.parametrize("who", [who for who in EVERYBODY if who.here and not who.everywhere], ids=lambda who: who.name)
def test_what_is_foreign_does_not_exist(world: World, server: RunningServer, who: Who) -> None:
    """Whoever may something here, asking for the same there."""
    stranger = replace(who, here=NOTHING, in_organisation=NOTHING)
    expected = {
        route: line.expect(stranger)
        for route, line in ROUTES.items()
        if line.expect(stranger) != line.expect(who) or MISSING in {line.expect(stranger), line.expect(who)}
    }
    assert len(expected) > 25
    assert judged(world, server, who, world.elsewhere, expected) == []
