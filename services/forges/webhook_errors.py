"""What can be wrong with a webhook beside its signature."""

from __future__ import annotations

from services.problems import BadInputError, NotFoundError


class ForgeNotSetError(NotFoundError):
    """This service was told of no such forge: there is nothing to check a signature with."""

    code = "forge-not-set"
    title = "This service is not connected with that forge"


class UnreadableWebhookError(BadInputError):
    """A webhook that is rightly signed lacks something that is needed, or is no JSON."""

    code = "webhook-unreadable"
    title = "The webhook can't be read"
