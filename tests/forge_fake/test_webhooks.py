"""Webhooks: signed, in GitHub's shape, logged, sent again, forged."""

from __future__ import annotations

import hashlib
import hmac
import json

from tests.forge_fake.application import LINES, App, Receiver, changed
from tools.fake_forge import FakeForge
from tools.fake_forge.deliveries import github_signature
from tools.fake_forge.distil import WEBHOOKS
from tools.fake_forge.examples import webhook_examples
from tools.fake_forge.world import PullRequest


def pull_request(forge: FakeForge) -> PullRequest:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    return forge.open_pull_request(repository, {"a.py": changed(3)})


def test_signatures_are_those_of_githubs_documentation() -> None:
    signature = github_signature("It's a Secret to Everybody", b"Hello, World!")
    assert signature == "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


def test_a_webhook_is_signed_over_its_raw_bytes(forge: FakeForge, receiver: Receiver) -> None:
    forge.webhook_secret = "sésame"
    pull = pull_request(forge)
    forge.edit(pull, title="Größe ≤ 3 \u202e")
    for got in receiver.got:
        digest = hmac.digest("sésame".encode(), got.body, hashlib.sha256).hex()
        assert got.headers["x-hub-signature-256"] == f"sha256={digest}"
        assert got.headers["content-type"] == "application/json"
    names = [got.headers["x-github-event"] for got in receiver.got]
    assert names == ["push", "check_suite", "pull_request", "pull_request"]
    assert len({got.headers["x-github-delivery"] for got in receiver.got}) == 4
    told = json.loads(receiver.got[-1].body)
    assert told["changes"] == {"title": {"from": "A change"}}
    assert told["installation"]["id"] == forge.installation("octo").id


def test_every_kind_of_webhook_is_as_github_describes_it(forge: FakeForge, app: App) -> None:
    pull = pull_request(forge)
    repository = pull.repository
    run = app.post("/repos/octo/demo/check-runs", {"name": "gradproof", "head_sha": pull.head_sha}).json()
    app.patch(f"/repos/octo/demo/check-runs/{run['id']}", {"conclusion": "success"})
    comment = app.post("/repos/octo/demo/issues/1/comments", {"body": "one"}).json()
    app.patch(f"/repos/octo/demo/issues/comments/{comment['id']}", {"body": "two"})
    thread = forge.start_thread(pull, "a.py", 3, "Why?")
    forge.resolve(thread)
    forge.unresolve(thread)
    forge.delete_comment(thread.comments[0])
    forge.delete_comment(forge.comments(pull)[0])
    (known,) = forge.check_runs(pull)
    forge.rerequest(known)
    forge.request_action(known, "fix")
    forge.rerequest_suite(repository, pull.head_sha)
    forge.push(pull, {})
    forge.force_push(pull, {"b.py": "x\n"})
    forge.convert_to_draft(pull)
    forge.mark_ready(pull)
    forge.edit(pull, title="Another", base="main")
    forge.close_pull_request(pull)
    forge.reopen_pull_request(pull)
    forge.merge(pull)
    forge.ping()
    forge.rename(repository, "renamed")
    other = forge.create_repository("octo/other")
    forge.select_repositories("octo", [other])
    forge.select_repositories("octo", [other, repository])
    forge.suspend("octo")
    forge.unsuspend("octo")
    forge.install("acme")
    forge.transfer(repository, "acme")
    forge.uninstall("acme")
    forge.settle()
    sent = {f"{each.event}.{each.action}" if each.action else each.event for each in forge.deliveries}
    assert sent == set(WEBHOOKS)
    assert forge.violations == []


def test_fakes_and_examples_have_the_same_keys(forge: FakeForge) -> None:
    """The examples are some years old: what they have, the fake has, but for what GitHub has dropped since."""
    pull = pull_request(forge)
    forge.push(pull, {"b.py": "x\n"})
    forge.comment(pull, "one")
    examples = webhook_examples()
    for name in ("push", "pull_request.opened", "pull_request.synchronize", "issue_comment.created"):
        event, _, action = name.partition(".")
        sent = next(each for each in forge.deliveries if (each.event, each.action or "") == (event, action))
        missing = set(_keys(examples[name])) - set(_keys(json.loads(sent.body)))
        # Nobody is assigned here, and nothing is planned.
        left_out = ("assignee", "milestone")
        assert [key for key in sorted(missing) if not any(part in key for part in left_out)] == [], name


def _keys(node: object, prefix: str = "") -> list[str]:
    if not isinstance(node, dict):
        return []
    return [key for name, value in node.items() for key in (f"{prefix}{name}", *_keys(value, f"{prefix}{name}."))]


def test_a_delivery_is_sent_again_under_its_guid(forge: FakeForge, app: App, receiver: Receiver) -> None:
    receiver.status = 500
    pull_request(forge)
    receiver.status = 202
    (failed,) = app.as_app("GET", "/app/hook/deliveries", params={"status": "failure", "per_page": 1}).json()
    assert (failed["event"], failed["status_code"], failed["redelivery"]) == ("pull_request", 500, False)
    detail = app.as_app("GET", f"/app/hook/deliveries/{failed['id']}").json()
    assert detail["request"]["payload"]["number"] == 1
    assert app.as_app("POST", f"/app/hook/deliveries/{failed['id']}/attempts").status_code == 202
    forge.settle()
    first, again = (got for got in receiver.got if got.headers["x-github-event"] == "pull_request")
    assert (first.headers["x-github-delivery"], first.body) == (again.headers["x-github-delivery"], again.body)
    (newest,) = app.as_app("GET", "/app/hook/deliveries", params={"status": "success"}).json()
    assert (newest["guid"], newest["redelivery"]) == (failed["guid"], True)
    assert newest["id"] != failed["id"]
    assert forge.violations == []


def test_deliveries_are_listed_in_pages_by_cursor(forge: FakeForge, app: App) -> None:
    pull = pull_request(forge)
    for _ in range(4):
        forge.comment(pull, "again")
    answer = app.as_app("GET", "/app/hook/deliveries", params={"per_page": 3})
    seen = answer.json()
    while "next" in answer.links:
        answer = app.as_app("GET", answer.links["next"]["url"])
        seen += answer.json()
    assert [each["id"] for each in seen] == [each.id for each in reversed(forge.deliveries)]
    assert len(seen) == 7
    assert app.as_app("GET", "/app/hook/deliveries", params={"cursor": "x"}).status_code == 400


def test_webhooks_are_forged_and_replayed(forge: FakeForge, receiver: Receiver) -> None:
    forge.send("push", {"ref": "refs/heads/main"}, secret="guessed")
    forge.send("push", b"{not json", guid="the-same")
    forge.send("push", {}, signature="sha256=é".encode("latin-1"))
    forge.send("push", {}, signature="")
    guessed, bytes_, accented, bare = receiver.got
    digest = hmac.digest(forge.webhook_secret.encode(), guessed.body, hashlib.sha256).hex()
    assert guessed.headers["x-hub-signature-256"] != f"sha256={digest}"
    assert (bytes_.body, bytes_.headers["x-github-delivery"]) == (b"{not json", "the-same")
    assert accented.headers["x-hub-signature-256"] == "sha256=é"
    assert "x-hub-signature-256" not in bare.headers
    forge.redeliver(forge.deliveries[1])
    assert receiver.got[-1].body == bytes_.body
    assert receiver.got[-1].headers["x-github-delivery"] == "the-same"


def test_nobody_there_is_logged(forge: FakeForge, receiver: Receiver) -> None:
    forge.webhook_url = "http://127.0.0.1:9/hook"
    pull_request(forge)
    assert {each.status for each in forge.deliveries} == {0}
    assert receiver.got == []


def test_a_receiver_may_ask_back_before_it_answers(forge: FakeForge, app: App, receiver: Receiver) -> None:
    forge.create_repository("octo/other")
    asked = []
    receiver.meanwhile = lambda: asked.append(app.get("/repos/octo/other").status_code)
    pull_request(forge)
    assert asked == [200, 200, 200]


def test_a_suspended_installation_gets_no_events(forge: FakeForge) -> None:
    pull = pull_request(forge)
    forge.suspend("octo")
    before = len(forge.deliveries)
    forge.push(pull, {"b.py": "x\n"})
    forge.comment(pull, "/gradproof rerun")
    assert len(forge.deliveries) == before
    assert forge.deliveries[-1].action == "suspend"


def test_only_events_subscribed_to_are_sent(forge: FakeForge) -> None:
    forge.events.remove("push")
    pull_request(forge)
    assert [each.event for each in forge.deliveries] == ["check_suite", "pull_request"]
