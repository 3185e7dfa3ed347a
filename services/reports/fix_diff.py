"""A fix as a unified diff of its file, for a page that shows what would change. Pure; applies nothing to a file."""

from __future__ import annotations

import difflib
from typing import Final

from analyzer.findings import Edit, Region
from analyzer.fixing import apply_edits
from services.reports.document import EditInfo, FindingInfo
from services.reports.sources import Sources, lines_around, region_of

_MOST_LINES: Final = 400
_CONTEXT: Final = 3


def fix_diff(finding: FindingInfo, sources: Sources) -> tuple[str, ...]:
    """The lines of the diff, at most 400; empty without a fix, or if the file can't be quoted.

    In a notebook lines are those of the cell.
    """
    region = region_of(finding)
    before = lines_around(sources, region)
    if not finding.fix.edits or not before:
        return ()
    text = "\n".join(before)
    after = apply_edits(text, [_edit(edit, finding.path, region.cell) for edit in finding.fix.edits]).split("\n")
    name = f"{finding.path}:cell {region.cell}" if region.cell else finding.path
    diff = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=_CONTEXT, lineterm="")
    return tuple(line for line, _ in zip(diff, range(_MOST_LINES), strict=False))


def _edit(edit: EditInfo, path: str, cell: int) -> Edit:
    return Edit(
        Region(path, edit.start_line, edit.start_column, edit.end_line, edit.end_column, cell), edit.replacement
    )
