"""Outgoing hooks over real TLS: what is told, how it is signed, what happens when nobody listens, where it may go."""

from __future__ import annotations

import base64
import hmac
import json
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import trustme
from sqlalchemy import select

from services.accounts.access import SYSTEM
from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow, AnalysisStatus, Purpose
from services.analyses.occasion import Occasion
from services.analyses.settlement import end_analysis
from services.database import Database
from services.database.base import utc_now
from services.jobs.model import CONTROL_QUEUE
from services.projects import hook_sending
from services.projects.errors import HookLimitError, HookNotFoundError, HookUrlError
from services.projects.hook_sending import WAITS, send_due
from services.projects.hooks import MOST_HOOKS, Delivery, Hook, HookService
from services.projects.models import HookDeliveryRow
from services.projects.service import ProjectService
from services.settings import Settings
from tests.jobs.support import SNAPSHOT, Bench
from worker.runner import Runner

HOST = "hooks.example"


@dataclass
class Listener:
    """An https server: what it was told, and what it answers."""

    port: int
    authority: Path
    answer: int = 204
    told: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    stalled: bool = False
    heard: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/hooks/vision", host: str = "127.0.0.1") -> str:
        return f"https://{host}:{self.port}{path}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    authority = trustme.CA()
    file = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", HOST).configure_cert(context)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.told.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            heard.heard.set()
            if heard.stalled:
                # A byte now and then: no single read ever takes too long.
                while not heard.stopping.wait(0.1):
                    self.wfile.write(b"X")
                    self.wfile.flush()
                return
            self.send_response(heard.answer)
            self.send_header("Location", "https://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    heard = Listener(server.server_address[1], file)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield heard
    heard.stopping.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def listener(running: Listener) -> Listener:
    running.answer, running.stalled = 204, False
    running.told.clear()
    running.heard.clear()
    return running


@pytest.fixture
def trusting(service_settings: Settings, listener: Listener) -> Settings:
    """The network of the test is one of the operator's own."""
    return service_settings.model_copy(
        update={"git_trusted_networks": (IPv4Network("127.0.0.0/8"),), "git_ca_file": listener.authority}
    )


@pytest.fixture
def hooks(database: Database, trusting: Settings, projects: ProjectService) -> HookService:
    projects.create(SYSTEM, "vision")
    return HookService(database, trusting)


@pytest.fixture
def bench(database: Database, trusting: Settings) -> Bench:
    return Bench(database, trusting)


def finished(bench: Bench, **more: object) -> str:
    identity: str = bench.analyses.submit(
        SNAPSHOT, AnalysisOptions(static_only=True), project="vision", **more
    ).analysis_id
    bench.analyses.cancel(identity)
    return identity


def only(hooks: HookService, hook: Hook) -> Delivery:
    (delivery,) = hooks.deliveries(SYSTEM, "vision", hook.id).items
    return delivery


def make_due(database: Database) -> None:
    with database.unit_of_work() as uow:
        for row in uow.session.scalars(select(HookDeliveryRow).where(HookDeliveryRow.due_at.is_not(None))):
            assert row.due_at is not None
            row.due_at -= timedelta(days=1)


def test_the_end_of_an_analysis_is_told_and_signed(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    assert send_due(database, trusting) == 0
    identity = finished(bench)
    assert send_due(database, trusting) == 1
    assert send_due(database, trusting) == 0
    ((path, headers, body),) = listener.told
    assert path == "/hooks/vision"
    told = json.loads(body)
    assert (told["type"], told["data"]["analysis"], told["data"]["status"]) == (
        "analysis.finished",
        identity,
        "cancelled",
    )
    assert told["data"]["project"] == "vision"
    assert told["data"]["links"]["page"] == f"http://127.0.0.1:8000/analyses/{identity}"
    assert told["data"]["gate"]["passed"] is False
    assert set(told["data"]["totals"]) >= {"findings", "checks", "targets"}
    assert len(body) < 4096
    delivery = only(hooks, hook)
    assert (delivery.status, delivery.reason, delivery.attempts, delivery.next_at) == (204, None, 1, None)
    assert delivery.delivered_at is not None
    # As the verifiers of Standard Webhooks do it.
    assert headers["webhook-id"] == delivery.id
    key = base64.b64decode(hook.secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["host"] == f"127.0.0.1:{listener.port}"


def test_what_is_rolled_back_is_not_told(
    hooks: HookService, bench: Bench, listener: Listener, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    identity = bench.analyses.submit(SNAPSHOT, project="vision").analysis_id
    with pytest.raises(RuntimeError):
        _end_and_fail(database, identity)
    assert hooks.deliveries(SYSTEM, "vision", hook.id).items == ()


def _end_and_fail(database: Database, identity: str) -> None:
    with database.unit_of_work() as uow:
        end_analysis(uow.session, uow.session.get_one(AnalysisRow, identity), AnalysisStatus.FAILED, "no source")
        raise RuntimeError


def test_of_what_a_change_is_compared_with_nobody_is_told(hooks: HookService, bench: Bench, listener: Listener) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    finished(bench, occasion=Occasion(purpose=Purpose.BASE))
    assert hooks.deliveries(SYSTEM, "vision", hook.id).items == ()
    finished(bench, occasion=Occasion(purpose=Purpose.PROPOSAL))
    assert len(hooks.deliveries(SYSTEM, "vision", hook.id).items) == 1


def test_a_failure_is_repeated_with_growing_waits_and_given_up(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    finished(bench)
    listener.answer = 500
    for attempt, wait in enumerate(WAITS, 1):
        began = utc_now()
        assert send_due(database, trusting) == 1
        delivery = only(hooks, hook)
        assert (delivery.attempts, delivery.reason) == (attempt, "answered 500")
        assert delivery.next_at is not None
        assert began + wait <= delivery.next_at <= utc_now() + wait
        assert send_due(database, trusting) == 0
        make_due(database)
    assert sum(WAITS, timedelta()) < timedelta(days=1)
    assert list(WAITS) == sorted(WAITS)
    assert send_due(database, trusting) == 1
    delivery = only(hooks, hook)
    assert (delivery.next_at, delivery.delivered_at) == (None, None)
    assert delivery.reason == f"given up after {len(WAITS) + 1} attempts: answered 500"
    assert len({headers["webhook-id"] for _, headers, _ in listener.told}) == 1
    listener.answer = 200
    hooks.redeliver(SYSTEM, "vision", hook.id, delivery.id)
    assert send_due(database, trusting) == 1
    assert only(hooks, hook).delivered_at is not None
    with pytest.raises(HookNotFoundError):
        hooks.redeliver(SYSTEM, "vision", hook.id, "another")


def test_no_redirect_is_followed(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    finished(bench)
    for listener.answer, reason in ((302, "redirects are not followed"), (404, "answered 404")):
        listener.told.clear()
        send_due(database, trusting)
        assert reason in str(only(hooks, hook).reason)
        assert len(listener.told) == 1
        make_due(database)


def test_an_address_that_is_gone_disables_its_hook(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    listener.answer = 410
    finished(bench)
    send_due(database, trusting)
    assert "disabled" in str(only(hooks, hook).reason)
    assert hooks.list(SYSTEM, "vision")[0].disabled_at is not None
    finished(bench)
    assert len(hooks.deliveries(SYSTEM, "vision", hook.id).items) == 1
    hooks.set_disabled(SYSTEM, "vision", hook.id, disabled=False)
    finished(bench)
    assert len(hooks.deliveries(SYSTEM, "vision", hook.id).items) == 2


def test_a_hook_that_was_switched_off_is_told_nothing_that_waited(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    finished(bench)
    hooks.set_disabled(SYSTEM, "vision", hook.id, disabled=True)
    send_due(database, trusting)
    assert listener.told == []
    assert only(hooks, hook).reason == "the hook was switched off"
    hooks.set_disabled(SYSTEM, "vision", hook.id, disabled=False)
    assert send_due(database, trusting) == 0


def test_an_answer_that_trickles_is_cut_off(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url())
    listener.stalled = True
    finished(bench)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hook_sending, "_DEADLINE_S", 0.5)
        send_due(database, trusting)
    assert "no answer within" in str(only(hooks, hook).reason)


def test_what_is_called_is_the_address_that_was_judged(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url(host=HOST))
    asked: list[tuple[str, int]] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"]

    finished(bench)
    assert send_due(database, trusting, resolver=resolver) == 1
    assert only(hooks, hook).reason is None
    assert asked == [(HOST, listener.port)]
    assert listener.told[0][1]["host"] == f"{HOST}:{listener.port}"


def _at(addresses: list[str], _host: str, _port: int) -> list[str]:
    return addresses


def test_a_name_that_leads_inside_is_not_called(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url(host=HOST))
    finished(bench)
    for addresses in (["10.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1"], ["::ffff:10.0.0.1"]):
        assert send_due(database, trusting, resolver=partial(_at, addresses)) == 1
        assert "not on the public Internet" in str(only(hooks, hook).reason)
        make_due(database)
    untrusting = trusting.model_copy(update={"git_trusted_networks": ()})
    assert send_due(database, untrusting, resolver=lambda _host, _port: ["127.0.0.1"]) == 1
    assert "not on the public Internet" in str(only(hooks, hook).reason)
    assert listener.told == []


def test_a_certificate_of_somebody_else_is_not_spoken_to(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hook = hooks.create(SYSTEM, "vision", listener.url(host="another.example"))
    finished(bench)
    send_due(database, trusting, resolver=lambda _host, _port: ["127.0.0.1"])
    assert "certificate" in str(only(hooks, hook).reason).lower()
    assert listener.told == []


REFUSED = [
    "http://hooks.example/x",
    "https://hooks.example",
    "https://hooks.example/",
    "https://[::1/x",
    "x",
    "",
    "https://user:secret@hooks.example/x",
    "https://10.0.0.1/x",
    "https://[::1]/x",
    "https://2130706433/x",
    "https://hooks.example/x?y=1",
    "https://hooks.example/../x",
    "file:///etc/passwd",
    "https://hooks.example:99999/x",
]


def test_addresses_that_are_refused_at_once(hooks: HookService) -> None:
    for url in REFUSED:
        with pytest.raises(HookUrlError) as caught:
            hooks.create(SYSTEM, "vision", url)
        assert "secret" not in caught.value.message
    assert hooks.list(SYSTEM, "vision") == ()


def test_hosts_that_may_be_cloned_from_do_not_limit_hooks(
    database: Database, trusting: Settings, hooks: HookService
) -> None:
    narrow = HookService(database, trusting.model_copy(update={"git_hosts": ("forge.example",)}))
    assert narrow.create(SYSTEM, "vision", "https://chat.example/x").url == "https://chat.example/x"


def test_a_hook_is_of_its_project_and_there_are_not_too_many(hooks: HookService, projects: ProjectService) -> None:
    projects.create(SYSTEM, "audio")
    hook = hooks.create(SYSTEM, "vision", "https://hooks.example/x")
    for action in (
        lambda: hooks.remove(SYSTEM, "audio", hook.id),
        lambda: hooks.deliveries(SYSTEM, "audio", hook.id),
        lambda: hooks.set_disabled(SYSTEM, "audio", hook.id, disabled=True),
    ):
        with pytest.raises(HookNotFoundError):
            action()
    for number in range(MOST_HOOKS - 1):
        hooks.create(SYSTEM, "vision", f"https://hooks.example/{number}")
    with pytest.raises(HookLimitError):
        hooks.create(SYSTEM, "vision", "https://hooks.example/more")
    hooks.remove(SYSTEM, "vision", hook.id)
    with pytest.raises(HookNotFoundError):
        hooks.remove(SYSTEM, "vision", hook.id)


def test_two_senders_do_not_tell_twice(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hooks.create(SYSTEM, "vision", listener.url())
    for _ in range(4):
        finished(bench)
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: send_due(database, trusting), range(4)))
    assert sum(sent) == 4
    assert len({headers["webhook-id"] for _, headers, _ in listener.told}) == len(listener.told) == 4


def test_a_control_worker_does_it(
    hooks: HookService, bench: Bench, listener: Listener, trusting: Settings, database: Database
) -> None:
    hooks.create(SYSTEM, "vision", listener.url())
    finished(bench)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.hooks._EVERY_S", 0.01)
        runner = Runner(trusting, database, [CONTROL_QUEUE])
        runner.start()
        assert listener.heard.wait(30)
        runner.stop()
        runner.join()
    assert len(listener.told) == 1
