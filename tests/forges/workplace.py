"""The bot with everything around it: a fake forge and the real application over HTTP, a control worker, git, databases.

Webhooks come in over HTTP, heads are fetched by git from the forge, and read for real. What running would bring is made
up here, so that a scenario takes a second: every suspicion is confirmed, and every safe fix was executed and held.
Nothing happens by itself: `work` does what is due, and time passes when a test says so.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import SecretStr
from sqlalchemy import select, update

from services.analyses.models import AnalysisRow
from services.analyses.reading import read_snapshot
from services.analyses.reconciler import Reconciler
from services.analyses.work import WorkResults
from services.checks.repository import forget_results
from services.configuration import ConfigurationError
from services.database import Database
from services.database.base import FromNow
from services.forges.models import (
    DeliveryRow,
    ForgeTaskRow,
    InstallationRow,
    PullRequestRow,
    RepositoryRow,
    ReviewThreadRow,
)
from services.forges.tasks import ForgeTasks
from services.jobs.model import CONTROL_QUEUE, CPU_QUEUE, Claim
from services.jobs.models import JobKind, JobState
from services.jobs.repository import unsettled
from services.jobs.service import JobService
from services.projects.models import ProjectRow
from services.reports.document import CheckInfo, Diagnosis, Harness
from services.settings import Settings
from services.snapshots import SnapshotStore
from tests.conftest import QUICK
from tests.serving import RunningServer
from tools.fake_forge import FakeForge
from tools.fake_forge.world import PullRequest
from worker.runner import Runner

HEADER: Final = "import torch\n"
NORM: Final = """

class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.norm()
"""
FIXED_NORM: Final = """

class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.norm().clamp(min=1e-12)
"""
SOFTPLUS: Final = """

class Softplus(torch.nn.Module):
    def forward(self, x):
        return torch.log(1 + torch.exp(x))
"""
FIXED_SOFTPLUS: Final = """

class Softplus(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.softplus(x)
"""
LOGSIGMOID: Final = """

class LogSigmoid(torch.nn.Module):
    def forward(self, x):
        return torch.log(torch.sigmoid(x)).sum()
"""
CLEAN: Final = """

class Double(torch.nn.Module):
    def forward(self, x):
        return 2 * x
"""
_SIGNING: Final = "whsec_" + base64.b64encode(b"a signing secret of both").decode()
HARNESS: Final = Harness(
    source="synthesised", grade="C", constructor="Norm()", inputs=["float64[2, 8]"], provenance="the signature"
)


class _ForgeClock:
    """The forge's time, which passes when somebody would wait: nobody does."""

    def __init__(self, forge: FakeForge) -> None:
        self._forge = forge
        self.waited = 0.0

    def now(self) -> datetime:
        return self._forge.clock.now()

    def sleep(self, seconds: float) -> None:
        self.waited += seconds
        self._forge.clock.advance(seconds=seconds)


class Workplace:
    """One deployment that is connected with a fake GitHub. `bot` are settings of the project, for `configure`."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.forge = FakeForge(webhook_secret="a secret of both")
        key = directory / "app.pem"
        key.write_text(self.forge.private_key)
        self.settings = settings.model_copy(
            update={
                "github_app_id": str(self.forge.app_id),
                "github_private_key_file": key,
                "github_webhook_secrets": (SecretStr("a secret of both"),),
                "github_api_url": self.forge.url,
                "github_web_url": self.forge.secure_url,
                "gitlab_url": self.forge.secure_url,
                "gitlab_token": SecretStr(self.forge.gitlab.token),
                "gitlab_webhook_secrets": (SecretStr("a token of both"), SecretStr(_SIGNING)),
                "forge_ca_file": self.forge.authority,
                "git_ca_file": self.forge.authority,
                "git_trusted_networks": (IPv4Network("127.0.0.0/8"),),
                # What a control worker does from time to time is soon done once a test starts one.
                "reconcile_every": QUICK["reconcile_every"],
                "public_url": "https://gradproof.example",
            }
        )
        self._server = RunningServer(self.settings)
        self.rung: list[str] = []
        self.database = Database.open(self.settings, self.rung.append)
        self.clock = _ForgeClock(self.forge)
        self.runner = self.new_runner()
        self._jobs = JobService(self.database, self.settings)
        self._results = WorkResults(self.database, self.settings)
        self._reconciler = Reconciler(self.database, self.settings, "test")
        self._store = SnapshotStore(self.settings.snapshot_dir)

    def __enter__(self) -> Self:
        self.forge.start()
        self._server.__enter__()
        self.forge.webhook_url = f"{self._server.url}/webhooks/github"
        self.forge.gitlab.webhook_url = f"{self._server.url}/webhooks/gitlab"
        self.forge.gitlab.webhook_token, self.forge.gitlab.signing_token = "a token of both", _SIGNING
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forge.webhook_url = self.forge.gitlab.webhook_url = None
        self.runner.stop()
        self.runner.join()
        self.database.close()
        self._server.__exit__(kind, error, trace)
        self.forge.close()

    def new_runner(self) -> Runner:
        """Another control worker."""
        return Runner(self.settings, self.database, [CONTROL_QUEUE], forge_clock=self.clock)

    # What happens

    def work(self, *, until_idle: bool = True) -> None:
        """Do everything that is due: webhooks, fetches, reading, running, publishing. Pushes are not waited for."""
        while True:
            self.hurry()
            done = self.control()
            done += self.run()
            if not done or not until_idle:
                self.settle()
                return

    def control(self) -> int:
        """Do what is due at a control worker; how much that was."""
        before = self._tasks_done()
        jobs = self.runner.serve()
        self.settle()
        return jobs + self._tasks_done() - before

    def settle(self) -> None:
        """Wait until what our own writes brought about has been told us."""
        self.forge.settle()
        self.forge.gitlab.settle()

    def run(self) -> int:
        """Read and run what waits for a worker, with results made up; how many jobs."""
        done = 0
        while claims := self._jobs.claim(CPU_QUEUE, "worker", forget_results):
            for claim in claims:
                self._run(claim)
            done += len(claims)
        with self.database.reading() as session:
            waiting = unsettled(session)
        if waiting:  # a head that waited for its base
            self._reconciler.tick()
        return done

    def _run(self, claim: Claim) -> None:
        if claim.kind is JobKind.STATIC:
            work = self._results.static_work(claim)
            try:
                outcome = read_snapshot(self._store.path(work.snapshot_digest), work.options)
            except ConfigurationError as error:
                self._results.ended(claim, JobState.FAILED, f"{error.code}: {error.message}")
            else:
                self._results.read(claim, outcome)
        elif claim.kind is JobKind.EXAMPLES:
            self._results.examples(claim, (), {})
        else:
            self._results.ran(claim, torch="2.13.0", devices=["cpu"], sandbox="bwrap-user", import_torch=1)
            plan = self._results.probe_work([claim]).plans[claim.job_id]
            self._results.harness(claim, HARNESS)
            self._results.check(claim, _searched(plan.hypotheses))
            self._results.probed(claim)

    def hurry(self) -> None:
        """Nobody waits any longer: what is to be done later is due now."""
        with self.database.unit_of_work() as uow:
            uow.session.execute(
                update(ForgeTaskRow).where(ForgeTaskRow.state == "queued").values(due_at=FromNow(-timedelta(seconds=1)))
            )

    def lose_leases(self) -> None:
        """Nobody heard of those who do something at the moment for so long that they count as dead."""
        with self.database.unit_of_work() as uow:
            uow.session.execute(
                update(ForgeTaskRow)
                .where(ForgeTaskRow.state == "leased")
                .values(lease_until=FromNow(-timedelta(seconds=1)))
            )
        ForgeTasks(self.database, self.settings).look_after()

    def silence_is_over(self) -> None:
        """The time that a forge asked us to wait has passed."""
        self.forge.clock.advance(hours=1, seconds=1)
        with self.database.unit_of_work() as uow:
            uow.session.execute(update(InstallationRow).values(quiet_until=None))

    def configure(self, **bot: object) -> None:
        """What the project wants of the bot; the project has to be there."""
        with self.database.unit_of_work() as uow:
            for project in uow.session.scalars(select(ProjectRow)):
                project.settings = {"bot": bot}

    # What is there

    def row(self, pull: PullRequest) -> PullRequestRow:
        """What we know of a pull request."""
        with self.database.reading() as session:
            return session.scalars(
                select(PullRequestRow)
                .join(RepositoryRow, RepositoryRow.id == PullRequestRow.repository_id)
                .where(RepositoryRow.external_id == str(pull.repository.id), PullRequestRow.number == pull.number)
            ).one()

    def analyses(self) -> list[AnalysisRow]:
        """All analyses, the oldest first."""
        with self.database.reading() as session:
            return list(session.scalars(select(AnalysisRow).order_by(AnalysisRow.id)))

    def threads(self) -> list[ReviewThreadRow]:
        """Our comments at lines, as we remember them."""
        with self.database.reading() as session:
            return list(session.scalars(select(ReviewThreadRow).order_by(ReviewThreadRow.id)))

    def deliveries(self) -> list[DeliveryRow]:
        """All webhooks that were taken."""
        with self.database.reading() as session:
            return list(session.scalars(select(DeliveryRow).order_by(DeliveryRow.id)))

    def tasks(self) -> list[ForgeTaskRow]:
        """All tasks."""
        with self.database.reading() as session:
            return list(session.scalars(select(ForgeTaskRow).order_by(ForgeTaskRow.id)))

    def _tasks_done(self) -> int:
        return sum(task.attempt for task in self.tasks())


def module(*parts: str) -> str:
    """The text of a module."""
    return HEADER + "".join(parts)


def since(forge: FakeForge, before: Counter[str]) -> dict[str, int]:
    """What was written at the forge since then, by kind."""
    return dict(forge.writes() - before)


def _searched(hypotheses: object) -> CheckInfo:
    """Every suspicion was brought about, and its fix was executed and held."""
    records = [
        {
            "fingerprint": each["fingerprint"],
            "outcome": "confirmed",
            "text": "brought about with an input of zeros",
            "fix": {"verified": True, "reason": "clean at the input that showed the fault, the same elsewhere"},
        }
        for each in (hypotheses if isinstance(hypotheses, list | tuple) else ())
        if isinstance(each, Mapping)
    ]
    if not records:
        return CheckInfo(check="nan_gradient", verdict="pass", device="cpu", summary="all finite", duration_s=0.01)
    return CheckInfo(
        check="nan_gradient",
        verdict="fail",
        device="cpu",
        summary="a gradient is NaN",
        diagnosis=Diagnosis(cause="nan_gradient", text="the gradient is NaN at a vector of zeros"),
        evidence={"hypotheses": records},
        duration_s=0.01,
    )
