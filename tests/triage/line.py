"""The main line of a project in a test: submit, settle, look."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update

from analyzer.findings import StaticAnalysis, Suppression
from services.accounts.access import SYSTEM
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.models import Purpose
from services.analyses.occasion import Occasion
from services.analyses.results import ResultService
from services.configuration import Configuration
from services.gates import GatePolicy
from services.jobs.model import Claim
from services.reports.document import CheckInfo
from services.snapshots.model import Snapshot
from services.triage.inbox import Inbox
from services.triage.model import ProjectFinding
from services.triage.models import ProjectFindingRow
from tests.jobs.support import SNAPSHOT, Bench, finding, target

READING = Configuration().model_dump(
    mode="json", include={"include", "exclude", "select", "ignore", "per_path", "rules"}
)


class Line:
    """A project whose analyses are said to find this and that."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.inbox = Inbox(bench.database)
        self.results = ResultService(bench.database, bench.settings)

    def submit(
        self,
        *,
        options: AnalysisOptions | None = None,
        base: str | None = None,
        purpose: Purpose | None = None,
        snapshot: Snapshot = SNAPSHOT,
    ) -> str:
        submitted = self.bench.analyses.submit(
            snapshot, options, project="vision", base=base, occasion=Occasion(purpose=purpose)
        )
        return str(submitted.analysis_id)

    def settle(
        self,
        numbers: tuple[int, ...] = (),
        *results: CheckInfo,
        suppressed: tuple[int, ...] = (),
        reading: object = READING,
        torch: str = "2.13.0+cpu",
        policy: GatePolicy | None = None,
        claim: Claim | None = None,
    ) -> None:
        """The next analysis, or the one that was claimed, finds these, and its one target has these results, if any."""
        if claim is None:
            (claim,) = self.bench.claim()
        outcome = StaticOutcome(
            StaticAnalysis(
                tuple(finding(number, line=3 + number, settled_by=()) for number in numbers),
                tuple(Suppression(finding(number, line=90), "measured") for number in suppressed),
                (target(20),) if results else (),
                files=1,
                lines=100,
            ),
            reading=reading,  # type: ignore[arg-type]
            policy=policy or GatePolicy(),
        )
        self.bench.results.read(claim, outcome)
        if results:
            (claim,) = self.bench.claim()
            self.bench.results.ran(claim, torch=torch, devices=["cpu"], sandbox="off", import_torch=1)
            for result in results:
                self.bench.results.check(claim, result)
            self.bench.results.probed(claim)

    def analysed(self, *numbers: int, **settling: object) -> str:
        """A main analysis that finds these."""
        analysis_id = self.submit()
        self.settle(numbers, **settling)  # type: ignore[arg-type]
        return analysis_id

    def states(self) -> dict[int, tuple[str, bool]]:
        return {
            int(item.fingerprint.removeprefix("fingerprint-")): (item.state, item.on_main)
            for item in self.inbox.findings(SYSTEM, "vision").items
            if item.fingerprint.startswith("fingerprint-")
        }

    def one(self, number: int) -> ProjectFinding:
        return self.inbox.finding(SYSTEM, "vision", f"fingerprint-{number}")

    def main_since(self, number: int) -> datetime | None:
        with self.bench.database.reading() as session:
            return session.scalar(
                select(ProjectFindingRow.main_since).where(ProjectFindingRow.fingerprint == f"fingerprint-{number}")
            )

    def kinds(self, number: int) -> list[str]:
        return [event.kind for event in self.inbox.history(SYSTEM, "vision", f"fingerprint-{number}").items]

    def decide(self, number: int, state: str, **values: object) -> None:
        with self.bench.database.unit_of_work() as uow:
            uow.session.execute(
                update(ProjectFindingRow)
                .where(ProjectFindingRow.fingerprint == f"fingerprint-{number}")
                .values(state=state, **values)
            )

    def triage(self, analysis_id: str) -> dict[str, str]:
        return {item.fingerprint: item.triage for item in self.results.findings(SYSTEM, analysis_id).items}
