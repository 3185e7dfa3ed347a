"""The fake forge on real ports, an App's client for it, and a receiver of webhooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forge_fake.application import App, Receiver
from tools.fake_forge import FakeForge


@pytest.fixture
def forge() -> Iterator[FakeForge]:
    with FakeForge() as running:
        yield running


@pytest.fixture
def app(forge: FakeForge) -> Iterator[App]:
    """A client of the App, which gets its token when it is first needed."""
    with App(forge) as client:
        yield client


@pytest.fixture
def receiver(forge: FakeForge) -> Iterator[Receiver]:
    with Receiver() as running:
        forge.webhook_url = running.url
        yield running
