"""The packaged style sheets, the scripts and the icon, read once and named by their content.

A page asks for `/static/<name>?v=<digest>`, so that browsers may keep a file for a year and still get the next one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from services.reports.formats.html import stylesheet

_MEDIA_TYPES = {
    "site.css": "text/css; charset=utf-8",
    "report.css": "text/css; charset=utf-8",
    "progress.js": "text/javascript; charset=utf-8",
    "copy.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
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
    for name, media_type in _MEDIA_TYPES.items():
        if name == "report.css":
            body = stylesheet().encode("utf-8")
        else:
            body = files("api.pages").joinpath("static", name).read_bytes()
        found[name] = Asset(body, media_type, hashlib.sha256(body).hexdigest()[:12])
    return found


def asset_url(name: str) -> str:
    """Where a page finds a file."""
    return f"/static/{name}?v={assets()[name].version}"
