"""Rows for tests of triage: a project with as many findings as wanted, without an analysis behind each."""

from __future__ import annotations

from sqlalchemy import insert
from sqlalchemy.orm import Session

from services.database import Database, new_id
from services.projects.models import ProjectRow
from services.triage.models import ProjectFindingRow

SEVERITIES = ("error", "warning", "note")


def make_project(database: Database, name: str = "vision") -> str:
    """The id of a new project of the default organisation."""
    with database.unit_of_work() as uow:
        row = ProjectRow(name=name, settings={})
        uow.session.add(row)
        uow.session.flush()
        return row.id


def finding_values(project_id: str, number: int, **changes: object) -> dict[str, object]:
    """The columns of one finding; grave ones and harmless ones alternate."""
    severity = SEVERITIES[number % 3]
    return {
        "id": new_id(),
        "project_id": project_id,
        "fingerprint": f"{number:040x}",
        "rule": f"GP{101 + number % 5}",
        "name": f"rule-{101 + number % 5}",
        "severity": severity,
        "severity_rank": SEVERITIES.index(severity),
        "path": f"pkg/part{number % 4}/file{number % 7}.py",
        "line": number + 1,
        "symbol": f"pkg.f{number}",
        "message": f"message {number}",
        "verdict": "static_only",
        "on_main": True,
    } | changes


def add_findings(session: Session, values: list[dict[str, object]]) -> None:
    """Store them."""
    session.execute(insert(ProjectFindingRow), values)
