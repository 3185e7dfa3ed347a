"""Who is calling: bearer tokens for the API.

A cookie never lets anybody into the API, so that a page of somebody else's can't make a browser call it.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.context import ContextDependency
from api.errors import AuthenticationRequiredError, MissingScopeError
from services.accounts import Permission, Scope, Subject

_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="An API token: `gradproof token create`.")
# The least scope that allows it.
_SCOPES: Final = {
    Permission.READ: Scope.READ,
    Permission.SUBMIT: Scope.SUBMIT,
    Permission.TRIAGE: Scope.TRIAGE,
    Permission.CONFIGURE: Scope.ADMIN,
    Permission.ADMINISTER: Scope.ADMIN,
}


class Needs:
    """A dependency: the caller, whose token must allow something at all. Where it does is for the use cases to say."""

    def __init__(self, permission: Permission) -> None:
        self._permission = permission

    def __call__(
        self, context: ContextDependency, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> Subject:
        if credentials is None:
            raise AuthenticationRequiredError("send a token: Authorization: Bearer …")
        subject = context.tokens.authenticate(credentials.credentials)
        if subject is None:
            raise AuthenticationRequiredError("the token is unknown, expired or revoked")
        if self._permission not in subject.permissions:
            scope = _SCOPES[self._permission].value
            raise MissingScopeError(f"this needs a token with the scope {scope!r}", scope=scope)
        return subject


Reader = Annotated[Subject, Depends(Needs(Permission.READ))]
Submitter = Annotated[Subject, Depends(Needs(Permission.SUBMIT))]
Triager = Annotated[Subject, Depends(Needs(Permission.TRIAGE))]
Maintainer = Annotated[Subject, Depends(Needs(Permission.CONFIGURE))]
Administrator = Annotated[Subject, Depends(Needs(Permission.ADMINISTER))]
