"""The jobs that this process holds at the moment: what the heartbeat renews and what a shutdown gives back.

Several threads run jobs, one renews leases: this is their one shared state. It must not know the database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from services.jobs.model import Claim


class HeldJobs:
    """Thread-safe book of held jobs, and of those that were taken away while they ran."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Claim] = {}

    def add(self, claims: Iterable[Claim]) -> None:
        """These jobs are ours from now on."""
        with self._lock:
            self._held.update({claim.job_id: claim for claim in claims})

    def drop(self, job_id: str) -> None:
        """This job has ended, or was given back or taken away."""
        with self._lock:
            self._held.pop(job_id, None)

    def holds(self, claim: Claim) -> bool:
        """Whether this very attempt is still ours, as far as we know."""
        with self._lock:
            return self._held.get(claim.job_id) == claim

    def claims(self) -> tuple[Claim, ...]:
        """All jobs held now."""
        with self._lock:
            return tuple(self._held.values())

    def keep_only(self, asked: Iterable[Claim], still_owned: frozenset[str]) -> tuple[Claim, ...]:
        """Drop those of `asked` that are not owned any more; returns them."""
        gone = []
        with self._lock:
            for claim in asked:
                if claim.job_id not in still_owned and self._held.get(claim.job_id) == claim:
                    del self._held[claim.job_id]
                    gone.append(claim)
        return tuple(gone)
