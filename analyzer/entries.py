"""A directory of small documents under names that are digests: what was computed once and may be looked up again.

Several processes may use it at the same time. An entry is data (JSON), never code; a damaged one is as good as none,
and a directory that can't be written costs nothing but the next run's time. This module must not know what is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECONDS_BETWEEN_TOUCHES = 86_400.0


@dataclass(frozen=True, slots=True)
class EntryDirectory:
    """Documents in `directory`. Above `most` entries `clear_old` takes away those that were not used for longest."""

    directory: Path
    most: int

    def load(self, name: str) -> Any:
        """The document of this name, or None."""
        entry = self._entry(name)
        try:
            document = json.loads(entry.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _SECONDS_BETWEEN_TOUCHES:
                os.utime(entry)
        return document

    def store(self, name: str, text: str) -> None:
        """Keep a document, given as JSON, whole or not at all."""
        entry = self._entry(name)
        with contextlib.suppress(OSError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=entry.parent)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    stream.write(text)
                Path(temporary).replace(entry)
            except BaseException:  # a full disk, or Ctrl-C
                Path(temporary).unlink(missing_ok=True)
                raise

    def clear_old(self) -> None:
        """Take away a third, when there are too many."""
        with contextlib.suppress(OSError):
            entries = [(entry.stat().st_mtime, entry) for entry in self.directory.glob("??/*.json")]
            if len(entries) > self.most:
                for _, entry in sorted(entries)[: len(entries) - self.most * 2 // 3]:
                    entry.unlink(missing_ok=True)

    def _entry(self, name: str) -> Path:
        return self.directory / name[:2] / f"{name[2:]}.json"
