"""Sessions of browsers: a signed cookie that names an API token, and a signed link to get one without typing.

The cookie holds no token, only the id of one and the moment it ends, under a MAC; revoking the token ends its sessions.
It is not readable for scripts, comes along on links to us but on no request that another site makes, and opens pages
only: the API never looks at it. A sign-in link carries the same under another label and is good for ten minutes, which
`gradproof serve` prints so that the first visit needs no token.
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
from services.database import Database
from services.settings import Settings

COOKIE: Final = "gradproof_session"
SESSION_S: Final = 12 * 3600
LINK_S: Final = 600
FORM_FIELD: Final = "csrf"
FORM_HEADER: Final = "X-CSRF-Token"


def _sign(settings: Settings, label: str, text: str) -> str:
    return hmac.new(signing_key(settings), f"{label}\0{text}".encode(), hashlib.sha256).hexdigest()


def _issue(settings: Settings, label: str, token_id: str, seconds: int) -> str:
    text = f"{token_id}.{int(time.time()) + seconds}"
    return f"{text}.{_sign(settings, label, text)}"


def _verify(settings: Settings, label: str, value: str) -> str | None:
    """The id of the token that a signed value names; None if it is forged, damaged, or over."""
    text, _, signature = value.rpartition(".")
    token_id, _, until = text.partition(".")
    expected = _sign(settings, label, text)
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
        return None
    return token_id if until.isdigit() and int(until) > time.time() else None


def sign_in_link(settings: Settings, token_id: str) -> str:
    """An address that signs a browser in, good for ten minutes."""
    return f"{settings.public_url.rstrip('/')}/sign-in/{_issue(settings, 'link', token_id, LINK_S)}"


def console_link(settings: Settings) -> str | None:
    """A sign-in link for whoever starts the service on a machine of their own; None if nobody holds a usable token.

    It opens the pages and nothing else. Who can start the service owns its data directory anyway.
    """
    database = Database.open(settings, lambda _queue: None)
    try:
        tokens = TokenService(database, settings)
        usable = (token.id for token in tokens.list() if tokens.find(token.id) is not None)
        token_id = next(usable, None)
    finally:
        database.close()
    return None if token_id is None else sign_in_link(settings, token_id)


def follow_link(context: Context, code: str) -> Subject:
    """Who a sign-in link is for. Raises `AuthenticationRequiredError`."""
    token_id = _verify(context.settings, "link", code)
    if token_id is None:
        raise AuthenticationRequiredError("this sign-in link is over or damaged")
    subject = context.tokens.find(token_id)
    if subject is None:
        raise AuthenticationRequiredError("the token behind this sign-in link is no longer valid")
    return subject


def begin(response: Response, settings: Settings, subject: Subject) -> None:
    """Start a session."""
    response.set_cookie(
        COOKIE,
        _issue(settings, "session", subject.id, SESSION_S),
        max_age=SESSION_S,
        httponly=True,
        secure=settings.public_url.startswith("https://"),
        samesite="lax",
        path="/",
    )


def end(response: Response) -> None:
    """End a session."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")


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


def _visitor(context: ContextDependency, session: Annotated[str | None, Cookie(alias=COOKIE)] = None) -> Visit:
    token_id = None if session is None else _verify(context.settings, "session", session)
    subject = None if token_id is None else context.tokens.find(token_id)
    if subject is None or session is None or Permission.READ not in subject.permissions:
        raise AuthenticationRequiredError("sign in to see this page")
    return Visit(subject, _sign(context.settings, "form", session))


Visitor = Annotated[Visit, Depends(_visitor)]


async def _form_sender(request: Request, visit: Visitor) -> Visit:
    """The visitor who sent a form of a page of ours. Raises `ForeignFormError`."""
    require_same_site(request)
    sent = (await request.form()).get(FORM_FIELD) or request.headers.get(FORM_HEADER, "")
    if not isinstance(sent, str) or not hmac.compare_digest(sent.encode("utf-8", "replace"), visit.csrf.encode()):
        raise ForeignFormError("this form is not of your session: reload its page and send it again")
    return visit


# What every route takes that a form or a button of a page sends to.
FormSender = Annotated[Visit, Depends(_form_sender)]
