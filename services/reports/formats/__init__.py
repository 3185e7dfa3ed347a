"""The formats a report is written in, by name.

Each is a small class that knows one syntax and its traps; all texts in a report are untrusted to it.
"""

from __future__ import annotations

from services.reports.errors import UnknownFormatError
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.formats.codequality import CodeQualityFormat
from services.reports.formats.github import GithubFormat
from services.reports.formats.html import HtmlFormat
from services.reports.formats.json import JsonFormat
from services.reports.formats.junit import JunitFormat
from services.reports.formats.markdown import MarkdownFormat
from services.reports.formats.sarif import SarifFormat
from services.reports.formats.text import TextFormat

__all__ = ["FORMATS", "Rendering", "ReportFormat", "report_format"]

FORMATS: dict[str, ReportFormat] = {
    each.name: each
    for each in (
        JsonFormat(),
        SarifFormat(),
        MarkdownFormat(),
        HtmlFormat(),
        JunitFormat(),
        CodeQualityFormat(),
        GithubFormat(),
        TextFormat(),
    )
}


def report_format(name: str) -> ReportFormat:
    """The format of this name. Raises `UnknownFormatError`, which lists those there are."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UnknownFormatError(
            f"There is no report format {name!r}: choose one of {', '.join(FORMATS)}",
            format=name,
            formats=list(FORMATS),
        ) from None
