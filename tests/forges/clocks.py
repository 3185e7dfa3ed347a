"""The time of a fake forge, for clients of it."""

from __future__ import annotations

from datetime import datetime

from tools.fake_forge.forge import FakeForge


class ForgeClock:
    """The fake forge's time, so that tokens live as long on both sides; sleeping moves it."""

    def __init__(self, forge: FakeForge) -> None:
        self._forge = forge
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._forge.clock.now()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._forge.clock.advance(seconds=seconds)
