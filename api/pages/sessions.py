"""How a browser holds a session: a cookie, a text in every form, and a signed link to get in without typing.

The cookie is not readable for scripts, comes along on links to us but on no request that another site makes, and opens
pages only: the API never looks at it. What it means is kept by `services.accounts.sessions`. A sign-in link names a
token under a MAC and is good for ten minutes; `gradproof serve` prints one so that the first visit needs no token.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Cookie, Depends, Request, Response

from api.context import Context, ContextDependency
from api.errors import AuthenticationRequiredError, ForeignFormError
from services.accounts import Permission, Subject, TokenService, signing_key
from services.accounts.sessions import LONGEST
from services.database import Database
from services.settings import Settings

COOKIE: Final = "gradproof_session"
LINK_S: Final = 600
FORM_FIELD: Final = "csrf"
FORM_HEADER: Final = "X-CSRF-Token"


def _sign(settings: Settings, text: str) -> str:
    return hmac.new(signing_key(settings), f"link\0{text}".encode(), hashlib.sha256).hexdigest()


def sign_in_link(settings: Settings, token_id: str) -> str:
    """An address that signs a browser in, good for ten minutes."""
    text = f"{token_id}.{int(time.time()) + LINK_S}"
    return f"{settings.public_url.rstrip('/')}/sign-in/{text}.{_sign(settings, text)}"


def console_link(settings: Settings) -> str | None:
    """A sign-in link for whoever starts the service on a machine of their own; None if nobody holds a usable token of
    the installation.

    It opens the pages and nothing else. Who can start the service owns its data directory anyway.
    """
    database = Database.open(settings, lambda _queue: None)
    try:
        tokens = TokenService(database, settings)
        subjects = (tokens.find(token.id) for token in tokens.newest())
        token_id = next((found.id for found in subjects if found and found.everywhere and not found.user_id), None)
    finally:
        database.close()
    return None if token_id is None else sign_in_link(settings, token_id)


def follow_link(context: Context, code: str) -> Subject:
    """Who a sign-in link is for. Raises `AuthenticationRequiredError`."""
    text, _, signature = code.rpartition(".")
    token_id, _, until = text.partition(".")
    genuine = hmac.compare_digest(signature.encode("utf-8", "replace"), _sign(context.settings, text).encode())
    if not genuine or not until.isdigit() or int(until) <= time.time():
        raise AuthenticationRequiredError("this sign-in link is over or damaged")
    subject = context.tokens.find(token_id)
    if subject is None:
        raise AuthenticationRequiredError("the token behind this sign-in link is no longer valid")
    return subject


def begin(request: Request, response: Response, context: Context, subject: Subject, *, how: str) -> None:
    """Start a session; one that the browser had is ended, so that none is ever taken over."""
    before = context.sessions.find(request.cookies.get(COOKIE, ""))
    if before is not None:
        context.sessions.end(before.subject, before.id)
    text = context.sessions.begin(subject, agent=request.headers.get("user-agent", ""), how=how)
    response.set_cookie(
        COOKIE,
        text,
        max_age=int(LONGEST.total_seconds()),
        httponly=True,
        secure=is_https(context.settings),
        samesite="lax",
        path="/",
    )


def forget(response: Response, settings: Settings) -> None:
    """Take the cookie back; the session itself is ended by `services.accounts.sessions`."""
    response.delete_cookie(COOKIE, path="/", httponly=True, secure=is_https(settings), samesite="lax")


def is_https(settings: Settings) -> bool:
    """Whether people reach the pages over https."""
    return settings.public_url.startswith("https://")


def require_same_site(request: Request) -> None:
    """Refuse a form that another site's page sent. Raises `ForeignFormError`.

    Browsers say where a request comes from: by `Sec-Fetch-Site` over https and from the machine itself, by `Origin`
    otherwise. A request that says neither comes from no browser, and so has no session to misuse.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        foreign = site not in {"same-origin", "none"}
    else:
        foreign = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if foreign:
        raise ForeignFormError("this form was sent from another site", site=site, origin=origin)


@dataclass(frozen=True, slots=True)
class Visit:
    """Who looks at a page, and the text by which forms of this session's pages are known (`csrf_field()`)."""

    subject: Subject
    csrf: str
    session_id: str


def visit_of(context: Context, cookie: str | None) -> Visit | None:
    """Who the browser with this cookie is; None for nobody."""
    session = None if cookie is None else context.sessions.find(cookie)
    if session is None or Permission.READ not in session.subject.permissions:
        return None
    return Visit(session.subject, session.form_key, session.id)


def _visitor(context: ContextDependency, session: Annotated[str | None, Cookie(alias=COOKIE)] = None) -> Visit:
    visit = visit_of(context, session)
    if visit is None:
        raise AuthenticationRequiredError("sign in to see this page")
    return visit


Visitor = Annotated[Visit, Depends(_visitor)]


async def require_own_form(request: Request, visit: Visit) -> None:
    """Refuse a form that is not of a page of this session. Raises `ForeignFormError`."""
    require_same_site(request)
    sent = (await request.form()).get(FORM_FIELD) or request.headers.get(FORM_HEADER, "")
    if not isinstance(sent, str) or not hmac.compare_digest(sent.encode("utf-8", "replace"), visit.csrf.encode()):
        raise ForeignFormError("this form is not of your session: reload its page and send it again")


async def _form_sender(request: Request, visit: Visitor) -> Visit:
    await require_own_form(request, visit)
    return visit


# What every route takes that a form or a button of a page sends to.
FormSender = Annotated[Visit, Depends(_form_sender)]
