"""The packaged style sheets, scripts and the icon, read once and named by their content.

A page asks for `/static/<name>?v=<digest>`, so that browsers may keep a file for a year and still get the next one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from services.reports.formats.html import stylesheet

_CSS = "text/css; charset=utf-8"
_JAVASCRIPT = "text/javascript; charset=utf-8"
# The name in an address, the file below `static/`, what it is.
_FILES = {
    "site.css": ("site.css", _CSS),
    "scheme.js": ("scheme.js", _JAVASCRIPT),
    "progress.js": ("progress.js", _JAVASCRIPT),
    "copy.js": ("copy.js", _JAVASCRIPT),
    "chart.js": ("chart.js", _JAVASCRIPT),
    "uplot.js": ("vendor/uplot/uPlot.iife.min.js", _JAVASCRIPT),
    "uplot.css": ("vendor/uplot/uPlot.min.css", _CSS),
    "team.css": ("team.css", _CSS),
    "inbox.js": ("inbox.js", _JAVASCRIPT),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    media_type: str
    version: str


@cache
def assets() -> dict[str, Asset]:
    """All files there are, by name: what is not in here can't be asked for."""
    found = {}
    for name, (file, media_type) in _FILES.items():
        body = files("api.pages").joinpath("static", file).read_bytes()
        if name == "site.css":  # one sheet for all pages: the parts of a report come first, so that pages can fit them
            body = stylesheet().encode("utf-8") + body
        found[name] = Asset(body, media_type, hashlib.sha256(body).hexdigest()[:12])
    return found


def asset_url(name: str) -> str:
    """Where a page finds a file."""
    return f"/static/{name}?v={assets()[name].version}"
