"""Running one batch of targets: from a request to validated messages.

The join between a sandbox and the probe. It knows how the probe is started, what it may say and what its death means;
it must not know the database, and it believes nothing that it reads.
"""

from __future__ import annotations

from worker.execution.batch import Batch, BatchJob, BatchOutcome, Unfinished
from worker.execution.messages import CheckMessage, HarnessMessage, Message, ReadyMessage, TargetFinishedMessage
from worker.execution.run import run_batch

__all__ = [
    "Batch",
    "BatchJob",
    "BatchOutcome",
    "CheckMessage",
    "HarnessMessage",
    "Message",
    "ReadyMessage",
    "TargetFinishedMessage",
    "Unfinished",
    "run_batch",
]
