"""Renders the templates: one engine that escapes everything, shared with the HTML report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from api.pages.assets import asset_url
from api.pages.markup import blocks
from api.pages.sessions import FORM_FIELD, Visit
from services.reports.formats.html import environment, templates
from services.reports.untrusted import visible
from services.version import version

_BREAKS = re.compile(r"(?<=[.:/_])(?=\w)")


@cache
def _engine() -> Environment:
    engine = environment(ChoiceLoader([PackageLoader("api.pages", "templates"), templates()]))
    engine.globals.update(asset=asset_url, version=version(), csrf_field=_csrf_field)
    engine.filters.update(blocks=blocks, severities=_severities, breakable=_breakable)
    engine.filters.update(moment=_moment, minute=_minute, iso=_iso, duration=_duration)
    return engine


def render(
    template: str,
    *,
    status: int = 200,
    visitor: Visit | None = None,
    section: str = "",
    current: str = "",
    **values: Any,
) -> HTMLResponse:
    """A page. `visitor` is who is signed in; `section` is the part of the main navigation that the page belongs to,
    and `current` its own address if that is where the navigation leads.
    """
    subject = None if visitor is None else visitor.subject
    page = (
        _engine()
        .get_template(template)
        .render(visitor=visitor, subject=subject, section=section, current=current, **values)
    )
    # Nothing is told to other sites; but with `no-referrer`, browsers would call the origin of our own forms `null`.
    return HTMLResponse(page, status_code=status, headers={"Referrer-Policy": "same-origin"})


@pass_context
def _csrf_field(context: Context) -> Markup:
    """What every form that sends by POST holds, so that its session is known by more than a cookie."""
    visit = context.get("visitor")
    if not isinstance(visit, Visit):
        return Markup("")
    return Markup('<input type="hidden" name="{}" value="{}">').format(FORM_FIELD, visit.csrf)


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _minute(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _iso(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _breakable(text: str) -> Markup:
    """A name or a path that lines may break in where a person would: behind dots, colons, slashes and underscores."""
    return Markup("<wbr>").join(_BREAKS.split(visible(text)))


def _severities(counts: Mapping[str, int]) -> str:
    """Numbers by severity for a person: `7 errors, 1 warning`."""
    said = [
        f"{counts[word]:,} {word}{'' if counts[word] == 1 else 's'}"
        for word in ("error", "warning", "note")
        if counts.get(word)
    ]
    return ", ".join(said) or "none"


def _duration(seconds: float) -> str:
    """For a person: `0.012 s`, `4.2 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 1:
        return f"{seconds:.3f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
