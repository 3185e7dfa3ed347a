"""People, organisations and tokens by command: what is asked for, what is printed, what is said of mistakes."""

from __future__ import annotations

import io

import pytest

from api.cli.main import run
from services.accounts import SYSTEM, TokenService
from services.accounts.organisations import OrganisationService
from services.accounts.users import UserService
from services.database import Database
from services.projects.service import ProjectService
from services.settings import Settings

PASSWORD = "staple horse battery"


@pytest.fixture
def service(database: Database, service_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A service whose settings the command line comes to as well."""
    for name in ("database_url", "broker_url", "data_dir"):
        monkeypatch.setenv(f"GRADPROOF_{name.upper()}", str(getattr(service_settings, name)))
    monkeypatch.setenv("GRADPROOF_SECRET_KEY", service_settings.secret_key.get_secret_value())
    return database


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_from_an_empty_installation_to_an_admin_who_signs_in(
    service: Database, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["organisation", "create", "acme", "--name", "Acme Research"]) == 0
    assert "gradproof user create NAME --organisation acme --role admin" in capfd.readouterr().err
    typed(monkeypatch, f"{PASSWORD}\n")
    arguments = ["user", "create", "Ada", "--organisation", "acme", "--role", "admin", "--password-stdin"]
    assert run(arguments) == 0
    told = capfd.readouterr()
    assert told.out == ""
    assert "ada signs in at http://127.0.0.1:8000/sign-in." in told.err
    ada = UserService(service).sign_in("ada", PASSWORD, address=None)
    assert [member.role for member in OrganisationService(service).members(ada, "acme").items] == ["admin"]
    typed(monkeypatch, "another staple horse\n")
    assert run(["user", "password", "ada", "--password-stdin"]) == 0
    assert UserService(service).sign_in("ada", "another staple horse", address=None) == ada
    assert run(["user", "disable", "ada"]) == 0
    assert UserService(service).find("ada").disabled_at is not None
    assert run(["user", "enable", "ada"]) == 0
    assert UserService(service).find("ada").disabled_at is None


def test_an_operator_is_made_and_the_last_one_stays(
    service: Database, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("ada", "bob"):
        typed(monkeypatch, f"{PASSWORD}\n")
        assert run(["user", "create", name, "--password-stdin"]) == 0
        assert run(["user", "operator", name]) == 0
    assert run(["user", "operator", "ada", "--revoke"]) == 0
    assert [user.is_operator for user in UserService(service).list(SYSTEM).items] == [False, True]
    assert "ada is an operator no more." in capfd.readouterr().err
    assert run(["user", "operator", "bob", "--revoke"]) == 2
    assert "make somebody else one first" in capfd.readouterr().err


def test_who_belongs_nowhere_is_told_so(
    service: Database, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, f"{PASSWORD}\r\n")
    assert run(["user", "create", "ada", "--password-stdin"]) == 0
    assert "belongs to no organisation yet and sees nothing" in " ".join(capfd.readouterr().err.split())
    typed(monkeypatch, f"{PASSWORD}\n")
    assert run(["user", "create", "root", "--operator", "--password-stdin"]) == 0
    assert "no organisation" not in capfd.readouterr().err
    assert UserService(service).sign_in("root", PASSWORD, address=None).everywhere


def test_an_account_gets_another_address_or_none(service: Database, capfd: pytest.CaptureFixture[str]) -> None:
    UserService(service).create(SYSTEM, "ada", password=None)
    assert run(["user", "email", "ada", "ada@team.example"]) == 0
    assert UserService(service).find("ada").email == "ada@team.example"
    assert "ada has the address ada@team.example." in capfd.readouterr().err
    assert run(["user", "email", "ada", "ada at team"]) == 2
    assert "no e-mail address" in capfd.readouterr().err
    assert run(["user", "email", "ada"]) == 0
    assert UserService(service).find("ada").email is None
    assert run(["user", "email", "nobody", "ada@team.example"]) == 2


def test_a_mistake_leaves_nothing_behind(
    service: Database, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["user", "create", "ada", "--organisation", "nowhere"], "No such organisation"),
        (["user", "create", "a b"], "A user can't be called that"),
        (["user", "password", "nobody"], "No such user"),
    ):
        typed(monkeypatch, f"{PASSWORD}\n")
        assert run([*arguments, "--password-stdin"]) == 2
        assert said in capfd.readouterr().err
    typed(monkeypatch, "short\n")
    assert run(["user", "create", "ada", "--password-stdin"]) == 2
    assert "at least 12 characters" in capfd.readouterr().err
    for command in ("disable", "enable", "operator"):
        assert run(["user", command, "nobody"]) == 2
    assert run(["organisation", "create", "default"]) == 2
    assert UserService(service).list(SYSTEM).items == ()


def test_tokens_of_users_and_projects(
    service: Database, service_settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    ada = UserService(service).create(SYSTEM, "ada", password=None)
    project = ProjectService(service, service_settings).create(SYSTEM, "vision")
    tokens = TokenService(service, service_settings)
    for arguments, of in (
        (["--user", "ada"], (ada.id, None)),
        (["--project", "vision"], (None, project.id)),
        ([], (None, None)),
    ):
        assert run(["token", "create", "CI", "--scope", "triage", *arguments]) == 0
        subject = tokens.authenticate(capfd.readouterr().out.strip())
        assert subject is not None
        assert (subject.user_id, subject.project_id) == of
        assert subject.everywhere is (of == (None, None))
    assert run(["token", "create", "CI", "--user", "ada", "--project", "vision"]) == 2
    assert run(["token", "create", "CI", "--user", "nobody"]) == 2
    assert run(["token", "create", "CI", "--project", "nothing"]) == 2
