"""What every page of a team shares: who looks, and what was just done."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from api.context import Context
from api.pages import notices
from api.pages.notices import Notice
from api.pages.rendering import render
from api.pages.sessions import Visit


def team_page(
    request: Request, context: Context, visitor: Visit, template: str, *, status: int = 200, **values: Any
) -> Response:
    """A page, with the notice that the form before it left. Templates find it as `told`."""
    notice = notices.waiting(request, context.settings)
    response = render(f"team/{template}", visitor=visitor, status=status, told=notice, **values)
    if notice is not None:
        notices.told(response)
    return response


def done(context: Context, goal: str, text: str, *, undo: tuple[str, ...] = (), tone: str = "good") -> Response:
    """The answer to a form that was obeyed: the page to go on with, which tells what was done."""
    response = RedirectResponse(goal, status_code=303)
    notices.leave(response, context.settings, Notice(text=text, tone=tone, undo=undo))
    return response
