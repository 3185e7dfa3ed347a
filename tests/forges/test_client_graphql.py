"""Conversations at lines come in pages, and with answers that REST doesn't give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from services.forges.errors import ForgeError, ForgeNotFoundError, RateLimitedError, UnreadableAnswerError
from services.forges.github import GithubApp, GithubClient, GithubSettings
from tests.forges.scripted import Heard, Said, ScriptedForge, StoodClock

PEM = RSAKey.generate_key(2048).as_pem(private=True).decode()
MOMENT = "2026-11-30T12:00:00Z"


def comment(number: int, author: dict[str, str] | None) -> dict[str, Any]:
    return {
        "id": f"PRRC_{number}",
        "databaseId": number,
        "body": "x",
        "url": "",
        "createdAt": MOMENT,
        "updatedAt": MOMENT,
        "author": author,
    }


def thread(number: int, comments: list[dict[str, Any] | None], total: int | None = None) -> dict[str, Any]:
    return {
        "id": f"PRRT_{number}",
        "isResolved": False,
        "isOutdated": False,
        "path": "a.py",
        "line": None,
        "comments": {"totalCount": len(comments) if total is None else total, "nodes": comments},
    }


def page(threads: list[Any], cursor: str | None) -> dict[str, Any]:
    told = {"pageInfo": {"hasNextPage": cursor is not None, "endCursor": cursor}, "nodes": threads}
    return {"data": {"repository": {"pullRequest": {"reviewThreads": told}}}}


OURS = {"__typename": "Bot", "login": "gradproof"}
FORGED = {"__typename": "User", "login": "gradproof[bot]"}


class Github:
    """Answers GraphQL with `answers`, and whatever else a client needs."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def __call__(self, heard: Heard) -> Said:
        if heard.path.endswith("/access_tokens"):
            return Said(201, {"token": "ghs_x", "expires_at": "2026-11-30T13:00:00Z"})
        if heard.path == "/app":
            return Said(body={"id": 7, "slug": "gradproof"})
        self.asked.append(heard.json())
        return Said(body=self.answers.pop(0))


@pytest.fixture
def clock() -> StoodClock:
    return StoodClock()


@pytest.fixture
def speak(clock: StoodClock) -> Iterator[Any]:
    opened: list[Any] = []

    def client(github: Github) -> GithubClient:
        forge = ScriptedForge(script=github)
        forge.__enter__()
        ours = GithubApp(GithubSettings("7", PEM, api_url=forge.url), clock).client("1")
        opened.append((forge, ours))
        return ours

    yield client
    for forge, ours in opened:
        ours.close()
        forge.__exit__(None, None, None)


def test_all_pages_are_read(speak: Any) -> None:
    github = Github(page([thread(1, []), None], "c1"), page([], "c2"), page([thread(2, [])], None))
    threads = speak(github).list_threads("o/r", 7)
    assert [each.identifier for each in threads] == ["PRRT_1", "PRRT_2"]
    assert [asked["variables"]["after"] for asked in github.asked] == [None, "c1", "c2"]


def test_who_wrote_is_told_by_kind_and_name(speak: Any) -> None:
    github = Github(
        page(
            [
                thread(1, [comment(1, OURS)]),
                thread(2, [comment(2, OURS), comment(3, FORGED)]),
                thread(3, [comment(4, None), None]),
                thread(4, [comment(5, {"__typename": "Bot", "login": "gradproof[bot]"})], total=80),
            ],
            None,
        )
    )
    threads = speak(github).list_threads("o/r", 7)
    assert [(each.by_us, each.has_reply) for each in threads] == [
        (True, False),
        (True, True),
        (False, True),
        (True, True),  # what can't be seen may be a reply
    ]
    assert threads[2].comments[0].author.login == "ghost"


@pytest.mark.parametrize(
    "answer",
    [
        {"data": None},
        {"data": {}},
        {"data": {"repository": {"pullRequest": {"reviewThreads": {"nodes": None}}}}},
        [],
        {"errors": "?"},
        {"data": {"repository": 1}},
    ],
)
def test_an_answer_of_another_shape_is_said_to_be_one(speak: Any, answer: object) -> None:
    with pytest.raises(UnreadableAnswerError):
        speak(Github(answer)).list_threads("o/r", 7)


@pytest.mark.parametrize("answer", [{"data": {"repository": None}}, {"data": {"repository": {"pullRequest": None}}}])
def test_a_pull_request_that_is_not_there(speak: Any, answer: object) -> None:
    with pytest.raises(ForgeNotFoundError):
        speak(Github(answer)).list_threads("o/r", 7)


def test_a_limit_of_graphql_counts_for_everything(speak: Any, clock: StoodClock) -> None:
    github = Github({"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]})
    client = speak(github)
    with pytest.raises(RateLimitedError):
        client.list_threads("o/r", 7)
    with pytest.raises(RateLimitedError):
        client.pull_request("o/r", 7)
    assert len(github.asked) == 1


def test_a_mutation_that_fails_is_told(speak: Any) -> None:
    github = Github({"data": {"resolveReviewThread": None}, "errors": [{"type": "NOT_FOUND", "message": "?"}]})
    with pytest.raises(ForgeError):
        speak(github).resolve_thread("o/r", 7, "PRRT_1")
