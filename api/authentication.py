"""Who is calling: bearer tokens for the API.

A cookie never lets anybody into the API, so that a page of somebody else's can't make a browser call it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.context import ContextDependency
from api.errors import AuthenticationRequiredError, MissingScopeError
from services.accounts import Principal, Scope

_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="An API token: `gradproof token create`.")


class Needs:
    """A dependency: the caller, who must have a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __call__(
        self, context: ContextDependency, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> Principal:
        if credentials is None:
            raise AuthenticationRequiredError("send a token: Authorization: Bearer …")
        principal = context.tokens.authenticate(credentials.credentials)
        if principal is None:
            raise AuthenticationRequiredError("the token is unknown, expired or revoked")
        if self._scope not in principal.scopes:
            raise MissingScopeError(f"this needs a token with the scope {self._scope.value!r}", scope=self._scope.value)
        return principal


Reader = Annotated[Principal, Depends(Needs(Scope.READ))]
Submitter = Annotated[Principal, Depends(Needs(Scope.SUBMIT))]
