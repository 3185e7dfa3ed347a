"""What can go wrong with a forge, each with what it means for the one who asked.

A caller decides by class, never by text: wait until `retry_at`, state the reason and stop, or look what became of a
write before writing again. No message holds a token: `services.forges.redaction` cleans what a forge or a library said.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from services.problems import BadInputError, GradproofError


class ForgeError(GradproofError):
    """A forge could not be asked, or would not do it.

    `retry`: whether the same call may succeed later without anybody doing anything.
    """

    code = "forge"
    title = "The forge did not do it"
    http_status = 502
    retry: ClassVar[bool] = False


class RateLimitedError(ForgeError):
    """The forge asks for silence until `retry_at` (aware, UTC). Nothing was done.

    `secondary`: the limit on bursts and on creating content, which grows if it is ignored, rather than the hourly one.
    """

    code = "forge-rate-limited"
    title = "The forge asks us to wait"
    retry = True

    def __init__(self, message: str, *, retry_at: datetime, secondary: bool) -> None:
        super().__init__(message, retry_at=retry_at.isoformat(), secondary=secondary)
        self.retry_at = retry_at
        self.secondary = secondary


class PermissionMissingError(ForgeError):
    """We may not do this. `permission` names what is missing in the forge's words, as far as it says so."""

    code = "forge-permission-missing"
    title = "A permission is missing at the forge"

    def __init__(self, message: str, *, permission: str) -> None:
        super().__init__(message, permission=permission)
        self.permission = permission


class InstallationSuspendedError(ForgeError):
    """The owner of the account suspended the installation of the application: nothing is possible until that ends."""

    code = "forge-installation-suspended"
    title = "The installation is suspended"


class ForgeAuthenticationError(ForgeError):
    """The forge does not take our key or token. An operator has to look at the settings."""

    code = "forge-authentication"
    title = "The forge does not know us"


class ForgeNotFoundError(ForgeError):
    """It is not there, or we may not see it. For a comment of ours: a person deleted it."""

    code = "forge-not-found"
    title = "The forge has no such thing"


class ForgeRejectedError(ForgeError):
    """The forge understood and refused (400, 409, 422, ...). `problems` are its sentences, cleaned and cut.

    Nothing was done, and the same call will not succeed later.
    """

    code = "forge-rejected"
    title = "The forge refused it"

    def __init__(self, message: str, *, status: int, problems: Sequence[str] = ()) -> None:
        super().__init__(message, status=status, problems=list(problems))
        self.status = status
        self.problems = tuple(problems)


class ForgeUnavailableError(ForgeError):
    """The forge did not answer, or answered with a failure of its own (5xx, timeout, cut connection).

    `outcome_unknown`: a write was sent and may have been carried out. Look what became of it (by marker, external id,
    fingerprint) before it is sent again. False: nothing was done, for sure.
    """

    code = "forge-unavailable"
    title = "The forge is not available"
    retry = True

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown)
        self.outcome_unknown = outcome_unknown


class UnreadableAnswerError(ForgeUnavailableError):
    """What came back is no answer: too large, not JSON, of another shape, or it leads to another host."""

    code = "forge-unreadable-answer"
    title = "The forge's answer can't be read"


class NotSupportedByForgeError(ForgeError):
    """This forge has no such thing (`ForgeFeatures` says so beforehand)."""

    code = "forge-not-supported"
    title = "This forge can't do that"


class SignatureError(BadInputError):
    """A webhook is not signed, or not by somebody who knows the secret. Answered with 401."""

    code = "webhook-signature"
    title = "The signature is wrong"
    http_status = 401
