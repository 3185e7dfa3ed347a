"""Reads the address of a mail server and that of a sender. Neither may hold a secret: errors quote what they refuse."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.headerregistry import Address
from typing import Final
from urllib.parse import urlsplit

# Submission with STARTTLS, and with TLS from the first byte (RFC 8314).
_PORTS: Final = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where mail is handed in. `tls`: from the first byte on; otherwise STARTTLS may be asked for."""

    host: str
    port: int
    tls: bool

    @property
    def is_here(self) -> bool:
        """Whether it runs on this very machine."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


def read_mail_server(url: str) -> MailServer:
    """The server of an address `smtp://host:port` or `smtps://host:port`. Raises `ValueError` with a sentence."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no address: {error}") from None
    if parts.scheme not in _PORTS:
        raise ValueError("must begin with smtp:// or smtps://")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "must not hold a name or a password: those are GRADPROOF_SMTP_USER and GRADPROOF_SMTP_PASSWORD"
        )
    if not parts.hostname or not parts.hostname.isascii() or not parts.hostname.isprintable():
        raise ValueError("names no host")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError("ends with the host and its port")
    return MailServer(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "smtps")


def read_address(text: str) -> Address:
    """A bare mail address, `name@domain`. Raises `ValueError` for what can't stand in the head of a mail."""
    try:
        address = Address(addr_spec=text)
    except (ValueError, IndexError, HeaderParseError) as error:
        raise ValueError(f"is no mail address: {error}") from None
    if not text.isprintable() or address.addr_spec != text or not address.username or not address.domain:
        raise ValueError("is no mail address of the form name@domain")
    return address
