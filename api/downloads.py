"""A report as an answer: media type, file name, and no way for it to act in a browser."""

from __future__ import annotations

from fastapi import Response

from api.context import Context
from services.accounts import Subject
from services.reports.formats import Rendering, report_format

# A report is never part of our pages: opened directly, it may use its own style and nothing else.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; sandbox"


def report_download(context: Context, subject: Subject, analysis_id: str, name: str) -> Response:
    """The report of an analysis in the format of this name.

    Raises `AnalysisNotFoundError`, `ReportUnavailableError`, `UnknownFormatError`.
    """
    format_ = report_format(name)
    report = context.analyses.report(subject, analysis_id)
    body = format_.render(report, Rendering(sources=context.sources(report.snapshot.digest)))
    charset = "; charset=utf-8" if format_.media_type.startswith("text/") else ""
    disposition = "inline" if name == "json" else "attachment"
    return Response(
        body.encode("utf-8"),
        media_type=format_.media_type + charset,
        headers={
            "Content-Disposition": f'{disposition}; filename="gradproof-{report.analysis.id}.{format_.extension}"',
            "Content-Security-Policy": _REPORT_POLICY,
        },
    )
