"""What can be wrong with accounts and tokens, and what somebody may not do."""

from __future__ import annotations

from services.problems import BadInputError, GradproofError, NotFoundError, SurroundingsError


class PermissionDeniedError(GradproofError):
    """The subject may see the object, but not do this with it."""

    code = "permission-denied"
    title = "You may not do this"
    http_status = 403
    exit_code = 2


class TokenNotFoundError(NotFoundError):
    """No token has this id."""

    code = "token-not-found"
    title = "No such token"


class UnknownScopeError(BadInputError):
    """A token was to be given a scope that does not exist."""

    code = "unknown-scope"
    title = "There is no such scope"


class SecretKeyError(SurroundingsError):
    """The key of the token hashes can't be used."""

    code = "secret-key"
    title = "The secret key can't be used"
