"""What the end of a sandbox means for whoever waited for it, as a stable word and a sentence. Pure."""

from __future__ import annotations

from typing import Final

from worker.execution.batch import UnfinishedCause
from worker.sandbox.model import Outcome, Status

_CAUSES: Final[dict[Status, tuple[UnfinishedCause, str]]] = {
    Status.EXITED: ("probe failed", "the probe ended early with exit code {exit_code}"),
    Status.SIGNALLED: ("crashed", "the probe was ended by signal {signal}"),
    Status.OUT_OF_MEMORY: ("out of memory", "the sandbox ran out of its memory"),
    Status.TIMED_OUT: ("timed out", "the sandbox reached its wall clock limit"),
    Status.OUTPUT_LIMIT: ("output limit", "the sandbox wrote more than it may"),
    Status.CANCELLED: ("cancelled", "the analysis was cancelled"),
}


def cause_of(outcome: Outcome, *, refused: int, refusal: str = "") -> tuple[UnfinishedCause, str]:
    """Why a sandbox did not finish. `refused` lines of the probe made no sense, the first because of `refusal`."""
    cause, template = _CAUSES[outcome.status]
    detail = template.format(exit_code=outcome.exit_code, signal=outcome.signal)
    extra = [text for text in (outcome.detail, outcome.stderr_tail.strip()[-500:]) if text]
    if refused:
        extra.append(f"{refused} lines of the probe were refused" + (f", the first: {refusal}" if refusal else ""))
    return cause, ": ".join([detail, *extra])
