"""What every route of a team's pages works with: who looks or sends a form, the use cases, and the ways to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from api.context import Context, ContextDependency
from api.pages import notices
from api.pages.notices import Notice
from api.pages.rendering import render
from api.pages.sessions import FormSender, Visit, Visitor
from services.accounts.access import Subject
from services.problems import GradproofError


@dataclass(frozen=True, slots=True)
class Desk:
    """One request of somebody who is signed in."""

    request: Request
    context: Context
    visit: Visit

    @property
    def subject(self) -> Subject:
        """Who acts."""
        return self.visit.subject

    def page(self, template: str, *, problem: GradproofError | None = None, **values: Any) -> Response:
        """A page, with the notice that the form before it left (`told`), or with what is wrong with its own form."""
        notice = notices.waiting(self.request, self.context.settings)
        response = render(
            f"team/{template}",
            visitor=self.visit,
            status=200 if problem is None else problem.http_status,
            told=notice,
            problem=None if problem is None else sentence(problem),
            here=self.here,
            **values,
        )
        if notice is not None:
            notices.told(response)
        return response

    @property
    def here(self) -> str:
        """The address of this page, to come back to."""
        query = self.request.url.query
        return f"{self.request.url.path}?{query}" if query else self.request.url.path

    def done(self, goal: str, text: str, *, undo: tuple[str, ...] = (), tone: str = "good") -> Response:
        """The answer to a form that was obeyed: the page to go on with, which tells what was done."""
        response = RedirectResponse(goal, status_code=303)
        notices.leave(response, self.context.settings, Notice(text=text, tone=tone, undo=undo))
        return response


def sentence(error: GradproofError) -> str:
    """What is wrong, as a sentence beside the form that it is wrong with."""
    return f"{error.message[:1].upper()}{error.message[1:].rstrip('.')}."


def _looking(request: Request, context: ContextDependency, visitor: Visitor) -> Desk:
    return Desk(request, context, visitor)


def _acting(request: Request, context: ContextDependency, visitor: FormSender) -> Desk:
    return Desk(request, context, visitor)


# What a route takes that shows a page, and one that a form is sent to.
Looking = Annotated[Desk, Depends(_looking)]
Acting = Annotated[Desk, Depends(_acting)]
