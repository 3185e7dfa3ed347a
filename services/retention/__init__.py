"""What is no longer kept: old analyses with all that is theirs, snapshots that nothing refers to, and what is over.

Run by the reconciler in small rounds, and by `gradproof db prune` to the end. This package must not know how anything
was run, and never touches the audit log.
"""

from __future__ import annotations

from services.retention.model import Dropped, Keep
from services.retention.service import RetentionService, prune, would_prune

__all__ = ["Dropped", "Keep", "RetentionService", "prune", "would_prune"]
