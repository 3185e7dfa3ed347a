"""The outlines of files that nobody asked to analyse, but that the asked ones import, directly or through others.

Without them a base class that stands outside of `include` makes a layer unknown, and a change in a helper would leave
what rests on it as it was. Their findings are not looked for. This module must not know targets or rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from analyzer.closure import files_loaded_by
from analyzer.outline import Outline
from analyzer.outline_reading import read_outline
from analyzer.snapshot import SnapshotOutline


def imported_outlines(
    root: Path, asked: Sequence[Outline], paths: Iterable[str], *, max_bytes: int
) -> tuple[Outline, ...]:
    """In the order in which they were come to. `paths` are all files of the snapshot; unreadable ones are left out."""
    known = {outline.path for outline in asked}
    outlines, frontier = list(asked), list(asked)
    snapshot_paths = tuple(paths)
    while frontier:
        loaded = files_loaded_by(SnapshotOutline(outlines, snapshot_paths), frontier)
        fresh = [path for path in loaded if path not in known]
        known.update(fresh)
        frontier = [outline for path in fresh if (outline := read_outline(root, path, max_bytes=max_bytes)) is not None]
        outlines += frontier
    return tuple(outlines[len(asked) :])
