"""Running one batch of targets, or a repository's own examples: from a request to validated messages.

The join between a sandbox and the probe. It knows how the probe is started, what it may say and what its death means;
it must not know the database, and it believes nothing that it reads.
"""

from __future__ import annotations

from worker.execution.batch import Batch, BatchJob, BatchOutcome, Call, Unfinished
from worker.execution.command import probe_directory
from worker.execution.examples import Examples, ExamplesOutcome, run_examples
from worker.execution.messages import (
    CheckMessage,
    HarnessMessage,
    Message,
    ReadyMessage,
    TargetFinishedMessage,
    TargetStartedMessage,
)
from worker.execution.run import run_batch

__all__ = [
    "Batch",
    "BatchJob",
    "BatchOutcome",
    "Call",
    "CheckMessage",
    "Examples",
    "ExamplesOutcome",
    "HarnessMessage",
    "Message",
    "ReadyMessage",
    "TargetFinishedMessage",
    "TargetStartedMessage",
    "Unfinished",
    "probe_directory",
    "run_batch",
    "run_examples",
]
