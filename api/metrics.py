"""The figures of the service in Prometheus' text format.

They come from the database at the moment of the question, so that every API process answers the same and none of them
has to be asked for its own. This module must not query anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.jobs.model import DeviceState
from services.oversight import Figures


class _Collector:
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures
        yield from _queues(figures)
        yield _devices(figures)
        jobs = GaugeMetricFamily("gradproof_jobs", "Jobs by kind and state.", labels=["kind", "state"])
        for (kind, state), number in sorted(figures.jobs.items()):
            jobs.add_metric([kind, state], number)
        yield jobs
        analyses = GaugeMetricFamily("gradproof_analyses", "Analyses by status.", labels=["status"])
        for status, number in sorted(figures.analyses.items()):
            analyses.add_metric([status], number)
        yield analyses
        checks = GaugeMetricFamily(
            "gradproof_check_results", "Check results by verdict.", labels=["check", "verdict", "device"]
        )
        for key, number in sorted(figures.checks.items()):
            checks.add_metric(list(key), number)
        yield checks
        findings = GaugeMetricFamily(
            "gradproof_findings", "Findings by severity and verdict.", labels=["severity", "verdict"]
        )
        for pair, number in sorted(figures.findings.items()):
            findings.add_metric(list(pair), number)
        yield findings
        yield CounterMetricFamily("gradproof_job_attempts", "How often jobs were claimed.", value=figures.attempts)
        yield CounterMetricFamily(
            "gradproof_lease_expiries", "How often a job was lost with its worker.", value=figures.lease_expiries
        )
        yield GaugeMetricFamily("gradproof_workers", "Workers that report themselves alive.", value=figures.workers)
        if figures.reconciler_age_s is not None:
            yield GaugeMetricFamily(
                "gradproof_reconciler_age_seconds",
                "Time since lost work was last looked for.",
                figures.reconciler_age_s,
            )


def _queues(figures: Figures) -> Iterable[Metric]:
    waiting = GaugeMetricFamily("gradproof_queue_waiting", "Jobs that wait in a queue.", labels=["queue"])
    running = GaugeMetricFamily("gradproof_queue_running", "Jobs of a queue that are being done.", labels=["queue"])
    oldest = GaugeMetricFamily("gradproof_queue_oldest_seconds", "Age of the oldest waiting job.", labels=["queue"])
    for depth in figures.queues:
        waiting.add_metric([depth.queue], depth.waiting)
        running.add_metric([depth.queue], depth.running)
        oldest.add_metric([depth.queue], depth.oldest_s or 0.0)
    yield from (waiting, running, oldest)


def _devices(figures: Figures) -> Metric:
    """One sample for each worker that is for GPUs: 1 while its device serves."""
    serving = GaugeMetricFamily(
        "gradproof_device_serving",
        "Whether the GPU of a worker serves.",
        labels=["device", "host", "queue", "state"],
    )
    for held in figures.devices:
        for queue in held.queues:
            labels = [held.device.id or "", held.host, queue, held.device.state.value]
            serving.add_metric(labels, float(held.device.state is DeviceState.SERVING))
    return serving


def exposition(figures: Figures) -> bytes:
    """The figures as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures))
    return generate_latest(registry)
