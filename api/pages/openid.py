"""The way in through an identity provider: away to it, and back from it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from api.context import Context, ContextDependency
from api.errors import RouteNotFoundError
from api.pages import sessions
from api.pages.sign_in import local_address, sign_in_form
from services.accounts.errors import IdentityError
from services.accounts.openid import DEPARTURE_S, OpenIdProvider

router = APIRouter(include_in_schema=False, prefix="/openid")

COOKIE: Final = "gradproof_openid"


@router.get("/sign-in")
def depart(context: ContextDependency, goal: Annotated[str, Query(alias="next", max_length=500)] = "/") -> Response:
    """Send the browser to the identity provider."""
    departure = _provider(context).depart(local_address(goal))
    response = RedirectResponse(departure.url, status_code=303)
    response.set_cookie(
        COOKIE,
        departure.cookie,
        max_age=DEPARTURE_S,
        httponly=True,
        secure=sessions.is_https(context.settings),
        samesite="lax",
        path="/openid",
    )
    return response


@router.get("/callback")
def arrive(request: Request, context: ContextDependency) -> Response:
    """Start a session for whom the identity provider vouches. What a sign-in began with is good for one return."""
    provider = _provider(context)
    response: Response
    try:
        identity, goal = provider.arrive(request.cookies.get(COOKIE), request.query_params)
        subject = context.identities.sign_in(identity)
    except IdentityError as error:
        response = sign_in_form(context, "/", problem=error)
    else:
        response = RedirectResponse(local_address(goal), status_code=303)
        sessions.begin(request, response, context, subject, how="openid")
    response.delete_cookie(
        COOKIE, path="/openid", httponly=True, secure=sessions.is_https(context.settings), samesite="lax"
    )
    return response


def _provider(context: Context) -> OpenIdProvider:
    if context.openid is None:
        raise RouteNotFoundError("no identity provider is set up here")
    return context.openid
