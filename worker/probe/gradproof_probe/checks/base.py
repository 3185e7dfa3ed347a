"""What every check is given and what it gives back. A check runs in a process of its own and may be killed there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.lines import plain

# Of what a check takes, where it does less in less time: three random directions instead of the whole battery.
LEAST_SHARE: Final = 0.1

Verdict = Literal["pass", "fail", "inconclusive", "skipped", "error"]


@dataclass(frozen=True, slots=True)
class Documentation:
    """Plain Markdown sentences for the documentation page of the check."""

    summary: str
    what_it_does: str
    how_it_decides: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The named cause: `cause` is a stable word, `text` a sentence, `numbers` what it rests on."""

    cause: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`path` (relative to the source root) and `line` are where the fault is, if it could be attributed."""

    verdict: Verdict
    summary: str
    device: str = "cpu"
    diagnosis: Diagnosis | None = None
    path: str | None = None
    line: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    repro: str | None = None

    def to_wire(self, check: str, duration_s: float) -> dict[str, Any]:
        diagnosis = None
        if self.diagnosis is not None:
            diagnosis = {
                "cause": self.diagnosis.cause,
                "text": self.diagnosis.text,
                "numbers": plain(dict(self.diagnosis.numbers)),
            }
        return {
            "check": check,
            "verdict": self.verdict,
            "device": self.device,
            "summary": self.summary,
            "diagnosis": diagnosis,
            "path": self.path,
            "line": self.line,
            "evidence": plain(dict(self.evidence)),
            "repro": self.repro,
            "duration_s": round(duration_s, 4),
        }


@dataclass(frozen=True, slots=True)
class CheckContext:
    """One target with its harness, and the bounds. `deadline` is monotonic seconds: a check that needs longer says
    `inconclusive` with what it has; one that doesn't is killed."""

    resolved: Resolved
    recipe: Recipe
    source_root: Path
    device: str
    seed: int
    deadline: float
    inductor_s: float = 0.0
    tolerances: Mapping[str, float] = field(default_factory=dict)
    # What static findings suspect inside the target: `rule`, `fingerprint`, `path`, `line` and what the rule adds.
    hypotheses: tuple[Mapping[str, Any], ...] = ()
    device_memory: int = 0  # bytes of a CUDA device that the check may take; 0: no bound


class Check(ABC):
    """A kind of run. One subclass per module of this package; its documentation is what the docs and pages show.

    `cost` is about what it takes in units of one forward and backward of the target, `fixed_s` what it takes beside.
    What `adapts` does less where time is short, and is begun with a share of that.
    """

    name: ClassVar[str]
    documentation: ClassVar[Documentation]
    cost: ClassVar[float]
    fixed_s: ClassVar[float] = 0.0
    adapts: ClassVar[bool] = False

    def needed_s(self, unit_s: float) -> float:
        """Seconds without which it is not worth beginning; `unit_s`: one forward and backward of the target."""
        return self.fixed_s + self.cost * unit_s * (LEAST_SHARE if self.adapts else 1.0)

    @abstractmethod
    def run(self, context: CheckContext) -> CheckResult:
        """Never raises for a fault of the submitted code: that is a result."""
