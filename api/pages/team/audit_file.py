"""The audit log as a file: CSV that a spreadsheet shows and never runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Final

from services.accounts.access import Subject
from services.accounts.audit import AuditEvent, AuditService
from services.accounts.audit_repository import AuditFilter

# A file that somebody opens in a spreadsheet; what is older is asked for with a narrower filter.
_ROWS_OF_A_FILE: Final = 20_000
_AT_ONCE: Final = 200
_HEADS: Final = ("at", "actor kind", "actor", "action", "object kind", "object", "project", "details")
# What a spreadsheet would take for a formula.
_STEERING: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_lines(audit: AuditService, subject: Subject, wanted: AuditFilter) -> Iterator[str]:
    """The log as CSV, line by line, the newest first; at most 20,000 lines. A cell is never a formula."""
    yield _line(_HEADS)
    cursor: str | None = None
    for _ in range(_ROWS_OF_A_FILE // _AT_ONCE):
        page = audit.list(subject, wanted=wanted, cursor=cursor, limit=_AT_ONCE)
        yield from (_line(_cells(event)) for event in page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


def _cells(event: AuditEvent) -> tuple[str, ...]:
    return (
        event.at.isoformat(),
        event.actor_kind,
        event.actor_name,
        event.action,
        event.object_kind,
        event.object_id,
        event.project or "",
        json.dumps(event.details, ensure_ascii=False, sort_keys=True) if event.details else "",
    )


def _line(cells: tuple[str, ...]) -> str:
    target = io.StringIO()
    csv.writer(target).writerow("'" + cell if cell.startswith(_STEERING) else cell for cell in cells)
    return target.getvalue()
