"""Asks every page and list of a running application, many times, and notes how long each took and what it read.

Every GET route is asked, whoever adds it: an address is made of the ids in `Filled`, and a route that wants something
unknown is named, not left out in silence.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import httpx
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy import Engine, event

from benchmarks.team_scale.filling import Filled

# Streams that don't end by themselves, and what leads a browser to another place.
_NOT_ASKED = (
    "/events",
    "/sign-in",
    "/static/",
    "/favicon.ico",
    "/openapi.json",
    "/readyz",
    "/openid",
    "{organisation}/{name}",
)
_PARAMETER = re.compile(r"\{([^}]+)\}")
# What each route is asked with, beside its path.
_QUERIES: Mapping[str, tuple[str, ...]] = {
    "/api/v1/analyses/{analysis_id}/compare": ("base={base}",),
    "/compare": ("base={base}&head={analysis}", "base={base}&head={large}"),
    "/analyses/{analysis_id}/compare": ("base={base}",),
    "/inbox": ("", "state=accepted", "severity=error&text=norm", "text=of-no-finding", "rule=GP101"),
    "/projects/{project_id}/findings": (
        "",
        "state=accepted",
        "severity=error&text=norm",
        "text=of-no-finding",
        "rule=GP101",
    ),
    "/analyses/{analysis_id}/findings": ("", "severity=error&rule=GP101", "path=pkg/module_7.py"),
    "/analyses/{analysis_id}/targets": ("", "verdict=fail"),
}


@dataclass(slots=True)
class Reading:
    """What the database was asked in the course of one request."""

    statements: int = 0
    rows: int = 0
    most_rows: int = 0


@dataclass(slots=True)
class Asked:
    """One address: seconds of each request, size of the answer, what it read from the database."""

    address: str
    status: int
    seconds: list[float] = field(default_factory=list)
    size: int = 0
    reading: Reading = field(default_factory=Reading)

    @property
    def p95(self) -> float:
        """The 95th percentile; of fewer than twenty requests, the longest."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]

    def figures(self) -> dict[str, object]:
        """As it is printed and stored."""
        return {
            "address": self.address,
            "status": self.status,
            "median_s": round(statistics.median(self.seconds), 4),
            "p95_s": round(self.p95, 4),
            "bytes": self.size,
            **asdict(self.reading),
        }


class Watch:
    """Counts statements, and on PostgreSQL the rows that each gave."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.now = Reading()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this is open, everything that goes through the engine is counted."""

        def after(_c: object, cursor: object, statement: str, *_: object) -> None:
            self.now.statements += 1
            if statement.lstrip().upper().startswith(("SELECT", "WITH")):
                rows = max(0, getattr(cursor, "rowcount", 0))
                self.now.rows += rows
                self.now.most_rows = max(self.now.most_rows, rows)

        event.listen(self._engine, "after_cursor_execute", after)
        try:
            yield
        finally:
            event.remove(self._engine, "after_cursor_execute", after)


def addresses(app: FastAPI, filled: Filled) -> tuple[list[str], list[str]]:
    """What to ask, and the routes that nobody has an address for."""
    known = {
        "analysis_id": filled.analysis,
        "fingerprint": filled.fingerprint,
        "project": filled.project,
        "project_id": filled.project,
        "p": filled.project,
        "name": "gradcheck",
        "rule_id": "GP101",
        "format_name": "json",
        "slug": "default",
        "organisation": "default",
        "organisation_id": "default",
        "pull_request_id": filled.pull_request,
        "target": filled.target,
        "target_name": filled.target,
        "which": filled.target,
        "hook_id": filled.hook,
        "number": "1",
        "user_id": filled.user,
        "code": "",
    }
    asked, unknown = [], []
    for route in iter_route_contexts(app.routes):
        template = route.path or ""
        if "GET" not in (route.methods or ()) or any(part in template for part in _NOT_ASKED):
            continue
        wanted = {name.partition(":")[0] for name in _PARAMETER.findall(template)}
        if wanted - known.keys():
            unknown.append(template)
            continue
        if template.startswith("/badges/"):
            known["code"] = filled.badge
        elif "code" in wanted:
            known["code"] = filled.share
        for query in _QUERIES.get(template, ("",)):
            path = _filled(template, known)
            asked.append(path + ("?" + query.format(**asdict(filled)) if query else ""))
            if "analysis_id" in wanted:
                large = {**known, "analysis_id": filled.large, "fingerprint": filled.large_fingerprint}
                asked.append(_filled(template, large) + ("?" + query.format(**asdict(filled)) if query else ""))
    return asked, unknown


def _filled(path: str, known: Mapping[str, str]) -> str:
    for name, value in known.items():
        for form in (f"{{{name}}}", f"{{{name}:path}}"):
            path = path.replace(form, value)
    return path


def ask(client: httpx.Client, address: str, times: int, watch: Watch) -> Asked:
    """Ask one address `times` times after one that warms up; what it reads is that of the last."""
    watch.now = Reading()  # what warms up is nobody's
    answer = client.get(address)
    asked = Asked(address, answer.status_code)
    for _ in range(times):
        watch.now = Reading()
        start = time.perf_counter()
        answer = client.get(address)
        asked.seconds.append(time.perf_counter() - start)
        asked.reading = watch.now
    asked.size = len(answer.content)
    return asked
