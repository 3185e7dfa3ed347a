"""The key under which the results of a target are kept: two targets with the same key have the same results.

Everything that results rest on goes into it: the source that importing the target loads, how it is built and called,
what is suspected in it, which checks ask with which bounds, the probe itself and the packages beside it. Leaving one
of them out would show a verdict about other code. This module must not know where results are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from analyzer.findings import TargetDeclaration
from services.reports.document import CheckInfo, Harness

# Bounds of time and memory, or a fault of the surroundings, not the code alone brought these about: worth another try.
_CIRCUMSTANTIAL: Final = frozenset(
    {"timed out", "crashed", "out of memory", "budget spent", "infrastructure", "cancelled"}
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the results of all targets of an analysis rest on beside their source.

    `probe` is a digest of the probe's own files, `environment` one of the interpreter and of the packages installed
    beside it. `bounds` are the limits of time and memory.
    """

    probe: str
    environment: str
    device: str = "cpu"
    seed: int = 0
    checks: tuple[str, ...] = ()
    tolerances: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)


def reuse_key(
    target: TargetDeclaration,
    closure: str | None,
    *,
    declared: Mapping[str, object] | None,
    mined: Sequence[Mapping[str, object]],
    hypotheses: Sequence[Mapping[str, object]],
    circumstances: Circumstances,
) -> str | None:
    """The key, or None where it can't be told what importing the target loads: then it is always run."""
    if closure is None:
        return None
    parts = {
        "target": asdict(target),
        "closure": closure,
        "declared": declared,
        "mined": [dict(item) for item in mined],
        "hypotheses": [dict(item) for item in hypotheses],
        "circumstances": asdict(circumstances),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def is_lasting(
    harness: Harness | None, not_run_reason: str | None, checks: Sequence[CheckInfo], *, asked: Collection[str]
) -> bool:
    """Whether the results of a target are whole and would come out the same another time."""
    if harness is None:
        return not_run_reason is not None and not_run_reason not in _CIRCUMSTANTIAL
    return {check.check for check in checks} >= set(asked) and all(check.verdict != "error" for check in checks)
