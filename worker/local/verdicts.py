"""Keeps what running a target on this machine brought, for the next run of `gradproof check`.

A file of a user's own cache can lie about nothing but that user's verdicts; what is read is validated all the same.
This module must not know how a key comes about (`services.reuse.keys`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from analyzer.entries import EntryDirectory
from services.reports.document import CheckInfo, ExampleInfo, Harness
from worker.execution.batch import Call

_Kept = TypeVar("_Kept", bound=BaseModel)

# 5 KiB on average: 150 MB at most.
_MAX_ENTRIES: Final = 30_000


class KeptResult(BaseModel):
    """What a target's run said."""

    model_config = ConfigDict(frozen=True)

    harness: Harness | None
    not_run_reason: str | None
    not_run_detail: str
    checks: tuple[CheckInfo, ...]


class KeptExamples(BaseModel):
    """What the repository's own examples showed: what was tried, and the recorded calls by the name of the target."""

    model_config = ConfigDict(frozen=True)

    tried: tuple[ExampleInfo, ...]
    calls: Mapping[str, tuple[Call, ...]]


@dataclass(frozen=True, slots=True)
class VerdictCache:
    """Results by their key in a directory."""

    directory: Path

    def load(self, key: str, kind: type[_Kept]) -> _Kept | None:
        """What is kept under the key, as this kind of thing."""
        document = EntryDirectory(self.directory, _MAX_ENTRIES).load(key)
        try:
            return kind.model_validate(document)
        except ValidationError:
            return None

    def store(self, key: str, kept: BaseModel) -> None:
        """Keep it."""
        EntryDirectory(self.directory, _MAX_ENTRIES).store(key, json.dumps(kept.model_dump(mode="json")))

    def clear_old(self) -> None:
        """Take away what was not used for longest, when there is too much."""
        EntryDirectory(self.directory, _MAX_ENTRIES).clear_old()
