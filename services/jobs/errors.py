"""What can go wrong with jobs."""

from __future__ import annotations

from services.problems import ConflictError, SurroundingsError


class LeaseLostError(ConflictError):
    """The job belongs to somebody else by now: cancelled, given back, or its lease ran out. Nothing was written."""

    code = "lease-lost"
    title = "The job is no longer this worker's"


class BrokerUnavailableError(SurroundingsError):
    """The broker can't be reached."""

    code = "broker-unavailable"
    title = "The broker can't be used"


class WorkerSilentError(SurroundingsError):
    """No worker of a machine reports itself alive."""

    code = "worker-silent"
    title = "No worker is alive here"


class WorkerStalledError(SurroundingsError):
    """A worker is alive and gets nowhere."""

    code = "worker-stalled"
    title = "A worker gets nowhere"


class WorkerWithoutDeviceError(SurroundingsError):
    """A worker is alive and takes no jobs of its queue, for want of a GPU that is fit."""

    code = "worker-without-device"
    title = "A worker has no GPU that is fit"
