"""Settings come from the environment; what can't be is refused with the variable's name."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.settings import InvalidSettingError, read_settings
from services.settings.mail import MailServer, read_mail_server


def test_a_plain_number_is_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADPROOF_CHECK_WALL", "7.5")
    assert read_settings().check_wall == timedelta(seconds=7.5)


def test_an_iso_8601_duration_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADPROOF_SANDBOX_WALL", "PT1H")
    assert read_settings().sandbox_wall == timedelta(hours=1)


def test_a_budget_may_be_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADPROOF_EXAMPLES_BUDGET", "0")
    monkeypatch.setenv("GRADPROOF_ANALYSIS_BUDGET", "0")
    settings = read_settings()
    assert not settings.examples_budget
    assert not settings.analysis_budget


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GRADPROOF_CONCURRENCY", "0"),
        ("GRADPROOF_CHECK_WALL", "soon"),
        ("GRADPROOF_CHECK_WALL", "inf"),
        ("GRADPROOF_CHECK_WALL", "-5"),
        ("GRADPROOF_GIT_HOSTS", "example.org"),
        ("GRADPROOF_CHECK_WALL", "100000"),
        ("GRADPROOF_LEASE", "1"),
        ("GRADPROOF_HEARTBEAT", "0"),
        ("GRADPROOF_EXAMPLES_BUDGET", "-1"),
        ("GRADPROOF_ANALYSIS_BUDGET", "never"),
    ],
)
def test_a_value_that_cannot_be_names_its_variable(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettingError) as caught:
        read_settings()
    assert variable.removeprefix("GRADPROOF_").lower() in caught.value.message.lower()
    assert caught.value.exit_code == 2


MAIL = {"GRADPROOF_SMTP_URL": "smtp://mail.example", "GRADPROOF_MAIL_FROM": "gradproof@team.example"}


def test_mail_is_off_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().mail_server is None
    for variable, value in MAIL.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("GRADPROOF_SMTP_USER", "gradproof")
    monkeypatch.setenv("GRADPROOF_SMTP_PASSWORD", "never-shown")
    settings = read_settings()
    assert settings.mail_server == MailServer("mail.example", 587, tls=False)
    assert settings.smtp_starttls == "auto"
    assert "never-shown" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtps://mail.example", MailServer("mail.example", 465, tls=True)),
        ("smtp://127.0.0.1:25/", MailServer("127.0.0.1", 25, tls=False)),
        ("smtp://[::1]:2525", MailServer("::1", 2525, tls=False)),
    ],
)
def test_addresses_of_mail_servers(url: str, expected: MailServer) -> None:
    assert read_mail_server(url) == expected


def test_which_mail_server_is_this_machine() -> None:
    here = {host: MailServer(host, 25, tls=False).is_here for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1")}
    assert here == {"127.0.0.1": True, "::1": True, "localhost": True, "10.0.0.1": False}
    assert not MailServer("localhost.mail.example", 25, tls=False).is_here


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GRADPROOF_SMTP_URL", "mail.example:587"),
        ("GRADPROOF_SMTP_URL", "https://mail.example"),
        ("GRADPROOF_SMTP_URL", "smtp://"),
        ("GRADPROOF_SMTP_URL", "smtp://mail.example:70000"),
        ("GRADPROOF_SMTP_URL", "smtp://mail.example/inbox"),
        ("GRADPROOF_SMTP_URL", "smtp://ada:never-shown@mail.example"),
        ("GRADPROOF_SMTP_URL", ""),
        ("GRADPROOF_MAIL_FROM", ""),
        ("GRADPROOF_MAIL_FROM", "gradproof"),
        ("GRADPROOF_MAIL_FROM", "Gradproof <gradproof@team.example>"),
        ("GRADPROOF_MAIL_FROM", "gradproof@team.example\nBcc: eve@else.example"),
        ("GRADPROOF_SMTP_USER", "ada"),
        ("GRADPROOF_SMTP_PASSWORD", "never-shown"),
        ("GRADPROOF_SMTP_STARTTLS", "perhaps"),
        ("GRADPROOF_SMTP_CA_FILE", "/nowhere/ca.pem"),
    ],
)
def test_mail_that_cannot_be_sent_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    for name, usual in MAIL.items():
        monkeypatch.setenv(name, usual)
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettingError) as caught:
        read_settings()
    assert variable in caught.value.message
    assert "never-shown" not in caught.value.message


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_the_usual_postgresql_urls_mean_psycopg(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("GRADPROOF_DATABASE_URL", f"{scheme}://u@h/d")
    assert read_settings().effective_database_url == "postgresql+psycopg://u@h/d"


def test_secrets_of_forges_are_not_shown_and_none_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADPROOF_GITHUB_WEBHOOK_SECRETS", '["old-secret", "new-secret"]')
    monkeypatch.setenv("GRADPROOF_GITLAB_TOKEN", "glpat-never-shown")
    settings = read_settings()
    assert [secret.get_secret_value() for secret in settings.github_webhook_secrets] == ["old-secret", "new-secret"]
    assert "-secret" not in repr(settings)
    assert "never-shown" not in repr(settings)
    assert not settings.github_is_set
    monkeypatch.setenv("GRADPROOF_GITHUB_WEBHOOK_SECRETS", '["old-secret", ""]')
    with pytest.raises(InvalidSettingError, match="GRADPROOF_GITHUB_WEBHOOK_SECRETS has an empty one"):
        read_settings()
