"""What can be wrong with a request before the domain ever sees it."""

from __future__ import annotations

from services.problems import BadInputError, GradproofError


class BodyTooLargeError(BadInputError):
    """The request body exceeds the limit; it was not read to its end."""

    code = "body-too-large"
    title = "The request body is too large"
    http_status = 413


class UnsupportedMediaTypeError(BadInputError):
    """The body is of a media type that this call does not take."""

    code = "unsupported-media-type"
    title = "The media type of the body is not supported"
    http_status = 415


class InvalidRequestError(BadInputError):
    """Fields or parameters are missing, unknown or have unusable values; `details["errors"]` lists them all."""

    code = "invalid-request"
    title = "The request can't be used"


class MalformedBodyError(BadInputError):
    """The body is not what its media type says."""

    code = "malformed-body"
    title = "The body can't be read"
    http_status = 400


class AuthenticationRequiredError(GradproofError):
    """There is no token, or one that lets nobody in. Which of the two is all that is said."""

    code = "authentication-required"
    title = "A valid token is required"
    http_status = 401
    exit_code = 2


class MissingScopeError(GradproofError):
    """The token is valid but may not do this."""

    code = "missing-scope"
    title = "The token does not allow this"
    http_status = 403
    exit_code = 2


class ForeignFormError(GradproofError):
    """A page of another site sent a form of ours."""

    code = "foreign-form"
    title = "This form came from another site"
    http_status = 403
    exit_code = 2


class RouteNotFoundError(GradproofError):
    """No route has this path."""

    code = "route-not-found"
    title = "There is nothing at this address"
    http_status = 404
    exit_code = 2
