"""Every route of an application, also those of routers that are included in routers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every call and every page that there is."""
    return sorted((method, path) for path, methods in _walk(app.routes) for method in methods if method != "HEAD")


def _walk(routes: Any) -> Iterator[tuple[str, set[str]]]:
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from _walk(route.effective_candidates())
        elif route.path != "/openapi.json":
            yield route.path, route.methods
