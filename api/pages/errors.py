"""A problem as a page, for whoever came with a browser."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from api.pages.rendering import render
from api.pages.sessions import COOKIE, Visit, visit_of
from api.problems import Problem

_FOR_MACHINES = ("/api/", "/healthz", "/readyz", "/metrics", "/openapi.json")
_LONGEST_GOAL = 500


def problem_page(request: Request, problem: Problem) -> Response | None:
    """The page of a problem; None where the answer is for a machine.

    A browser without a session is led to the sign-in page and, from there, back to where it wanted to go.
    """
    if request.url.path.startswith(_FOR_MACHINES) or "text/html" not in request.headers.get("accept", ""):
        return None
    if problem.status == 401 and request.method == "GET":
        return RedirectResponse(f"/sign-in?next={quote(_wanted(request), safe='/')}", status_code=303)
    return render("error.html", status=problem.status, visitor=_visitor(request, problem), problem=problem)


def _wanted(request: Request) -> str:
    """Where the browser wanted to go; without its question where that is longer than the form takes."""
    whole = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    return whole if len(whole) <= _LONGEST_GOAL else request.url.path


def _visitor(request: Request, problem: Problem) -> Visit | None:
    """Who looks, so that the head of the page is as everywhere; not asked where the answer must not cost anything."""
    if problem.status >= 500 or problem.status in {401, 413, 429}:
        return None
    return visit_of(request.app.state.context, request.cookies.get(COOKIE))
