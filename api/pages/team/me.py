"""What somebody sets for oneself: the name that others see, the password, the digest, sessions, tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Response

from api.pages.team.desk import Acting, Desk, Looking
from api.pages.team.token_forms import SCOPES, NewTokenForm
from services.accounts.access import Permission, Subject
from services.problems import GradproofError

router = APIRouter()


@router.get("/me")
def my_page(desk: Looking) -> Response:
    """One's own settings; for the holder of a token, what it is."""
    return _me(desk)


@router.post("/me")
def change_name(desk: Acting, display_name: Annotated[str, Form(max_length=500)] = "") -> Response:
    """Be called something else."""
    try:
        desk.context.users.rename(desk.subject, display_name)
    except GradproofError as error:
        return _me(desk, problem=error)
    return desk.done("/me", "Saved. Earlier decisions keep the name of then.")


@router.post("/me/password")
def change_password(
    desk: Acting,
    old: Annotated[str, Form(max_length=4096)] = "",
    new: Annotated[str, Form(max_length=4096)] = "",
) -> Response:
    """Change the password; all other sessions end."""
    client = desk.request.client
    try:
        desk.context.users.change_password(
            desk.subject,
            old=old,
            new=new,
            address=None if client is None else client.host,
            spare=desk.visit.session_id,
        )
    except GradproofError as error:
        return _me(desk, problem=error)
    return desk.done("/me", "The password is changed, and your other sessions are over.")


@router.post("/me/digest")
def choose_digest(desk: Acting, period: Annotated[str, Form(max_length=20)] = "") -> Response:
    """Have a digest by mail once a day or a week, or none."""
    try:
        choice = desk.context.digests.choose(desk.subject, period or None)
    except GradproofError as error:
        return _me(desk, problem=error)
    text = "No digest is sent to you." if choice.period is None else f"You get a {choice.period} digest from now on."
    return desk.done("/me", text)


@router.post("/me/sessions/{session_id}/end")
def end_session(desk: Acting, session_id: str) -> Response:
    """Sign out somewhere."""
    desk.context.sessions.end(desk.subject, session_id)
    return desk.done("/me", "That session is over.")


@router.post("/me/tokens")
def make_token(desk: Acting, wanted: NewTokenForm) -> Response:
    """Make a token. Its text is in the answer, this once; that is why it leads nowhere else."""
    try:
        made = desk.context.tokens.issue(
            desk.subject,
            wanted.name,
            wanted.scope,
            lifetime=wanted.lifetime,
            installation=_is_installation(desk.subject),
        )
    except GradproofError as error:
        return _me(desk, problem=error)
    return _me(desk, fresh=made.text)


@router.post("/me/tokens/{token_id}/revoke")
def revoke_token(desk: Acting, token_id: str) -> Response:
    """Make one useless at once."""
    token = desk.context.tokens.withdraw(desk.subject, token_id)
    return desk.done("/me", f"{token.name} is revoked.")


def _me(desk: Desk, *, problem: GradproofError | None = None, fresh: str | None = None) -> Response:
    subject = desk.subject
    is_user = subject.kind == "user"
    may_make = is_user or _is_installation(subject)
    listed = desk.context.tokens.list(subject, limit=200).items if may_make else ()
    return desk.page(
        "me.html",
        problem=problem,
        user=desk.context.users.me(subject) if is_user else None,
        digest=desk.context.digests.choice(subject) if is_user else None,
        sessions=desk.context.sessions.list(subject),
        may_make=may_make,
        tokens=[token for token in listed if token.user_id == subject.user_id and token.project_id is None],
        fresh=fresh,
        scopes=SCOPES,
    )


def _is_installation(subject: Subject) -> bool:
    """Whether this is nobody in person, but the holder of a token of the installation: at first, there is no other."""
    return subject.user_id is None and subject.everywhere and Permission.ADMINISTER in subject.permissions
