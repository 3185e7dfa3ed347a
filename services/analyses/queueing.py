"""The jobs of an analysis, as they become due: reading, the repository's own examples, its targets.

Called by whoever ends the job before, in the same transaction: so each is queued once. This module must not know how
any of them is run.
"""

from __future__ import annotations

from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow
from services.analyses.reusing import reuse_results, run_keys
from services.checks.plan import checks_by_device_class
from services.checks.repository import in_order_of_running
from services.database import UnitOfWork
from services.database.base import utc_now
from services.jobs.model import CPU_CLASS, CPU_QUEUE, gpu_queue
from services.jobs.models import JobKind, JobRow
from services.settings import Settings


def static_job(analysis_id: str, settings: Settings) -> JobRow:
    """The job that reads the snapshot of an analysis."""
    return _job(analysis_id, JobKind.STATIC, settings)


def queue_examples(uow: UnitOfWork, row: AnalysisRow, settings: Settings) -> None:
    """Have the repository's own examples run; the targets wait until that has ended."""
    uow.session.add(_job(row.id, JobKind.EXAMPLES, settings))
    uow.session.flush()
    uow.ring(CPU_QUEUE)


def queue_probes(uow: UnitOfWork, row: AnalysisRow, settings: Settings) -> None:
    """Have every target run that can be, in its turn, once on each class of device that has something to check."""
    target_ids = in_order_of_running(uow.session, row.id)
    keys = run_keys(uow.session, row)
    reuses = AnalysisOptions.model_validate(row.options).reuse
    for device_class, names in checks_by_device_class(checks_of(row), settings.gpu_classes).items():
        queue = CPU_QUEUE if device_class == CPU_CLASS else gpu_queue(device_class)
        rows = [
            JobRow(
                analysis_id=row.id,
                target_id=target_id,
                kind=JobKind.PROBE,
                queue=queue,
                device_class=device_class,
                checks=list(names),
                idempotency_key=f"{row.id}:probe:{target_id}:{device_class}",
                reuse_key=keys.key(target_id, device_class, names),
                max_attempts=settings.max_attempts,
                rung_at=utc_now(),
            )
            for target_id in target_ids
        ]
        uow.session.add_all(rows)
        uow.session.flush()
        waiting = len(rows) - (reuse_results(uow.session, row, rows) if reuses else 0)
        if waiting:
            uow.ring(queue, times=-(-waiting // settings.target_batch))


def checks_of(row: AnalysisRow) -> tuple[str, ...]:
    """The checks that were chosen, by the submission or else by the repository; empty for all of them."""
    chosen = (row.configuration or {}).get("checks", [])
    assert isinstance(chosen, list)
    return AnalysisOptions.model_validate(row.options).checks or tuple(str(name) for name in chosen)


def _job(analysis_id: str, kind: JobKind, settings: Settings) -> JobRow:
    return JobRow(
        analysis_id=analysis_id,
        kind=kind,
        queue=CPU_QUEUE,
        idempotency_key=f"{analysis_id}:{kind}",
        max_attempts=settings.max_attempts,
        rung_at=utc_now(),
    )
