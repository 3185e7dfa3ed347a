"""One HTML file that needs nothing else: no script, no image, no request; to keep, to mail or to print.

Everything is escaped by the template engine, and characters that hide or turn text are shown, so that no file name or
docstring can become markup or lie about what it says. The same parts make up the report page of the service.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from services.reports.document import Report
from services.reports.formats.base import Rendering, ReportFormat
from services.reports.untrusted import visible

if TYPE_CHECKING:  # the template engine is loaded by who writes HTML, not by everybody who knows the formats
    from jinja2 import BaseLoader, Environment, PackageLoader
    from markupsafe import Markup


def environment(loader: BaseLoader) -> Environment:
    """A template engine that escapes everything, shows what is invisible, and refuses unknown names."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

    engine = Environment(
        loader=loader,
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters["prose"] = prose
    return engine


def prose(text: str) -> Markup:
    """A sentence with what stands between back-ticks set as code; a lone back-tick stays one. Escaped throughout."""
    from markupsafe import Markup, escape  # noqa: PLC0415

    parts = visible(text).split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if position % 2 else escape(part) for position, part in enumerate(parts)
    )


def templates() -> PackageLoader:
    """The templates that the report page shares."""
    from jinja2 import PackageLoader  # noqa: PLC0415

    return PackageLoader("services.reports.formats", "templates")


def stylesheet() -> str:
    """The style of a report, that of its graphs included."""
    return _template("report.css") + graph_style()


def graph_style() -> str:
    """The style of a graph, which a picture outside of a page has to bring along."""
    return _template("graph.css")


def _template(name: str) -> str:
    return files("services.reports.formats").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _finalize(value: object) -> object:
    from markupsafe import Markup  # noqa: PLC0415

    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    return environment(templates())


class HtmlFormat(ReportFormat):
    """A page of its own."""

    name = "html"
    title = "HTML"
    media_type = "text/html"
    extension = "html"

    def render(self, report: Report, rendering: Rendering) -> str:
        from services.reports.view import view  # noqa: PLC0415

        return _environment().get_template("report.html").render(view=view(report, rendering.sources))
