"""How code gets in: archives, directories and git commits become content-addressed snapshots.

Whatever the way in, the same names are refused, the same limits hold, the same files are left out, and the same files
have the same digest. Submitted bytes are only ever copied here: nothing in this package runs, imports, parses or
checks out what it was given, and names of members touch a file system in one place only, the store.
"""

from __future__ import annotations

from services.snapshots.archives import read_archive
from services.snapshots.directories import read_directory
from services.snapshots.limits import DEFAULT_LIMITS, Limits
from services.snapshots.model import Snapshot, Source, SourceTree
from services.snapshots.store import SnapshotStore

__all__ = [
    "DEFAULT_LIMITS",
    "Limits",
    "Snapshot",
    "SnapshotStore",
    "Source",
    "SourceTree",
    "read_archive",
    "read_directory",
]
