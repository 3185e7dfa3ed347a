"""What can be wrong with a token."""

from __future__ import annotations

from services.problems import BadInputError, GradproofError, NotFoundError, SurroundingsError


class InvalidTokenError(GradproofError):
    """No token, or none that is valid. What exactly is wrong is not said: it would help whoever guesses."""

    code = "invalid-token"
    title = "The token is not valid"
    http_status = 401
    exit_code = 2


class MissingScopeError(GradproofError):
    """The token is valid but may not do this."""

    code = "missing-scope"
    title = "The token does not allow this"
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
