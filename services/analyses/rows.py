"""Turns the row of an analysis into the parts of its report that stand in that row alone. Pure."""

from __future__ import annotations

from analyzer.findings import ImportNote
from services.analyses.models import AnalysisRow
from services.reports.document import AnalysisInfo, EnvironmentInfo, Gate, Source, Tool
from services.snapshots.model import Author
from services.snapshots.model import Source as SnapshotOrigin
from services.version import version


def source_of(row: AnalysisRow) -> Source:
    """Where its files came from."""
    return Source(kind=row.source_kind, url=row.source_url, commit=row.source_commit)


def origin_of(row: AnalysisRow) -> SnapshotOrigin:
    """The same for the store of snapshots."""
    name, email = row.source_author, row.source_author_email
    author = None if name is None or email is None else Author(name, email)
    return SnapshotOrigin(row.source_kind, row.source_url, row.source_commit, author)  # type: ignore[arg-type]


def gate_of(row: AnalysisRow) -> Gate | None:
    """What was decided; None until it has ended."""
    return None if row.gate is None else Gate.model_validate(row.gate)


def imports_of(row: AnalysisRow) -> tuple[ImportNote, ...]:
    """What importing its files does beside defining things."""
    stored = row.tool.get("imports", [])
    assert isinstance(stored, list)
    return tuple(ImportNote(**note) for note in stored)


def tool_of(row: AnalysisRow) -> Tool:
    """What it ran on."""
    stored = row.tool
    devices = stored.get("devices", [])
    assert isinstance(devices, list)
    torch = stored.get("torch")
    imports = stored.get("import_torch", 0)
    assert isinstance(imports, int)
    environment = stored.get("environment")
    return Tool(
        version=str(stored.get("version") or version()),
        torch=None if torch is None else str(torch),
        devices=[str(device) for device in devices],
        sandbox=str(stored.get("sandbox", "none")),
        torch_imports=imports,
        environment=None if environment is None else EnvironmentInfo.model_validate(environment),
    )


def info_of(row: AnalysisRow) -> AnalysisInfo:
    """How long it took, and how it ended."""
    ended = row.finished_at
    peak = row.tool.get("peak_memory")
    assert peak is None or isinstance(peak, int)
    return AnalysisInfo(
        id=row.id,
        created_at=row.created_at,
        finished_at=ended,
        status=row.status,
        duration_s=None if ended is None else round((ended - row.created_at).total_seconds(), 3),
        reason=row.reason,
        peak_memory_bytes=peak,
    )
