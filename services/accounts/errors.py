"""What can be wrong with accounts and tokens, and what somebody may not do."""

from __future__ import annotations

from services.limits.errors import LimitReachedError
from services.problems import BadInputError, ConflictError, GradproofError, NotFoundError, SurroundingsError


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


class TokenNameError(BadInputError):
    """A token can't be called that."""

    code = "token-name"
    title = "A token can't be called that"


class UnknownScopeError(BadInputError):
    """A token was to be given a scope that does not exist."""

    code = "unknown-scope"
    title = "There is no such scope"


class SecretKeyError(SurroundingsError):
    """The key of the token hashes can't be used."""

    code = "secret-key"
    title = "The secret key can't be used"


class PasswordRefusedError(BadInputError):
    """The password is too short, too long, or too common."""

    code = "password-refused"
    title = "The password is not accepted"


class UserNameError(BadInputError):
    """Nobody can be called that."""

    code = "user-name"
    title = "A user can't be called that"


class UserExistsError(ConflictError):
    """The name is taken."""

    code = "user-exists"
    title = "There is a user of this name"


class UserNotFoundError(NotFoundError):
    """No user has this name."""

    code = "user-not-found"
    title = "No such user"


class WrongPasswordError(GradproofError):
    """Name and password do not belong together; which of them is wrong is not said."""

    code = "wrong-password"
    title = "This did not sign you in"
    http_status = 401
    exit_code = 2


class TooManyAttemptsError(LimitReachedError):
    """Signing in failed too often, by name or by address: it is closed for a while, to the right password too."""

    code = "too-many-attempts"
    title = "Signing in is closed for a while"


class OrganisationNotFoundError(NotFoundError):
    """No organisation has this name, or it is not the subject's."""

    code = "organisation-not-found"
    title = "No such organisation"


class OrganisationNameError(BadInputError):
    """An organisation can't be called that."""

    code = "organisation-name"
    title = "An organisation can't be called that"


class OrganisationExistsError(ConflictError):
    """The name is taken."""

    code = "organisation-exists"
    title = "There is an organisation of this name"


class UnknownRoleError(BadInputError):
    """A member was to be given a role that does not exist."""

    code = "unknown-role"
    title = "There is no such role"


class MemberNotFoundError(NotFoundError):
    """The user is no member."""

    code = "member-not-found"
    title = "No such member"


class LastAdminError(ConflictError):
    """An organisation keeps at least one admin."""

    code = "last-admin"
    title = "The last admin has to stay"


class IdentityError(GradproofError):
    """The identity provider did not vouch for anybody, or not in a way that can be believed."""

    code = "identity-refused"
    title = "The identity provider did not sign you in"
    http_status = 401
    exit_code = 2


class IdentityProviderError(SurroundingsError):
    """The identity provider can't be reached, or does not answer as it should."""

    code = "identity-provider"
    title = "The identity provider can't be used"
