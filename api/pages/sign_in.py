"""The way in and out of the pages: by password, by token, by a link of the console, through an identity provider."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Cookie, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from api.context import Context, ContextDependency
from api.errors import AuthenticationRequiredError
from api.pages import sessions
from api.pages.rendering import render
from api.pages.sessions import COOKIE, FormSender
from services.accounts import Subject
from services.accounts.errors import TooManyAttemptsError, WrongPasswordError
from services.problems import GradproofError

router = APIRouter(include_in_schema=False)


class Credentials(BaseModel):
    """What the form sends: a name with a password, or a token."""

    name: str = Field(default="", max_length=200)
    password: str = Field(default="", max_length=4096)
    token: str = Field(default="", max_length=500)
    goal: str = Field(default="/", alias="next", max_length=500)


@router.get("/sign-in")
def sign_in_page(
    context: ContextDependency, goal: Annotated[str, Query(alias="next", max_length=500)] = "/"
) -> Response:
    """The form that takes a name and a password, or a token."""
    return sign_in_form(context, goal)


@router.post("/sign-in")
def sign_in(request: Request, context: ContextDependency, shown: Annotated[Credentials, Form()]) -> Response:
    """Start a session."""
    sessions.require_same_site(request)
    try:
        if shown.name:
            how = "password"
            subject = context.users.sign_in(shown.name, shown.password, address=_address(request))
        else:
            how, subject = "token", _holder(context, shown.token)
    except (WrongPasswordError, AuthenticationRequiredError, TooManyAttemptsError) as error:
        response = sign_in_form(context, shown.goal, problem=error, name=shown.name)
        if isinstance(error, TooManyAttemptsError):
            response.headers["Retry-After"] = str(error.retry_after_s)
        return response
    return _let_in(request, context, subject, shown.goal, how=how)


@router.get("/sign-in/{code}")
def follow_sign_in_link(request: Request, code: str, context: ContextDependency) -> Response:
    """Start a session by a link of `gradproof serve`."""
    try:
        subject = sessions.follow_link(context, code)
    except AuthenticationRequiredError as error:
        return sign_in_form(context, "/", problem=error)
    return _let_in(request, context, subject, "/", how="link")


@router.post("/sign-out")
async def sign_out(
    request: Request, context: ContextDependency, session: Annotated[str | None, Cookie(alias=COOKIE)] = None
) -> Response:
    """End the session. Without one, there is nothing to end, and that is no error."""
    sessions.require_same_site(request)
    visit = await run_in_threadpool(sessions.visit_of, context, session)
    if visit is not None:
        await sessions.require_own_form(request, visit)
        await run_in_threadpool(context.sessions.end, visit.subject, visit.session_id)
    return _out(context)


@router.post("/sign-out/everywhere")
def sign_out_everywhere(context: ContextDependency, visitor: FormSender) -> Response:
    """End all sessions of whoever this is, in other browsers too."""
    context.sessions.end_all(visitor.subject)
    return _out(context)


def sign_in_form(context: Context, goal: str, *, problem: GradproofError | None = None, name: str = "") -> Response:
    """The form, with what was wrong the last time."""
    return render(
        "sign_in.html",
        status=200 if problem is None else problem.http_status,
        section="sign-in",
        goal=local_address(goal),
        problem=None if problem is None else f"{problem.message[:1].upper()}{problem.message[1:]}.",
        name=name[:64],
        with_password=context.users.passwords_exist(),
        provider=context.settings.oidc_name if context.settings.oidc_issuer else None,
    )


def _holder(context: Context, token: str) -> Subject:
    subject = context.tokens.authenticate(token.strip())
    if subject is None:
        raise AuthenticationRequiredError("this token is unknown, expired or revoked")
    return subject


def _let_in(request: Request, context: Context, subject: Subject, goal: str, *, how: str) -> Response:
    response = RedirectResponse(local_address(goal), status_code=303)
    sessions.begin(request, response, context, subject, how=how)
    return response


def _out(context: Context) -> Response:
    response = RedirectResponse("/sign-in", status_code=303)
    sessions.forget(response, context.settings)
    return response


def _address(request: Request) -> str | None:
    return None if request.client is None else request.client.host


def local_address(address: str) -> str:
    """A path of our own, so that signing in never leads to another site."""
    plain = address.startswith("/") and not address.startswith("//") and "\\" not in address and address.isprintable()
    if not plain:
        return "/"
    parts = urlsplit(address)
    return "/" if parts.scheme or parts.netloc else address
