"""Whether forges can be spoken to, as the doctor tells it; no key and no token is ever shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from services.settings import Settings
from tools.fake_forge import FakeForge
from worker.doctor_forges import examine_forges


@pytest.fixture
def forge() -> Iterator[FakeForge]:
    with FakeForge() as running:
        yield running


@pytest.fixture
def settings(forge: FakeForge, embedded_settings: Settings, tmp_path: Path) -> Settings:
    key = tmp_path / "app.pem"
    key.write_text(forge.private_key)
    changes = {
        "github_app_id": str(forge.app_id),
        "github_private_key_file": key,
        "github_webhook_secrets": (SecretStr("a secret"),),
        "github_api_url": forge.url,
        "gitlab_url": forge.secure_url,
        "gitlab_token": SecretStr(forge.gitlab.token),
        "gitlab_webhook_secrets": (SecretStr("a secret"),),
        "forge_ca_file": forge.authority,
    }
    return embedded_settings.model_copy(update=changes)


def test_forges_that_work_say_who_writes(forge: FakeForge, settings: Settings) -> None:
    assert list(examine_forges(settings)) == [
        ("github", True, f"{forge.url} answers; comments are by {forge.bot}", ""),
        ("gitlab", True, f"{forge.secure_url} answers; comments are by {forge.gitlab.bot}", ""),
    ]


def test_nothing_is_said_of_forges_that_are_not_set(embedded_settings: Settings) -> None:
    assert list(examine_forges(embedded_settings)) == []


def test_what_is_missing_or_refused_is_named(settings: Settings, tmp_path: Path) -> None:
    half = settings.model_copy(update={"github_webhook_secrets": (), "gitlab_token": SecretStr("glpat-no-such-token")})
    told = {name: (works, detail) for name, works, detail, _ in examine_forges(half)}
    assert told["github"] == (False, "GRADPROOF_GITHUB_WEBHOOK_SECRETS is not set: nothing is taken from there")
    assert not told["gitlab"][0]
    assert "does not take our credential" in told["gitlab"][1]
    assert "glpat" not in told["gitlab"][1]
    for file, said in ((tmp_path / "none.pem", "can't be read"), (Path(__file__), "is no RSA key")):
        broken = settings.model_copy(update={"github_private_key_file": file})
        (name, works, detail, _), *_ = examine_forges(broken)
        assert (name, works, said in detail) == ("github", False, True)
