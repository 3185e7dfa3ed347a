"""What can be wrong with a request: named, and told apart from faults of the submitted code (which are results)."""

from __future__ import annotations


class ProbeError(Exception):
    """The probe can't do its work at all."""


class RequestError(ProbeError):
    """The request isn't what the protocol says; the message names the key."""
