"""Server-sent events tell how an analysis goes, until it has ended."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import httpx

from api.events import stream
from api.presentation import analysis_out
from api.schemas import AnalysisOut
from services.analyses.service import AnalysisService
from services.database import Database
from services.settings import Settings
from tests.jobs.support import acting
from tests.recovery.support import eventually
from tests.reports.samples import check
from tests.serving import RunningServer, Workshop, token, upload

ANALYSES = "/api/v1/analyses"


T = TypeVar("T")


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: the browser tests leave a running event loop in the process's first one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(event, id, data) of a stream."""
    event: dict[str, str] = {}
    for line in lines:
        if line:
            key, _, value = line.partition(": ")
            event[key] = value
        elif "data" in event:
            yield event["event"], event["id"], json.loads(event["data"])
            event = {}


def test_every_change_is_told_and_the_stream_ends_with_the_analysis(
    client: httpx.Client, server: RunningServer, workshop: Workshop
) -> None:
    links = client.post(ANALYSES, files=upload()).json()["links"]
    seen: list[tuple[str, str, dict[str, Any]]] = []
    with httpx.stream("GET", server.url + links["events"], headers=client.headers, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        incoming = events(response.iter_lines())
        seen.append(next(incoming))
        workshop.read()
        seen.append(next(incoming))
        workshop.probe(check())
        seen += list(incoming)
    assert [event for event, _, _ in seen[:2]] == ["progress", "progress"]
    assert seen[0][2]["status"] == "queued"
    assert seen[-1][0] == "finished"
    assert seen[-1][2] == client.get(links["self"]).json()
    assert len({identity for _, identity, _ in seen}) == len(seen)


def test_a_stream_of_an_ended_analysis_says_so_and_ends(client: httpx.Client) -> None:
    links = client.post(ANALYSES, files=upload()).json()["links"]
    client.post(f"{links['self']}/cancel")
    first = list(events(client.get(links["events"]).iter_lines()))
    assert [event for event, _, _ in first] == ["finished"]
    again = client.get(links["events"], headers={"Last-Event-ID": first[0][1]})
    assert [event for event, _, _ in events(again.iter_lines())] == ["finished"]


def test_a_client_that_goes_away_leaves_the_server_free(client: httpx.Client, server: RunningServer) -> None:
    links = client.post(ANALYSES, files=upload()).json()["links"]
    for _ in range(45):  # there are 40 threads for requests
        with httpx.stream("GET", server.url + links["events"], headers=client.headers, timeout=30) as response:
            next(events(response.iter_lines()))
    assert client.get("/healthz").status_code == 200
    assert threading.active_count() < 100


def test_a_stream_taken_up_again_repeats_nothing_and_silence_is_broken_by_comments(
    embedded_settings: Settings,
) -> None:
    database = Database.open(embedded_settings, lambda _queue: None)
    service = acting(AnalysisService(database, embedded_settings))
    from services.analyses.model import GitSource  # noqa: PLC0415 - used here only

    submitted = service.submit(GitSource("https://github.com/example/vision"))
    rounds = 0

    async def look() -> tuple[AnalysisOut, bool]:
        nonlocal rounds
        rounds += 1
        if rounds == 6:
            service.cancel(submitted.analysis_id)
        view = service.get(submitted.analysis_id)
        return analysis_out(view), view.ended

    async def collect(last: str | None) -> list[str]:
        return [part async for part in stream(look, last_event_id=last, life_s=60, poll_s=0.001, heartbeat_s=0.002)]

    async def first_event() -> str:
        async for part in stream(look, last_event_id=None, life_s=60, poll_s=0.001):
            if part.startswith("event: progress"):
                return part.split("id: ")[1].split("\n")[0]
        raise AssertionError("the stream ended")

    known = _run(first_event())
    parts = _run(collect(known))
    database.close()
    assert parts[0].startswith("retry: ")
    assert ": still here\n\n" in parts
    assert [part.split("\n")[0] for part in parts if part.startswith("event")] == ["event: finished"]


@contextmanager
def opened(client: httpx.Client, link: str, headers: dict[str, str] | None = None) -> Iterator[None]:
    """A stream that has begun, until the block ends."""
    with client.stream("GET", link, headers=headers) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("retry")
        yield


def test_streams_of_a_caller_and_of_all_are_bounded_and_a_place_is_free_when_its_client_is_gone(
    embedded_settings: Settings,
) -> None:
    settings = embedded_settings.model_copy(update={"streams_of_caller": 2, "streams": 3})
    mine, other = ({"Authorization": f"Bearer {token(settings)}"} for _ in range(2))
    with RunningServer(settings) as server, httpx.Client(base_url=server.url, headers=mine, timeout=30) as client:
        link = client.post(ANALYSES, files=upload()).json()["links"]["events"]

        def refused(headers: dict[str, str]) -> str | None:
            with client.stream("GET", link, headers=headers) as response:
                if response.status_code == 200:
                    return None
                assert response.status_code == 429
                assert int(response.headers["retry-after"]) > 0
                return str(json.loads(response.read())["details"]["limit"])

        with ExitStack() as held:
            for _ in range(2):
                held.enter_context(opened(client, link))
            assert refused(mine) == "streams_of_caller"
            held.enter_context(opened(client, link, other))
            assert refused(other) == "streams"
        eventually(lambda: server.app.state.streams.open == 0, "the places are free")
        assert refused(mine) is None


def test_a_stream_ends_after_a_while_and_is_taken_up_again_without_a_loss(embedded_settings: Settings) -> None:
    settings = embedded_settings.model_copy(update={"stream_life": timedelta(milliseconds=1)})
    headers = {"Authorization": f"Bearer {token(settings)}"}
    with RunningServer(settings) as server, httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        links = client.post(ANALYSES, files=upload()).json()["links"]
        first = client.get(links["events"]).text
        ((event, identity, _),) = events(iter(first.splitlines()))
        assert event == "progress"
        assert first.endswith(": take this stream up again\nretry: 2000\n\n")
        again = client.get(links["events"], headers={"Last-Event-ID": identity}).text
        assert list(events(iter(again.splitlines()))) == []
        client.post(f"{links['self']}/cancel")
        last = client.get(links["events"], headers={"Last-Event-ID": identity}).text
        assert [event for event, _, _ in events(iter(last.splitlines()))] == ["finished"]
        eventually(lambda: server.app.state.streams.open == 0, "the places are free")


def test_streams_that_are_open_hold_no_thread(embedded_settings: Settings) -> None:
    headers = {"Authorization": f"Bearer {token(embedded_settings)}"}
    settings = embedded_settings.model_copy(update={"streams_of_caller": 60})
    with RunningServer(settings) as server, httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        link = client.post(ANALYSES, files=upload()).json()["links"]["events"]
        with ExitStack() as held:
            for _ in range(60):  # there are 40 threads for requests
                held.enter_context(opened(client, link))
            assert client.get(ANALYSES).status_code == 200
