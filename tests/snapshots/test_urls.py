"""One judge for every URL: what it accepts is exactly https to a public host, or to one that the operator trusts."""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.settings import Settings
from services.snapshots.errors import (
    GitAddressNotPublicError,
    GitError,
    GitHostNotAllowedError,
    GitHostUnknownError,
    GitPortError,
    GitUrlError,
    GitUrlSchemeError,
    GitUrlUserInfoError,
)
from services.snapshots.urls import is_public, parse_git_url, resolve

SETTINGS = Settings()


def resolver_to(*addresses: str):
    return lambda _host, _port: addresses


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("https://github.com/lucidrains/vit-pytorch", "https://github.com/lucidrains/vit-pytorch"),
        ("https://GitHub.com/a/b.git/", "https://github.com/a/b.git"),
        ("HTTPS://github.com:443/a/b", "https://github.com/a/b"),
        ("https://git.example.org:8443/a/b", "https://git.example.org:8443/a/b"),
        ("https://dev.azure.com/org/My%20Project/_git/repo", "https://dev.azure.com/org/My%20Project/_git/repo"),
        ("https://git.sr.ht/~user/repo", "https://git.sr.ht/~user/repo"),
        ("https://xn--bcher-kva.example/a", "https://xn--bcher-kva.example/a"),
        ("https://[2606:4700:0:0:0:0:0:1111]/a", "https://[2606:4700::1111]/a"),
        ("https://9.9.9.9/a", "https://9.9.9.9/a"),
        ("https://forge_1.example/a", "https://forge_1.example/a"),
    ],
)
def test_ordinary_urls_are_accepted_in_one_form(text: str, form: str) -> None:
    assert str(parse_git_url(text, SETTINGS)) == form


@pytest.mark.parametrize(
    "text",
    [
        "http://github.com/a/b",
        "git://github.com/a/b",
        "ssh://git@github.com/a/b",
        "git@github.com:a/b",
        "github.com:a/b",
        "github.com/a/b",
        "file:///etc",
        "/etc",
        "../repo",
        "ext::sh%20-c%20id",
        "ext::https://github.com/a/b",
        "fd::3",
        "ftp://github.com/a",
        "-u",
        "--upload-pack=id",
        "--config=core.sshCommand=id",
        "https:/github.com/a/b",
        "https:github.com/a/b",
        "",
    ],
)
def test_anything_but_https_is_refused_as_such(text: str) -> None:
    with pytest.raises(GitUrlSchemeError):
        parse_git_url(text, SETTINGS)


@pytest.mark.parametrize(
    "text", ["https://user@host/a", "https://user:word@host/a", "https://@host/a", "https://a%40b@h/a"]
)
def test_credentials_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(GitUrlUserInfoError):
        parse_git_url(text, SETTINGS)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:s3cret@host/a",
        "http://user:s3cret@host/a",
        "ssh://s3cret@host/a",
        "https://user:s3cret @host/a",
        "https://user:s3cret@host/" + "a" * 3000,
        "https://user:s3@s3cret@host/a\\",
    ],
)
def test_a_refusal_never_repeats_a_password(text: str) -> None:
    with pytest.raises(GitUrlError) as caught:
        parse_git_url(text, SETTINGS)
    assert "s3cret" not in caught.value.message
    assert "s3cret" not in repr(caught.value.details)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("https://github.com/a b", "characters"),
        ("https://github.com/a\n", "characters"),
        ("https://github.com/a\0", "characters"),
        ("https://github.com/a\\b", "characters"),
        ("https://github.com\\@127.0.0.1/a", "characters"),
        ("https://b\u00fccher.example/a", "characters"),
        ("https://github.com/" + "a" * 2048, "length"),
        ("https://github.com/a?service=x", "query"),
        ("https://github.com/a#b", "query"),
        ("https://github.com?a/b", "query"),
        ("https:///a/b", "host"),
        ("https://:443/a", "host"),
        ("https://github.com:/a", "host"),
        ("https://github.com:22x/a", "host"),
        ("https://github.com:443:443/a", "host"),
        ("https://github.com./a", "host"),
        ("https://.github.com/a", "host"),
        ("https://-oProxyCommand=id/a", "host"),
        ("https://--upload-pack/a", "host"),
        ("https://git%68ub.com/a", "host"),
        ("https://127.1/a", "host"),
        ("https://2130706433/a", "host"),
        ("https://0x7f000001/a", "host"),
        ("https://0177.0.0.1/a", "host"),
        ("https://127.0.0.0x1/a", "host"),
        ("https://[::1/a", "host"),
        ("https://[fe80::1%25eth0]/a", "host"),
        ("https://[127.0.0.1]/a", "host"),
        ("https://" + "a." * 130 + "b/a", "host"),
        ("https://github.com", "path"),
        ("https://github.com/", "path"),
        ("https://github.com/a/../b", "path"),
        ("https://github.com/a//b", "path"),
        ("https://github.com/a/%2e%2e/b", "path"),
        ("https://github.com/a%2Fb", "path"),
        ("https://github.com/a%0d%0aHost:x", "path"),
        ("https://github.com/a%00", "path"),
        ("https://github.com/a%zz", "path"),
        ('https://github.com/a"b', "path"),
        ("https://github.com/a|b", "path"),
    ],
)
def test_what_git_or_curl_could_read_differently_is_refused_with_the_part(text: str, part: str) -> None:
    with pytest.raises(GitUrlError) as caught:
        parse_git_url(text, SETTINGS)
    assert caught.value.details["part"] == part


@given(st.text(max_size=60) | st.text("htps:/@.-[]%0a\\?#127x", max_size=40).map("https://".__add__))
@example("https://a/b")
def test_whatever_is_accepted_is_plain_and_accepted_again(text: str) -> None:
    try:
        url = parse_git_url(text, SETTINGS)
    except GitError:
        return
    assert str(url).startswith("https://")
    assert not set(str(url)) & set(" @\\?#\"'<>^`{|}")
    assert parse_git_url(str(url), SETTINGS) == url


def test_the_list_of_hosts_is_exclusive() -> None:
    settings = Settings(git_hosts=("GitHub.com", "git.example.org:8443"))
    assert parse_git_url("https://github.com/a/b", settings)
    assert parse_git_url("https://git.example.org:8443/a", settings)
    for text in ("https://gitlab.com/a/b", "https://git.example.org/a", "https://github.com.evil.example/a"):
        with pytest.raises(GitHostNotAllowedError, match=r"GitHub\.com"):
            parse_git_url(text, settings)


def test_another_port_needs_the_operator_s_word() -> None:
    url = parse_git_url("https://git.example.org:22/a", SETTINGS)
    with pytest.raises(GitPortError):
        resolve(url, SETTINGS, resolver_to("9.9.9.9"))
    assert resolve(url, Settings(git_hosts=("git.example.org:22",)), resolver_to("9.9.9.9"))
    assert resolve(url, Settings(git_trusted_networks=(IPv4Network("9.9.9.0/24"),)), resolver_to("9.9.9.9"))
    with pytest.raises(GitPortError):
        parse_git_url("https://git.example.org:65536/a", SETTINGS)


INTERNAL = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", INTERNAL)
def test_a_name_that_resolves_to_an_internal_address_is_refused(address: str) -> None:
    url = parse_git_url("https://forge.example/a/b", SETTINGS)
    for addresses in ((address,), ("9.9.9.9", address), (address, "2606:4700::1111")):
        with pytest.raises(GitAddressNotPublicError, match=r"forge\.example is at"):
            resolve(url, SETTINGS, resolver_to(*addresses))


@pytest.mark.parametrize("address", [address for address in INTERNAL if "%" not in address])
def test_an_internal_address_in_the_url_itself_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(GitAddressNotPublicError):
        resolve(parse_git_url(f"https://{host}/a", SETTINGS), SETTINGS)


def test_a_name_for_this_machine_is_refused_by_the_system_s_own_answer() -> None:
    with pytest.raises(GitAddressNotPublicError, match="localhost is at"):
        resolve(parse_git_url("https://localhost/a", SETTINGS), SETTINGS)


def test_a_name_without_an_address_is_unknown() -> None:
    url = parse_git_url("https://no-such-host.invalid/a", SETTINGS)
    with pytest.raises(GitHostUnknownError, match=r"no-such-host\.invalid"):
        resolve(url, SETTINGS)
    with pytest.raises(GitHostUnknownError):
        resolve(url, SETTINGS, resolver_to())


@pytest.mark.parametrize("address", ["1.1.1.1", "140.82.121.3", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001::1"])
def test_public_addresses_are_accepted(address: str) -> None:
    url = parse_git_url("https://forge.example/a", SETTINGS)
    resolved = resolve(url, SETTINGS, resolver_to(address))
    assert resolved.addresses == (ipaddress.ip_address(address),)
    assert not resolved.trusted


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_public(address: IPv4Address | IPv6Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


def test_an_own_forge_is_trusted_by_its_network_only() -> None:
    settings = Settings(git_trusted_networks=(IPv4Network("10.1.0.0/16"), IPv6Network("fd00:1::/32")))
    url = parse_git_url("https://forge.example/a", settings)
    assert resolve(url, settings, resolver_to("10.1.2.3", "fd00:1::5")).trusted
    assert resolve(url, settings, resolver_to("::ffff:10.1.2.3")).trusted
    assert not resolve(url, settings, resolver_to("10.1.2.3", "9.9.9.9")).trusted
    for outside in ("10.2.0.1", "fd00:2::5", "127.0.0.1"):
        with pytest.raises(GitAddressNotPublicError):
            resolve(url, settings, resolver_to("10.1.2.3", outside))


def test_the_system_is_asked_once_and_for_nothing_but_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [
            (socket.AF_INET, None, None, "", ("9.9.9.9", port)),
            (socket.AF_INET, None, None, "", ("9.9.9.9", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    resolved = resolve(parse_git_url("https://forge.example/a", SETTINGS), SETTINGS)
    assert [str(address) for address in resolved.addresses] == ["9.9.9.9"]
    assert asked == ["forge.example"]
