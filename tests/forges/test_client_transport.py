"""Requests are bounded, stay on one host, and are repeated only where that is safe."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from services.forges.errors import (
    ForgeAuthenticationError,
    ForgeUnavailableError,
    RateLimitedError,
    UnreadableAnswerError,
)
from services.forges.github.refusals import GithubDialect
from services.forges.manners import Manners
from services.forges.transport import Answer, KeptAnswers, Transport, TransportOptions
from tests.forges.scripted import START, Heard, Said, ScriptedForge, StoodClock

TOKEN = "ghs_1234_abc.def-ghi_jkl"
GONE = Said(502, {"message": "Bad Gateway"})


class FixedCredentials:
    """A token that can be renewed as often as `renewals` says; each renewal makes it another one."""

    def __init__(self, renewals: int = 0) -> None:
        self.renewals = renewals
        self.number = 0

    def header(self) -> str:
        return f"Bearer {TOKEN}{self.number}"

    def renew(self) -> bool:
        if self.renewals == 0:
            return False
        self.renewals -= 1
        self.number += 1
        return True


Open = Callable[..., tuple[ScriptedForge, Transport]]


@pytest.fixture
def clock() -> StoodClock:
    return StoodClock()


@pytest.fixture
def open_forge(clock: StoodClock) -> Iterator[Open]:
    """Starts a scripted forge and a transport to it."""
    with ExitStack() as stack:

        def opened(
            *answers: Said,
            credentials: FixedCredentials | None = None,
            script: Callable[[Heard], Said] | None = None,
            **options: object,
        ) -> tuple[ScriptedForge, Transport]:
            forge = stack.enter_context(ScriptedForge(*answers, script=script))
            transport = Transport(
                replace(TransportOptions(forge.url), **options),  # type: ignore[arg-type]
                credentials=credentials or FixedCredentials(),
                dialect=GithubDialect(),
                clock=clock,
                manners=Manners(clock),
            )
            stack.callback(transport.close)
            return forge, transport

        yield opened


def test_a_read_is_repeated_when_the_forge_fails(open_forge: Open, clock: StoodClock) -> None:
    forge, transport = open_forge(GONE, Said(body={"a": 1}, cut=True), Said(body={"a": 1}))
    assert transport.get("/x").data() == {"a": 1}
    assert len(forge.heard) == 3
    assert clock.slept == [1.0, 2.0]


def test_a_read_is_given_up_after_three_tries(open_forge: Open) -> None:
    forge, transport = open_forge(GONE)
    with pytest.raises(ForgeUnavailableError, match="502: Bad Gateway") as caught:
        transport.get("/x")
    assert not caught.value.outcome_unknown
    assert caught.value.retry
    assert len(forge.heard) == 3


@pytest.mark.parametrize("failure", [GONE, Said(500), Said(body={}, cut=True), Said(silent=True)])
def test_a_write_is_sent_once_and_its_outcome_is_unknown(open_forge: Open, failure: Said) -> None:
    forge, transport = open_forge(failure)
    with pytest.raises(ForgeUnavailableError) as caught:
        transport.write("POST", "/x", {})
    assert caught.value.outcome_unknown
    assert len(forge.heard) == 1


def test_a_write_that_could_not_be_sent_was_not_carried_out(clock: StoodClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    transport = Transport(
        TransportOptions(f"http://127.0.0.1:{port}"),
        credentials=FixedCredentials(),
        dialect=GithubDialect(),
        clock=clock,
        manners=Manners(clock),
    )
    with pytest.raises(ForgeUnavailableError) as caught:
        transport.write("POST", "/x", {})
    assert not caught.value.outcome_unknown


def test_a_forge_that_does_not_answer_in_time_is_not_waited_for(open_forge: Open) -> None:
    _, transport = open_forge(Said(body={}), deadline_s=-1.0)
    with pytest.raises(ForgeUnavailableError, match="takes more than") as caught:
        transport.write("POST", "/x", {})
    assert caught.value.outcome_unknown


def test_what_became_of_a_write_that_was_not_answered_is_unknown(open_forge: Open) -> None:
    over = threading.Event()

    def script(_heard: Heard) -> Said:
        over.wait()
        return Said(body={})

    forge, transport = open_forge(script=script, timeout=httpx.Timeout(5.0, read=0.05))
    with pytest.raises(ForgeUnavailableError, match="ReadTimeout") as caught:
        transport.write("POST", "/x", {})
    assert caught.value.outcome_unknown
    with pytest.raises(ForgeUnavailableError) as caught:
        transport.get("/x")
    assert not caught.value.outcome_unknown
    assert [heard.method for heard in forge.heard] == ["POST", "GET", "GET", "GET"]
    over.set()


def test_there_is_a_second_between_writes_and_none_before_reads(open_forge: Open, clock: StoodClock) -> None:
    _, transport = open_forge(Said(body={}))
    transport.write("POST", "/x", {})
    transport.get("/x")
    assert clock.slept == []
    transport.write("POST", "/x", {})
    assert clock.slept == [1.0]
    clock.time += timedelta(seconds=0.75)
    transport.write("POST", "/x", {})
    assert clock.slept == [1.0, 0.25]


def test_a_clock_that_was_put_back_makes_nobody_wait_longer(open_forge: Open, clock: StoodClock) -> None:
    _, transport = open_forge(Said(body={}))
    transport.write("POST", "/x", {})
    clock.time -= timedelta(hours=3)
    transport.write("POST", "/x", {})
    assert clock.slept == [1.0]


def test_nothing_is_sent_while_a_limit_lasts(open_forge: Open, clock: StoodClock) -> None:
    forge, transport = open_forge(Said(429, {"message": "slow down"}, {"Retry-After": "30"}), Said(body={}))
    with pytest.raises(RateLimitedError) as caught:
        transport.get("/x")
    assert caught.value.retry_at == START + timedelta(seconds=31)
    for _ in range(3):
        with pytest.raises(RateLimitedError) as again:
            transport.write("POST", "/x", {})
        assert again.value.retry_at == caught.value.retry_at
    assert len(forge.heard) == 1
    clock.time = caught.value.retry_at
    transport.get("/x")
    assert len(forge.heard) == 2


def test_without_a_retry_after_patience_doubles_until_it_works_again(open_forge: Open, clock: StoodClock) -> None:
    limited = Said(403, {"message": "You have exceeded a secondary rate limit."})
    _, transport = open_forge(limited, limited, limited, Said(body={}), limited)
    waits = []
    for _ in range(4):
        try:
            transport.get("/x")
        except RateLimitedError as error:
            waits.append((error.retry_at - clock.now()).total_seconds())
            clock.time = error.retry_at
    assert waits == [60, 120, 240]
    with pytest.raises(RateLimitedError) as caught:
        transport.get("/x")
    assert (caught.value.retry_at - clock.now()).total_seconds() == 60


def test_a_token_that_is_not_taken_is_renewed_once(open_forge: Open) -> None:
    refused = Said(401, {"message": "Bad credentials"})
    forge, transport = open_forge(refused, Said(body={"a": 1}), credentials=FixedCredentials(renewals=9))
    assert transport.write("POST", "/x", {"b": 2}).data() == {"a": 1}
    assert [heard.headers["authorization"][-1] for heard in forge.heard] == ["0", "1"]
    assert forge.heard[0].body == forge.heard[1].body

    forge, transport = open_forge(refused, credentials=FixedCredentials(renewals=9))
    with pytest.raises(ForgeAuthenticationError):
        transport.get("/x")
    assert len(forge.heard) == 2


def test_an_answer_that_has_not_changed_is_not_sent_again(open_forge: Open) -> None:
    def script(heard: Heard) -> Said:
        if heard.headers.get("if-none-match") == '"one"':
            return Said(304, b"")
        return Said(body={"a": 1}, headers={"ETag": '"one"'})

    forge, transport = open_forge(script=script)
    assert transport.get("/x", {"q": "1"}).data() == {"a": 1}
    assert transport.get("/x", {"q": "1"}).data() == {"a": 1}
    assert transport.get("/x", {"q": "2"}).data() == {"a": 1}
    assert [heard.headers.get("if-none-match") for heard in forge.heard] == [None, '"one"', None]


def test_kept_answers_are_bounded(open_forge: Open) -> None:
    _, transport = open_forge(script=lambda heard: Said(body="x" * 100_000, headers={"ETag": f'"{heard.path}"'}))
    kept = KeptAnswers()
    for number in range(20):
        kept.keep(str(number), transport.get(f"/{number}"))
    there = [number for number in range(20) if kept.get(str(number)) is not None]
    assert there == list(range(10, 20))
    kept.keep("large", Answer(200, httpx.Headers({"etag": "x"}), b"x" * 300_000))
    assert kept.get("large") is None


def test_pages_follow_the_links_of_the_forge(open_forge: Open) -> None:
    def script(heard: Heard) -> Said:
        if "cursor" in heard.path:
            return Said(body=[3])
        return Said(
            body=[1, 2], headers={"Link": f'<{forge.url}/elsewhere?cursor=z>; rel="next", <{forge.url}/>; rel="last"'}
        )

    forge, transport = open_forge(script=script)
    assert [page.data() for page in transport.pages("/x", {"q": "ä"})] == [[1, 2], [3]]
    assert [heard.path for heard in forge.heard] == ["/x?per_page=100&q=%C3%A4", "/elsewhere?cursor=z"]


@pytest.mark.parametrize(
    "link",
    [
        "http://evil.example/next",
        "https://127.0.0.1/next",
        "//evil.example/next",
        "http://user:word@{host}/next",
        "http://{host}@evil.example/next",
        "file:///etc/passwd",
    ],
)
@pytest.mark.parametrize("way", ["page", "redirect"])
def test_nothing_leads_to_another_host(open_forge: Open, link: str, way: str) -> None:
    def script(_heard: Heard) -> Said:
        target = link.format(host=forge.url.removeprefix("http://"))
        if way == "redirect":
            return Said(307, {}, {"Location": target})
        return Said(body=[], headers={"Link": f'<{target}>; rel="next"'})

    forge, transport = open_forge(script=script)
    with pytest.raises(UnreadableAnswerError, match="another host") as caught:
        list(transport.pages("/x"))
    assert "word" not in str(caught.value)
    assert len(forge.heard) == 1


def test_a_link_that_is_no_address_leads_nowhere(open_forge: Open) -> None:
    _, transport = open_forge(Said(body=[], headers={"Link": '<http://[::1>; rel="next"'}))
    with pytest.raises(UnreadableAnswerError, match="another host"):
        list(transport.pages("/x"))


def test_a_redirect_on_the_same_host_is_followed_with_the_same_method(open_forge: Open) -> None:
    def script(heard: Heard) -> Said:
        if heard.path == "/old":
            return Said(301, {}, {"Location": "/new"})
        return Said(body=[heard.method, heard.body.decode()])

    _, transport = open_forge(script=script)
    assert transport.write("PATCH", "/old", {"a": 1}).data() == ["PATCH", '{"a":1}']


def test_circles_end(open_forge: Open) -> None:
    forge, transport = open_forge(Said(302, {}, {"Location": "/x"}))
    with pytest.raises(UnreadableAnswerError, match="circles"):
        transport.get("/x")
    assert len(forge.heard) == 4

    forge, transport = open_forge(script=lambda heard: Said(body=[], headers={"Link": f'<{heard.path}>; rel="next"'}))
    with pytest.raises(UnreadableAnswerError, match="its own next"):
        list(transport.pages("/x"))

    forge, transport = open_forge(
        script=lambda _: Said(body=[], headers={"Link": f'</x?n={len(forge.heard)}>; rel="next"'})
    )
    with pytest.raises(UnreadableAnswerError, match="more than 5 pages"):
        list(transport.pages("/x", most=5))


@pytest.mark.parametrize("packed", [False, True])
def test_an_endless_answer_is_cut(open_forge: Open, packed: bool) -> None:
    content = b"0" * 2_000_000
    headers = {"Content-Encoding": "gzip"} if packed else {}
    said = Said(body=gzip.compress(content) if packed else content, headers=headers)
    forge, transport = open_forge(said, largest_answer=1_000_000)
    with pytest.raises(UnreadableAnswerError, match="1,000,000 bytes"):
        transport.get("/x")
    assert len(forge.heard) == 1


@pytest.mark.parametrize("content", [b"<html>", b"", b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_no_json_is_said_to_be_none(open_forge: Open, content: bytes) -> None:
    _, transport = open_forge(Said(body=content))
    with pytest.raises(UnreadableAnswerError, match="not JSON") as caught:
        transport.get("/x").data()
    assert not caught.value.outcome_unknown
    with pytest.raises(UnreadableAnswerError) as caught:
        transport.write("POST", "/x").data()
    assert caught.value.outcome_unknown


def test_no_error_shows_a_token(open_forge: Open) -> None:
    said = {"message": f"Bad credentials: {TOKEN}0, Bearer abcdefgh, glpat-abcdefghijklmnopqrst"}
    for status in (401, 403, 404, 422, 500):
        _, transport = open_forge(Said(status, said))
        with pytest.raises(Exception, match=r"removed") as caught:
            transport.write("POST", "/x", {})
        shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caught.value.__context__!r}"
        assert "ghs_" not in shown
        assert "glpat" not in shown


def test_a_cut_connection_leaves_no_request_in_the_error(open_forge: Open) -> None:
    _, transport = open_forge(Said(silent=True))
    with pytest.raises(ForgeUnavailableError) as caught:
        transport.write("POST", "/x", {})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert not isinstance(caught.value, httpx.HTTPError)
