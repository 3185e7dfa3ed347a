"""The use cases of watching: can the service take work, and what is going on.

This module must not know how the figures are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.analyses import repository as analyses
from services.analyses.reconciler import LEASE
from services.database import Database
from services.jobs import repository as jobs
from services.jobs.broker import build_broker
from services.jobs.model import DeviceState, HeldDevice, QueueDepth
from services.oversight import repository
from services.settings import Settings

# A probe of a load balancer gives up after a few seconds: it must get an answer, not a hanging connection.
_BROKER_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class State:
    """How one part of the service is. Without one that is not `needed` it takes work all the same."""

    name: str
    ok: bool
    detail: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Figures:
    """What the database says about the work, at one moment.

    `jobs` is keyed by (kind, state), `checks` by (check, verdict, device), `findings` by (severity, verdict).
    """

    queues: tuple[QueueDepth, ...]
    jobs: dict[tuple[str, str], int]
    analyses: dict[str, int]
    checks: dict[tuple[str, str, str], int]
    findings: dict[tuple[str, str], int]
    attempts: int
    lease_expiries: int
    workers: int
    reconciler_age_s: float | None
    devices: tuple[HeldDevice, ...] = ()


class OversightService:
    """Looks, and never changes anything."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def states(self) -> tuple[State, ...]:
        """The database, the broker, whether somebody looks for lost work, and the GPUs. Never raises."""
        return (
            _state("database", self._database_detail),
            _state("broker", self._broker_detail),
            _state("reconciler", self._reconciler_detail),
            _state("devices", self._devices_detail, needed=False),
        )

    def figures(self) -> Figures:
        """Everything there is to measure, from one transaction."""
        with self._database.reading() as session:
            attempts, expiries = repository.attempts(session)
            return Figures(
                queues=jobs.depths(session),
                jobs=jobs.totals(session),
                analyses=analyses.totals(session),
                checks=repository.check_results(session),
                findings=repository.findings(session),
                attempts=attempts,
                lease_expiries=expiries,
                workers=len(jobs.live_workers(session, self._settings.heartbeat * 3)),
                reconciler_age_s=self._age(repository.lease_remaining_s(session, LEASE)),
                devices=jobs.devices(session, self._settings.heartbeat * 3),
            )

    def _database_detail(self) -> str:
        with self._database.reading() as session:
            jobs.depths(session)
        return self._database.engine.dialect.name

    def _broker_detail(self) -> str:
        app = build_broker(self._settings)
        try:
            with app.connection_for_write(connect_timeout=_BROKER_PATIENCE_S) as connection:
                connection.ensure_connection(max_retries=1, timeout=_BROKER_PATIENCE_S)
                return str(connection.transport.driver_type)
        finally:
            app.close()

    def _reconciler_detail(self) -> str:
        with self._database.reading() as session:
            remaining = repository.lease_remaining_s(session, LEASE)
        age = self._age(remaining)
        if remaining is None or age is None:
            raise RuntimeError("no reconciler has ever run: start `gradproof worker` with the queue `control`")
        if remaining <= 0:
            raise RuntimeError(f"the last round was {age:.0f} s ago: the control worker is down")
        return f"the last round was {max(age, 0):.1f} s ago"

    def _devices_detail(self) -> str:
        with self._database.reading() as session:
            held = jobs.devices(session, self._settings.heartbeat * 3)
        if not held:
            return "no worker asks for a GPU"
        unfit = [item for item in held if item.device.state is not DeviceState.SERVING]
        serving = f"{len(held) - len(unfit)} of {len(held)} workers for GPUs serve"
        if unfit:
            raise RuntimeError(
                "; ".join(
                    [serving, *(f"{item.host}: {item.device.state.value} ({item.device.detail})" for item in unfit)]
                )
            )
        return serving

    def _age(self, remaining_s: float | None) -> float | None:
        """Seconds since the last round: each round renews the lease for four intervals."""
        return None if remaining_s is None else (self._settings.reconcile_every * 4).total_seconds() - remaining_s


def _state(name: str, look: Callable[[], str], *, needed: bool = True) -> State:
    try:
        return State(name, ok=True, detail=look(), needed=needed)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises is the answer
        return State(name, ok=False, detail=f"{type(error).__name__}: {error}".splitlines()[0][:300], needed=needed)
