"""Settings come from the environment; what can't be is refused with the variable's name."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.settings import InvalidSettingError, read_settings


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
