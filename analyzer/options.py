"""What the analyzer is asked to do. Values only: this module must not know files or rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnalyzerOptions:
    """What to run and how far to go.

    `minimum_torch`: the oldest torch that the code is to run with, `2.1`; None: what the snapshot says, if anything.
    `rules`: ids to run (None: all). `max_bytes`: larger files are refused (GP002); the largest of 6,292 files of ten
    packages has 0.4 MiB. `max_seconds_per_file`: a file that takes longer is given up (GP002).
    """

    rules: frozenset[str] | None = None
    max_bytes: int = 4 * 1024 * 1024
    max_seconds_per_file: float = 20.0
    minimum_torch: str | None = None

    def runs(self, rule: str) -> bool:
        return self.rules is None or rule in self.rules


DEFAULT_OPTIONS = AnalyzerOptions()
