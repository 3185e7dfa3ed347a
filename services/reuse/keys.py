"""The keys under which results are kept: two runs with the same key have the same results.

Everything that results rest on goes into it: the source that importing the target loads, how it is built and called,
what is suspected in it, which checks ask with which bounds, the probe itself and the packages beside it. Leaving one
of them out would show a verdict about other code. This module must not know where results are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from analyzer.findings import TargetDeclaration
from services.reports.document import CheckInfo, Harness

# Bounds of time and memory, or a fault of the surroundings, not the code alone brought these about: worth another try.
_CIRCUMSTANTIAL: Final = frozenset(
    {"timed out", "crashed", "out of memory", "budget spent", "infrastructure", "cancelled"}
)
# `__import__('a.b', …)` and `import_module('a.b')`: how a harness names what the target's own file does not.
_IMPORTED: Final = re.compile(r"(?:__import__|import_module)\(\s*['\"]([\w.]+)")
# Every run of the service starts from it, so that the same code gives the same results.
SEED: Final = 0
_ELSEWHERE: Final = sys.stdlib_module_names | {"torch"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands beside the submitted source: digests of the probe's own files, of the interpreter and packages."""

    probe: str
    environment: str


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the results of all targets of an analysis rest on beside their source. `bounds` limit time and memory."""

    surroundings: Surroundings
    seed: int = SEED
    tolerances: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)


def content_key(
    target: TargetDeclaration,
    closure: str | None,
    *,
    declared: Mapping[str, object] | None,
    hypotheses: Sequence[Mapping[str, object]],
    circumstances: Circumstances,
) -> str | None:
    """What is known of a target when its source was read; None where it can't be told what importing it loads."""
    if closure is None:
        return None
    return _digest([asdict(target), closure, declared, [dict(item) for item in hypotheses], asdict(circumstances)])


def run_key(content: str, *, mined: Sequence[Mapping[str, object]], device: str, checks: Sequence[str]) -> str:
    """The key of one run of a target: which recorded calls it is given, which checks are asked on which device."""
    return _digest([content, [dict(item) for item in mined], device, list(checks)])


def examples_key(snapshot: str, targets: Sequence[str], surroundings: Surroundings) -> str:
    """The key of a run of the repository's own examples: any file of it may take part."""
    return _digest([snapshot, list(targets), asdict(surroundings)])


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def is_lasting(
    harness: Harness | None, not_run_reason: str | None, checks: Sequence[CheckInfo], *, asked: Collection[str]
) -> bool:
    """Whether the results of a target are whole and would come out the same another time."""
    if harness is not None and _reaches_out(harness):
        return False
    if harness is None:
        return not_run_reason is not None and not_run_reason not in _CIRCUMSTANTIAL
    if any("without_device" in check.evidence for check in checks):
        return False  # the device that was asked for was not there
    return {check.check for check in checks} >= set(asked) and all(check.verdict != "error" for check in checks)


def _reaches_out(harness: Harness) -> bool:
    """Whether it is built or called with something of another file, which the key says nothing about."""
    named = (name for text in (harness.constructor or "", *harness.inputs) for name in _IMPORTED.findall(text))
    return any(name.partition(".")[0] not in _ELSEWHERE for name in named)
