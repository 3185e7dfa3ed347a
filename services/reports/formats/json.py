"""The report document itself, which is the contract: exactly its keys, nothing else."""

from __future__ import annotations

from services.reports.document import Report
from services.reports.formats.base import Rendering, ReportFormat


class JsonFormat(ReportFormat):
    """JSON, `schema_version` "1"."""

    name = "json"
    title = "JSON"
    media_type = "application/json"
    extension = "json"

    def render(self, report: Report, rendering: Rendering) -> str:  # noqa: ARG002 - it quotes nothing
        return report.model_dump_json(indent=2) + "\n"
