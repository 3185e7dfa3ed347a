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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gradproof_probe.mining.examples import Document
from gradproof_probe.mining.running import import_first, run_document, settle_in
from gradproof_probe.missing_modules import install
from gradproof_probe.processes import LineWriter, watch

BLOCK_S: Final = 12.0
DOCUMENT_S: Final = 5.0  # for a document, for each of its blocks something more, and three times its share of the rest
A_BLOCK_MORE_S: Final = 1.0  # long READMEs show most of a package
DEATHS: Final = 3  # blocks of one document that may end its process before it is given up
CALL_BYTES: Final = 20_000
ALL_CALLS_BYTES: Final = 6 * 2**20  # below what one process may say (processes.RESULT_LIMIT)
ENOUGH: Final = 8  # calls of one target after which no more are wanted


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


class Shown:
    """How many calls of each target were passed on."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._bytes = 0

    def admits(self, target: object, size: int) -> bool:
        """Whether another call of this target, of `size` bytes, is passed on; it is counted then."""
        if not isinstance(target, str) or size > CALL_BYTES or self._bytes + size > ALL_CALLS_BYTES:
            return False
        if self.calls[target] >= ENOUGH:
            return False
        self.calls[target] += 1
        self._bytes += size
        return True


def dig(ground: Ground, documents: Sequence[Document], deadline: float, writer: LineWriter, *, preload: bool) -> None:
    """Say `ready` or `missing`, then `call` and `example` lines, and `document` when one is done."""
    ground.prepare()
    if preload and (missing := import_first(ground.packages())) is not None and missing not in ground.stand_ins:
        writer.write({"type": "missing", "name": missing})
        return
    writer.write({"type": "ready"})
    shown = Shown()
    for done, document in enumerate(documents):
        now = time.monotonic()
        if now > deadline:
            return
        worth = _worth_running(document, shown)
        if worth is not None:
            share = DOCUMENT_S + A_BLOCK_MORE_S * len(worth.blocks) + 3 * (deadline - now) / (len(documents) - done)
            until = min(deadline, now + share)
            _Excavation(ground, worth, shown, until, writer).run()
        writer.write({"type": "document"})


def _worth_running(document: Document, shown: Shown) -> Document | None:
    """What of it may show something new: examples of targets that earlier ones showed don't, as a rule."""
    if document.mentions and document.mentions <= shown.calls.keys():
        return None
    if not document.separate:
        return document
    blocks = tuple(block for block in document.blocks if not block.mentions <= shown.calls.keys() or not block.mentions)
    return replace(document, blocks=blocks)


class _Excavation:
    """One document: its child, and another one for the rest of the blocks if a block ends it."""

    def __init__(self, ground: Ground, document: Document, shown: Shown, until: float, writer: LineWriter) -> None:
        self._ground = ground
        self._document = document
        self._shown = shown
        self._until = until
        self._writer = writer
        self._running = 0
        self._block_until = 0.0
        self._outcomes: dict[int, dict[str, Any]] = {}

    def run(self) -> None:
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

    def _work(self, child: LineWriter, skip: int) -> None:
        wanted = frozenset(target for target in self._ground.targets if self._shown.calls[target] < ENOUGH)
        run_document(self._document, self._ground.source_root, wanted, skip=skip, tell=child.write)

    def _hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        kind, number = message.get("type"), message.get("block")
        if kind == "call":
            if self._shown.admits(message.get("target"), len(line)):
                self._writer.write(message)
        elif isinstance(number, int) and 0 <= number < len(self._document.blocks):
            if kind == "begin":
                self._running, self._block_until = number, time.monotonic() + BLOCK_S
            elif kind == "block":
                self._outcomes[number] = {"outcome": message.get("outcome"), "detail": message.get("detail")}
