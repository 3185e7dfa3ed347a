"""Whoever runs the service sees whether it is well."""

from __future__ import annotations

import re
import sqlite3

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from services.accounts.tokens import new_token
from tests.conftest import MakeSettings
from tests.reports.samples import check, failing
from tests.serving import RunningServer, Workshop, token, upload


def figures(client: httpx.Client) -> dict[str, float]:
    """Every sample of `/metrics` by name and labels."""
    text = client.get("/metrics").text
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_it_is_alive(anonymous: httpx.Client) -> None:
    assert anonymous.get("/healthz").json() == {"status": "ok"}


def test_it_is_ready_when_database_broker_and_reconciler_are_there(anonymous: httpx.Client, workshop: Workshop) -> None:
    early = anonymous.get("/readyz")
    assert early.status_code == 503
    missing = {component["name"]: component for component in early.json()["components"] if not component["ok"]}
    assert set(missing) == {"reconciler"}
    assert "gradproof worker" in missing["reconciler"]["detail"]
    workshop.reconciler.tick()
    ready = anonymous.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["ready"] is True


def test_what_is_missing_is_said_without_secrets(make_settings: MakeSettings) -> None:
    settings = make_settings(
        database_url="postgresql://gradproof:secret-password@127.0.0.1:9/gradproof",
        broker_url="redis://:secret-password@127.0.0.1:9/0",
    )
    with RunningServer(settings) as server:
        response = httpx.get(f"{server.url}/readyz", timeout=30)
        assert response.status_code == 503
        assert {component["name"] for component in response.json()["components"] if not component["ok"]} == {
            "database",
            "broker",
            "reconciler",
            "devices",
        }
        assert "secret-password" not in response.text
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        listed = httpx.get(f"{server.url}/api/v1/analyses", headers={"Authorization": "Bearer x"}, timeout=30)
        assert listed.status_code == 401


def test_figures_follow_the_work(client: httpx.Client, workshop: Workshop) -> None:
    client.post("/api/v1/analyses", files=upload())
    before = figures(client)
    assert before["gradproof_queue_waiting[('queue', 'cpu')]"] == 1
    assert before["gradproof_queue_oldest_seconds[('queue', 'cpu')]"] >= 0
    assert before["gradproof_analyses[('status', 'queued')]"] == 1
    workshop.read()
    workshop.probe(failing(), check(check="compile_equivalence"))
    workshop.reconciler.tick()
    after = figures(client)
    assert after["gradproof_analyses[('status', 'finished')]"] == 1
    assert after["gradproof_job_attempts_total[]"] == 2
    assert after["gradproof_lease_expiries_total[]"] == 0
    assert after["gradproof_check_results[('check', 'gradcheck'), ('device', 'cpu'), ('verdict', 'fail')]"] == 1
    assert after["gradproof_reconciler_age_seconds[]"] < 60
    assert not [name for name in after if name.startswith("gradproof_queue_waiting")]


def test_a_gpu_that_is_not_fit_is_told_and_does_not_make_the_service_unready(
    client: httpx.Client, workshop: Workshop
) -> None:
    workshop.reconciler.tick()
    workshop.report_device("GPU-1", "out of service", "process 42 is still on the device")
    ready = client.get("/readyz")
    assert ready.status_code == 200
    devices = next(component for component in ready.json()["components"] if component["name"] == "devices")
    assert not devices["ok"]
    assert "process 42 is still on the device" in devices["detail"]
    labels = "[('device', 'GPU-1'), ('host', 'here'), ('queue', 'gpu.cuda'), ('state', 'out of service')]"
    assert figures(client)[f"gradproof_device_serving{labels}"] == 0
    workshop.report_device("GPU-1", "serving", "")
    assert "1 of 1 workers for GPUs serve" in client.get("/readyz").text
    assert figures(client)[f"gradproof_device_serving{labels.replace('out of service', 'serving')}"] == 1


def test_every_answer_carries_the_headers_that_keep_a_browser_strict(
    client: httpx.Client, anonymous: httpx.Client
) -> None:
    for response in (
        client.get("/api/v1/analyses"),
        anonymous.get("/api/v1/analyses"),
        anonymous.get("/nothing"),
        anonymous.get("/rules"),
        anonymous.get("/static/site.css"),
    ):
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] in {"no-referrer", "same-origin"}
        assert response.headers["cross-origin-opener-policy"] == "same-origin"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"


def test_a_database_that_is_away_is_no_fault_of_the_client(make_settings: MakeSettings) -> None:
    settings = make_settings(database_url="postgresql://gradproof:secret-password@127.0.0.1:9/gradproof")
    with RunningServer(settings) as server:
        headers = {"Authorization": f"Bearer {new_token('api')}"}
        response = httpx.get(f"{server.url}/api/v1/analyses", headers=headers, timeout=30)
    assert response.status_code == 503
    assert response.json()["code"] == "database-unavailable"
    assert response.headers["retry-after"]
    assert "secret-password" not in response.text


def test_what_nobody_expected_is_answered_without_a_word_of_the_inner_life(
    make_settings: MakeSettings, sqlite_url: str
) -> None:
    settings = make_settings(database_url=sqlite_url)
    headers = {"Authorization": f"Bearer {token(settings)}"}
    with RunningServer(settings) as server:
        identity = httpx.post(f"{server.url}/api/v1/analyses", files=upload(), headers=headers).json()["id"]
        with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
            connection.execute("UPDATE analyses SET options = '\"damaged\"'")
        with capture_logs() as logged:
            response = httpx.get(f"{server.url}/api/v1/analyses/{identity}", headers=headers)
        assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert [(entry["event"], entry["path"]) for entry in logged if entry["log_level"] == "error"] == [
        ("request_failed", f"/api/v1/analyses/{identity}")
    ]
    assert response.status_code == 500
    assert response.json()["code"] == "internal-error"
    assert not re.search("Traceback|File |pydantic|damaged", response.text)
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/api/v1/rules", "/api/v1/checks"])
def test_the_documentation_is_data_for_everybody(anonymous: httpx.Client, path: str) -> None:
    for entry in anonymous.get(path).json():
        assert all(entry[key] for key in ("name", "what_it_does"))


def test_a_rule_is_found_by_its_id_and_by_its_name(anonymous: httpx.Client) -> None:
    first = anonymous.get("/api/v1/rules").json()[0]
    assert anonymous.get(f"/api/v1/rules/{first['id']}").json() == first
    assert anonymous.get(f"/api/v1/rules/{first['name']}").json() == first
    assert first["page"].count(first["id"]) >= 1
    unknown = anonymous.get("/api/v1/rules/GP999")
    assert unknown.status_code == 404
    assert unknown.headers["content-type"] == "application/problem+json"
