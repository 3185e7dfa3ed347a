"""What a local analysis tells about how far it is: the command line shows it, tests listen to it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from several threads; implementations must stand that."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins: `snapshot`, `static`, `examples` or `checks`, with the number of its steps, 0 if unknown."""

    def step(self, label: str) -> None:
        """One step of the present stage has ended: a target, with what came of it."""


class SilentProgress:
    """For machines: nobody looks."""

    def stage(self, name: str, total: int) -> None:
        """Nothing."""

    def step(self, label: str) -> None:
        """Nothing."""
