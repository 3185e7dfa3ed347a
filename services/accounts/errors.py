"""What can be wrong with a token."""

from __future__ import annotations

from services.problems import BadInputError, NotFoundError, SurroundingsError


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
