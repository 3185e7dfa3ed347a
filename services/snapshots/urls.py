"""The one judge of git URLs: whatever names a repository goes through here before anything else happens.

Two steps. `parse_git_url` judges the text: https only, a plain host name or canonical address, no credentials, nothing
that git or curl could read differently. `resolve` asks for the host's addresses, once, and accepts only public ones
(or those of the operator's trusted networks); git is then pinned to exactly these addresses, so that a second,
different answer of the name server is never asked for. A URL that git follows from a server's answer would not pass
here, which is why redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from services.settings import Settings
from services.snapshots.errors import (
    GitAddressNotPublicError,
    GitHostNotAllowedError,
    GitHostUnknownError,
    GitPortError,
    GitUrlError,
    GitUrlSchemeError,
    GitUrlUserInfoError,
)
from services.snapshots.paths import shown

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Sequence[str]]

_MAX_URL: Final = 2048
_HTTPS_PORT: Final = 443
_SCHEME: Final = "https://"
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~+@!$&'()*,;=:/-]|%[0-9A-Fa-f]{2})+")
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/]*@")
_REFUSED_ESCAPE: Final = re.compile(r"%(?:[01][0-9a-f]|7f|2e|2f|5c)", re.IGNORECASE)

# IANA special-purpose address registries (2025), and what clouds answer to from within. `ipaddress.is_global` is not
# enough: Python 3.11 calls 64:ff9b::/96 (NAT64), fec0::/10, ::127.0.0.1 and 192.0.0.0/24 global.
_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform server, a public address that only machines inside reach
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_PUBLIC_6: Final = IPv6Network("2000::/3")  # the only unicast space that IANA has handed out
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4 carries an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)


@dataclass(frozen=True, slots=True)
class GitUrl:
    """An accepted URL, in the one form in which it is used: lower-case host, no default port."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _HTTPS_PORT else f":{self.port}"
        return f"{_SCHEME}{host}{port}{self.path}"

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address rather than a name."""
        return _literal(self.host) is not None


@dataclass(frozen=True, slots=True)
class ResolvedUrl:
    """An accepted URL with the addresses that it may be fetched from. `trusted`: all lie in trusted networks."""

    url: GitUrl
    addresses: tuple[Address, ...]
    trusted: bool


def parse_git_url(text: str, settings: Settings) -> GitUrl:
    """Judge the text of a URL. Raises `GitUrlError` or one of its kinds; nothing is resolved."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise _refused("has a character that is no part of a URL", text, "characters")
    if len(text) > _MAX_URL:
        raise _refused(f"has more than {_MAX_URL:,} characters", text, "length")
    if not text.lower().startswith(_SCHEME):
        url_text = _without_credentials(text)
        raise GitUrlSchemeError(f"only https:// URLs are fetched, not {url_text}", part="scheme", url=url_text)
    authority, slash, rest = text[len(_SCHEME) :].partition("/")
    if "@" in authority:
        raise GitUrlUserInfoError(
            "the URL holds a user name or password in front of the host; it would end up in logs", part="userinfo"
        )
    if "?" in text or "#" in text:
        raise _refused("has a query or a fragment", text, "query")
    host, port = _host_and_port(authority, text)
    path = _path(slash + rest, text)
    url = GitUrl(host, port, path)
    _check_allowed(url, settings.git_hosts)
    return url


def resolve(url: GitUrl, settings: Settings, resolver: Resolver | None = None) -> ResolvedUrl:
    """The addresses of a URL's host, all of them acceptable.

    Raises `GitHostUnknownError`, `GitAddressNotPublicError` when any address is neither public nor trusted, and
    `GitPortError` for another port than 443 on a public host that `settings.git_hosts` does not list with it.
    """
    literal = _literal(url.host)
    if literal is not None:
        addresses: tuple[Address, ...] = (literal,)
    else:
        addresses = tuple(_parsed(address) for address in (resolver or _system_resolver)(url.host, url.port))
    if not addresses:
        raise GitHostUnknownError(f"the host {shown(url.host)} has no address", host=shown(url.host))
    trusted = [address for address in addresses if _is_trusted(address, settings.git_trusted_networks)]
    for address in addresses:
        if address not in trusted and not is_public(address):
            raise GitAddressNotPublicError(
                f"{shown(url.host)} is at {address}, which is not on the public Internet", host=shown(url.host)
            )
    all_trusted = len(trusted) == len(addresses)
    if url.port != _HTTPS_PORT and not all_trusted and f"{url.host}:{url.port}" not in settings.git_hosts:
        raise GitPortError(f"port {url.port} of {shown(url.host)} is not accepted, only 443", part="port")
    return ResolvedUrl(url, addresses, all_trusted)


def is_public(address: Address) -> bool:
    """Whether an address is on the public Internet and nowhere else, also when it carries another one inside."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return (
        address.scope_id is None and address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
    )


def _host_and_port(authority: str, text: str) -> tuple[str, int]:
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?", authority)
    plain = re.fullmatch(r"([^:\[\]]+)(?::([0-9]{1,5}))?", authority)
    match = bracketed or plain
    if match is None:
        raise _refused("has no host, or one that can't be read", text, "host")
    port = int(match[2]) if match[2] else _HTTPS_PORT
    if not 0 < port < 65536:
        raise GitPortError(f"there is no port {port}", part="port")
    host = match[1].lower()
    if bracketed:
        literal = _literal(host)
        if not isinstance(literal, IPv6Address):
            raise _refused("has a host in brackets that is no IPv6 address", text, "host")
        return str(literal), port
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _refused("has a host that is no host name", text, "host")
    # curl takes 2130706433, 0x7f.1 and 127.1 for addresses; only the canonical form is one here.
    if _NUMERIC_LABEL.fullmatch(labels[-1]) and not isinstance(_literal(host), IPv4Address):
        raise _refused("has a host that is a number but no canonical IPv4 address", text, "host")
    return host, port


def _path(path: str, text: str) -> str:
    if path in {"", "/"}:
        raise _refused("names no repository behind the host", text, "path")
    if not _PATH.fullmatch(path) or _REFUSED_ESCAPE.search(path):
        raise _refused("has a path with a character or an escape that is not accepted", text, "path")
    if any(part in {".", ".."} for part in path.split("/")) or "//" in path:
        raise _refused("has a path with an empty, '.' or '..' part", text, "path")
    return path.rstrip("/")


def _check_allowed(url: GitUrl, hosts: Sequence[str]) -> None:
    allowed = {host.lower() for host in hosts}
    if allowed and url.host not in allowed and f"{url.host}:{url.port}" not in allowed:
        raise GitHostNotAllowedError(
            f"{shown(url.host)} is not among the hosts that are fetched from here ({', '.join(hosts)})",
            part="host",
            host=shown(url.host),
        )


def _refused(reason: str, text: str, part: str) -> GitUrlError:
    url_text = _without_credentials(text)
    return GitUrlError(f"the URL {reason}: {url_text}", part=part, url=url_text)


def _without_credentials(text: str) -> str:
    """The text for a message, which must not carry a password into logs."""
    return shown(_CREDENTIALS.sub("…@", text))


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _parsed(address: str) -> Address:
    """An address as a name server gives it; a link-local one may come with its interface."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return parsed if mapped is None else mapped


def _is_trusted(address: Address, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)


def _system_resolver(host: str, port: int) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise GitHostUnknownError(f"the host {shown(host)} can't be resolved", host=shown(host)) from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
