"""Recipes from the repository's own examples: reads them, has them run in children, and says what was shown.

The children are two processes that import the package once and fork: for each document one that runs its examples,
which may end it or use up its time (`digging`), then for each target a fresh one that rebuilds the recorded calls from
their text alone (`trying`). Only what ran there is said. Everything that comes from a child is untrusted: it is
checked and bounded here. No submitted code runs in this process.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gradproof_probe.mining.digging import Ground, dig
from gradproof_probe.mining.examples import Document, find_documents
from gradproof_probe.mining.trying import try_targets
from gradproof_probe.processes import watch
from gradproof_probe.protocol import FOUND_BY
from gradproof_probe.request import KINDS

Say = Callable[[dict[str, Any]], None]

SHARE: Final = 0.65  # of the budget for running examples; the rest is for trying what they showed
RECIPES: Final = 5  # of one target
CALLS: Final = 12  # recorded calls of one target that are kept to be tried
IMPORT_S: Final = 30.0
RESTARTS: Final = 3  # of a process that others are forked from
STAND_INS: Final = 12
MANY: Final = 4096  # elements up to which dimensions of more than one are worth their time
INPUTS: Final = 64
EXPRESSION: Final = 4000  # characters
OUTCOMES: Final = ("ran", "raised", "timed_out", "skipped")


def mine(source_root: Path, targets: Sequence[str], budget_s: float, say: Say) -> None:
    """Say `example` lines for the blocks that were run and `mined` lines, the best recipe of a target first."""
    started = time.monotonic()
    root = source_root.resolve()
    documents = find_documents(root, targets)
    if not documents:
        return
    scratch = Path(tempfile.mkdtemp(prefix="gradproof-mining-"))
    ground = Ground(root, tuple(targets), import_roots(root, targets), scratch)
    session = _Session(ground, say)
    try:
        session.run_examples(documents, started + SHARE * budget_s)
        session.try_calls(started + budget_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def import_roots(source_root: Path, targets: Sequence[str]) -> dict[str, str]:
    """For each target's module the directory, relative to the source root, from which it is imported."""
    found: dict[str, str] = {}
    candidates = ["", *_directories(source_root)]
    for module in {target.partition(":")[0] for target in targets}:
        relative = module.replace(".", "/")
        for root in candidates:
            base = source_root / root / relative
            if base.with_suffix(".py").is_file() or (base / "__init__.py").is_file():
                found[module] = root
                break
    return found


def _directories(source_root: Path, depth: int = 3) -> list[str]:
    """Directories that aren't packages themselves, the shallow ones first."""
    found: list[str] = []
    level = [source_root]
    for _ in range(depth):
        inner: list[Path] = []
        for directory in level:
            with contextlib.suppress(OSError):
                inner += sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
        level = [directory for directory in inner if not (directory / "__init__.py").is_file()][:200]
        found += [directory.relative_to(source_root).as_posix() for directory in level]
    return found


@dataclass(slots=True)
class _Digging:
    """What the process that runs examples said so far."""

    ready: bool = False
    done: int = 0
    missing: str | None = None


@dataclass(slots=True)
class _Session:
    ground: Ground
    say: Say
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=dict)
    preload: bool = True

    def run_examples(self, documents: Sequence[Document], deadline: float) -> None:
        done = restarts = 0
        while done < len(documents) and time.monotonic() < deadline and restarts <= RESTARTS:
            heard = self._dig(documents[done:], deadline)
            if self._stand_in(heard.missing):
                continue
            restarts += 1
            done += heard.done
            if not heard.ready:
                if not self.preload:
                    return
                self.preload = False  # importing the package ended the process: an example may import less of it
            else:
                done += 1  # the one that was running ended the process that it was forked from

    def _dig(self, documents: Sequence[Document], deadline: float) -> _Digging:
        heard = _Digging()
        by_then = min(deadline, time.monotonic() + IMPORT_S)

        def hear(line: bytes) -> None:
            message = _message(line)
            kind = message.get("type")
            if kind == "ready":
                heard.ready = True
            elif kind == "missing":
                heard.missing = str(message.get("name"))
            elif kind == "document":
                heard.done = min(heard.done + 1, len(documents))
            elif kind == "example":
                self._example(message)
            elif kind == "call":
                self._keep(message)

        watch(
            lambda writer: dig(self.ground, documents, deadline, writer, preload=self.preload),
            # A second more than it gives itself: what it heard last is still passed on.
            deadline=lambda: deadline + 1.0 if heard.ready else by_then,
            on_line=hear,
        )
        return heard

    def _stand_in(self, name: str | None) -> bool:
        """Whether another run is worth it, with a stand-in for this missing module."""
        stand_ins = self.ground.stand_ins
        if name is None or not name.isidentifier() or name in stand_ins or len(stand_ins) >= STAND_INS:
            return False
        stand_ins.append(name)
        return True

    def _example(self, message: dict[str, Any]) -> None:
        if message.get("outcome") in OUTCOMES:
            self.say(
                {
                    "type": "example",
                    "place": str(message.get("place"))[:300],
                    "kind": str(message.get("kind"))[:20],
                    "outcome": message["outcome"],
                    "detail": str(message.get("detail", ""))[:500],
                }
            )

    def _keep(self, message: dict[str, Any]) -> None:
        target = message.get("target")
        forms = message.get("forms")
        if target not in self.ground.targets or message.get("kind") not in KINDS or not isinstance(forms, list):
            return
        kept = self.calls.setdefault(str(target), [])
        if len(kept) < CALLS and all(call["forms"] != forms for call in kept):
            kept.append(message)

    def try_calls(self, deadline: float) -> None:
        """Targets with small calls first, so that a large one doesn't take the time of many."""
        queue = sorted(self.calls, key=lambda target: min(cost(call) for call in self.calls[target]))
        restarts = 0
        while queue and time.monotonic() < deadline and restarts <= RESTARTS:
            tried = self._try(queue, deadline)
            rest = [target for target in queue if target not in tried]
            queue = rest[1:]  # the first of those left ended the process that it was forked from
            restarts += 1

    def _try(self, queue: Sequence[str], deadline: float) -> set[str]:
        tried: set[str] = set()

        def hear(line: bytes) -> None:
            message = _message(line)
            if message.get("type") == "mined":
                self._mined(message)
            elif message.get("type") == "tried":
                tried.add(str(message.get("target")))

        calls = {target: sorted(self.calls[target], key=cost) for target in queue}
        watch(
            lambda writer: try_targets(self.ground, calls, RECIPES, deadline, writer, preload=self.preload),
            deadline=lambda: deadline + 1.0,
            on_line=hear,
        )
        return tried

    def _mined(self, message: dict[str, Any]) -> None:
        target = message.get("target")
        recipe = _recipe(message.get("recipe"))
        if target in self.calls and recipe is not None and self.said.get(str(target), 0) < RECIPES:
            self.said[str(target)] = self.said.get(str(target), 0) + 1
            self.say({"type": "mined", "target": target, "recipe": recipe})


def cost(call: dict[str, Any]) -> tuple[int, ...]:
    """Calls with floating inputs before others, small ones before large ones, of those the short ones first."""
    elements, single = (call[key] if isinstance(call.get(key), int) else 0 for key in ("elements", "single"))
    return (0 if call.get("floats") else 1, int(elements > MANY), single, elements, len(json.dumps(call["forms"])))


def _recipe(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    constructor, inputs = value.get("constructor"), value.get("inputs")
    if not (constructor is None or isinstance(constructor, str)) or not isinstance(inputs, list):
        return None
    texts = [constructor or "", *inputs]
    if len(inputs) > INPUTS or not all(isinstance(text, str) and len(text) <= EXPRESSION for text in texts):
        return None
    found_by = value.get("found_by")
    return {
        "constructor": constructor,
        "inputs": inputs,
        "provenance": str(value.get("provenance", ""))[:300],
        "found_by": found_by if found_by in FOUND_BY else "readme",
    }


def _message(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
