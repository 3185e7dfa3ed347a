"""Renders the templates: one engine that escapes everything, shared with the HTML report."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader

from api.pages.assets import asset_url
from api.pages.markup import blocks
from services.reports.formats.html import environment, templates
from services.version import version


@cache
def _engine() -> Environment:
    engine = environment(ChoiceLoader([PackageLoader("api.pages", "templates"), templates()]))
    engine.globals.update(asset=asset_url, version=version())
    engine.filters.update(blocks=blocks, moment=_moment)
    return engine


def render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page. `signed_in` tells the head of the page whether there is a session."""
    values.setdefault("signed_in", False)
    page = _engine().get_template(template).render(**values)
    # Nothing is told to other sites; but with `no-referrer`, browsers would call the origin of our own forms `null`.
    return HTMLResponse(page, status_code=status, headers={"Referrer-Policy": "same-origin"})


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
