"""The process that imports the package and forks a child for each document of examples.

From the import on it belongs to the submitted code; `mine` checks all that it says. What a document's child says is
passed on at once, so that a child that is killed has shown what it showed until then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gradproof_probe.mining.examples import Document
from gradproof_probe.mining.running import import_first, run_document, settle_in
from gradproof_probe.missing_modules import install
from gradproof_probe.processes import LineWriter, watch

BLOCK_S: Final = 12.0
DOCUMENT_S: Final = 30.0
A_BLOCK_MORE_S: Final = 2.0  # long READMEs show most of a package
DEATHS: Final = 3  # blocks of one document that may end its process before it is given up
CALL_BYTES: Final = 40_000
CALLS_OF_A_DOCUMENT: Final = 400
ENOUGH: Final = 8  # calls of one target after which later documents aren't watched for it


@dataclass(frozen=True, slots=True)
class Ground:
    """What is mined: `roots` says from where each target's module is imported."""

    source_root: Path
    targets: tuple[str, ...]
    roots: dict[str, str]
    scratch: Path
    stand_ins: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Make this process one that may run submitted code."""
        settle_in(self.scratch / f"child-{os.getpid()}")
        for root in {"", *self.roots.values()}:
            sys.path.insert(0, str(self.source_root / root))
        install(self.stand_ins)

    def packages(self) -> list[str]:
        return sorted({target.partition(":")[0].partition(".")[0] for target in self.targets})


def dig(ground: Ground, documents: Sequence[Document], deadline: float, writer: LineWriter, *, preload: bool) -> None:
    """Say `ready` or `missing`, then `call` and `example` lines, and `document` when one is done."""
    ground.prepare()
    if preload and (missing := import_first(ground.packages())) is not None and missing not in ground.stand_ins:
        writer.write({"type": "missing", "name": missing})
        return
    writer.write({"type": "ready"})
    shown: Counter[str] = Counter()
    for document in documents:
        if time.monotonic() > deadline:
            return
        # A document about targets that earlier ones showed shows nothing new, as a rule.
        if not document.mentions or not document.mentions <= shown.keys():
            wanted = frozenset(target for target in ground.targets if shown[target] < ENOUGH)
            until = min(deadline, time.monotonic() + DOCUMENT_S + A_BLOCK_MORE_S * len(document.blocks))
            shown.update(_Excavation(ground, document, wanted, until, writer).run())
        writer.write({"type": "document"})


class _Excavation:
    """One document: its child, and another one for the rest of the blocks if a block ends it."""

    def __init__(
        self, ground: Ground, document: Document, wanted: frozenset[str], until: float, writer: LineWriter
    ) -> None:
        self._ground = ground
        self._document = document
        self._wanted = wanted
        self._until = until
        self._writer = writer
        self._running = 0
        self._block_until = 0.0
        self._calls: Counter[str] = Counter()
        self._outcomes: dict[int, dict[str, Any]] = {}

    def run(self) -> Counter[str]:
        """How many calls of each target were shown."""
        skip = 0
        for _ in range(DEATHS):
            self._running, self._block_until = skip, time.monotonic() + BLOCK_S
            end = watch(
                lambda child, skip=skip: self._work(child, skip),  # type: ignore[misc]
                deadline=lambda: min(self._until, self._block_until),
                on_line=self._hear,
            )
            if end.clean and len(self._document.blocks) - 1 in self._outcomes:
                break
            self._outcomes[self._running] = {
                "outcome": "timed_out" if end.how == "timed_out" else "raised",
                "detail": f"its process {end.describe()}",
            }
            skip = self._running + 1
            if skip >= len(self._document.blocks) or time.monotonic() >= self._until:
                break
        for number, message in sorted(self._outcomes.items()):
            place, kind = self._document.blocks[number].place, self._document.kind
            self._writer.write({**message, "type": "example", "place": place, "kind": kind})
        return self._calls

    def _work(self, child: LineWriter, skip: int) -> None:
        run_document(self._document, self._ground.source_root, self._wanted, skip=skip, tell=child.write)

    def _hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        kind, number = message.get("type"), message.get("block")
        if kind == "call" and len(line) <= CALL_BYTES and self._calls.total() < CALLS_OF_A_DOCUMENT:
            self._calls[str(message.get("target"))] += 1
            self._writer.write(message)
        elif isinstance(number, int) and 0 <= number < len(self._document.blocks):
            if kind == "begin":
                self._running, self._block_until = number, time.monotonic() + BLOCK_S
            elif kind == "block":
                self._outcomes[number] = {"outcome": message.get("outcome"), "detail": message.get("detail")}
