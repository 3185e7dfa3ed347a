"""Builds the application: routes, pages, errors, limits, headers.

One factory and no global: tests, the command line and a server process all call `create_app` with their settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api import pages, problems
from api.context import Context
from api.documents import complete
from api.events import Streams
from api.middleware import BodyLimit, ErrorBoundary, RequestRate, SecurityHeaders
from api.pages.sessions import COOKIE
from api.presentation import API
from api.routers import (
    analyses,
    audit,
    documentation,
    hooks,
    members,
    operations,
    organisations,
    projects,
    results,
    shares,
    tokens,
    triage,
    webhooks,
)
from services.limits import Rates
from services.settings import Settings
from services.version import version

_DESCRIPTION = """Gradproof proves, or disproves, that PyTorch model code computes the gradients its author believes it
does: submit an archive or a git commit, watch its analysis, fetch the report.

Every call but those of documentation and health needs `Authorization: Bearer <token>` (`gradproof token create`).
Every error is `application/problem+json` with a stable `code`, and names the offending part in `detail` and `details`.
"""


def create_app(settings: Settings) -> FastAPI:
    """The application for these settings. Its connections open when they are used and close with its lifespan."""
    context = Context.open(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            context.close()

    app = FastAPI(
        title="Gradproof",
        version=version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.context = context
    app.state.streams = Streams(settings)
    for router in (analyses.router, results.router, documentation.router):
        app.include_router(router, prefix=API)
    for team in (projects, triage, hooks, shares, organisations, members, tokens, audit):
        app.include_router(team.router, prefix=API)
    app.include_router(webhooks.router, prefix=API)
    # The address that forges are told; the one below /api/v1 is that of the documentation.
    app.include_router(webhooks.router, include_in_schema=False)
    app.include_router(operations.router)
    app.include_router(pages.router)
    problems.install(app, pages.problem_page)
    # The last one added is the outermost: headers go onto every answer, also onto a refusal.
    app.add_middleware(ErrorBoundary)
    app.add_middleware(RequestRate, rates=Rates(settings.request_rate), cookie=COOKIE)
    app.add_middleware(BodyLimit, limit=settings.upload_limit)
    app.add_middleware(SecurityHeaders, https=settings.public_url.startswith("https://"))

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(
                get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # the documented way to change the document
    return app
