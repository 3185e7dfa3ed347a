"""What tests of the job layer share: a submitted analysis, and what a worker would report about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from analyzer.findings import (
    Confidence,
    Finding,
    Region,
    Severity,
    StaticAnalysis,
    Suppression,
    TargetDeclaration,
    TargetKind,
)
from services.accounts import SYSTEM, Subject
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.reconciler import Reconciler
from services.analyses.service import AnalysisService
from services.analyses.work import WorkResults
from services.checks.repository import forget_results
from services.database import Database
from services.jobs.model import Claim
from services.jobs.service import JobService
from services.reports.document import CheckInfo, CheckVerdict, Diagnosis
from services.settings import Settings
from services.snapshots.model import Snapshot, Source

SNAPSHOT = Snapshot(digest=f"sha256:{'a' * 64}", files=1, lines=10, source=Source("archive"))


class Acting:
    """The use cases of a service as one subject does them."""

    def __init__(self, service: object, subject: Subject) -> None:
        self._service = service
        self._subject = subject

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._service, name), self._subject)


def acting(service: AnalysisService, subject: Subject = SYSTEM) -> Any:
    """`service` without saying each time who asks."""
    return Acting(service, subject)


def target(number: int) -> TargetDeclaration:
    """A declared target: ten lines of `pkg/a.py`."""
    return TargetDeclaration(
        name=f"pkg.a:Target{number}",
        kind=TargetKind.MODULE,
        path="pkg/a.py",
        line=1 + 10 * number,
        end_line=10 + 10 * number,
        import_root="",
        module="pkg.a",
        qualname=f"Target{number}",
    )


def finding(number: int, *, line: int, settled_by: tuple[str, ...] = ("gradcheck",)) -> Finding:
    """A finding at one line of `pkg/a.py`."""
    return Finding(
        fingerprint=f"fingerprint-{number}",
        rule="GP101",
        name="unprotected-division",
        severity=Severity.ERROR,
        confidence=Confidence.HIGH,
        region=Region("pkg/a.py", line, 1, line, 9),
        symbol="pkg.a.f",
        message="divides by something that can be zero",
        settled_by=settled_by,
        hypothesis={"operand": "x"},
    )


def reading(targets: int = 2, findings: int = 1) -> StaticOutcome:
    """What a reader would report: one finding in each of the first targets, and a suppressed one."""
    found = tuple(finding(number, line=3 + 10 * number) for number in range(findings))
    suppressed = (Suppression(finding(99, line=9), "measured, and small"),)
    return StaticOutcome(
        StaticAnalysis(found, suppressed, tuple(target(number) for number in range(targets)), files=1, lines=10)
    )


def check(name: str = "gradcheck", verdict: CheckVerdict = "pass", *, line: int | None = None) -> CheckInfo:
    """A result of a check."""
    return CheckInfo(
        check=name,
        verdict=verdict,
        device="cpu",
        summary=f"{name}: {verdict}",
        path=None if line is None else "pkg/a.py",
        line=line,
        # What the fault of the bench's finding (a singular point) looks like when it is run.
        diagnosis=Diagnosis(cause="nan_gradient", text="the gradient is NaN") if verdict == "fail" else None,
        evidence={"trials": 3},
        duration_s=0.01,
    )


@dataclass
class Bench:
    """The services on one database, and shorthand for what workers do."""

    database: Database
    settings: Settings

    def __post_init__(self) -> None:
        self.analyses = acting(AnalysisService(self.database, self.settings))
        self.jobs = JobService(self.database, self.settings)
        self.results = WorkResults(self.database, self.settings)
        self.reconciler = Reconciler(self.database, self.settings, "reconciler")

    def with_settings(self, **changes: object) -> Bench:
        """The same database under other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def claim(self, queue: str = "cpu", owner: str = "worker-1") -> tuple[Claim, ...]:
        """What a worker would get next."""
        return self.jobs.claim(queue, owner, forget_results)

    def submit_and_read(self, *, targets: int = 2, findings: int = 1, options: AnalysisOptions | None = None) -> str:
        """An analysis whose snapshot was read and whose probe jobs are queued; returns its id."""
        analysis_id = self.analyses.submit(SNAPSHOT, options).analysis_id
        (claim,) = self.claim()
        assert claim.analysis_id == analysis_id
        self.results.read(claim, reading(targets, findings))
        return analysis_id

    def status(self, analysis_id: str) -> str:
        """Where the analysis stands."""
        return self.analyses.get(analysis_id).status
