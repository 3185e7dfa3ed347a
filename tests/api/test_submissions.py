"""What is submitted is queued once, stopped and run again on request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx

from services.jobs.broker import DOORBELL, build_broker
from services.settings import Settings
from tests.serving import RunningServer, Workshop, token, upload

ANALYSES = "/api/v1/analyses"


def submit(client: httpx.Client, **arguments: object) -> str:
    response = client.post(ANALYSES, **({"files": upload()} | arguments))  # type: ignore[arg-type]
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def test_an_archive_is_taken_in_and_queued_with_links_to_go_on(client: httpx.Client) -> None:
    response = client.post(ANALYSES, files=upload(), data={"options": '{"static_only": true}', "project": "vision"})
    assert response.status_code == 202
    body = response.json()
    assert body["status"] == "queued"
    assert response.headers["location"] == body["links"]["self"] == f"{ANALYSES}/{body['id']}"
    state = client.get(body["links"]["self"]).json()
    assert state["options"]["static_only"] is True
    assert state["project"] == "vision"
    assert state["source"] == {"kind": "archive", "url": None, "commit": None}
    assert state["snapshot"].startswith("sha256:")
    assert [stage["name"] for stage in state["progress"]] == ["snapshot", "static", "targets", "checks"]
    assert state["gate"] is None


def test_a_single_python_file_is_a_submission_too(client: httpx.Client) -> None:
    submit(client, files={"archive": ("model.py", b"import torch\n")})


def test_a_git_commit_is_queued_before_it_is_fetched(client: httpx.Client) -> None:
    identity = submit(client, files=None, json={"git_url": "https://github.com/example/vision", "ref": "main"})
    state = client.get(f"{ANALYSES}/{identity}").json()
    assert state["source"]["url"] == "https://github.com/example/vision"
    assert state["snapshot"] is None
    report = client.get(f"{ANALYSES}/{identity}/report")
    assert report.status_code == 409
    assert report.json()["code"] == "report-unavailable"


def test_a_base_ref_is_analysed_as_well_and_compared_with(client: httpx.Client) -> None:
    body = {"git_url": "https://github.com/example/vision", "ref": "feature", "base_ref": "main", "project": "vision"}
    response = client.post(ANALYSES, json=body)
    base = client.get(response.json()["links"]["base"]).json()
    assert client.get(response.json()["links"]["self"]).json()["base"] == base["id"]
    assert len(client.get(ANALYSES, params={"project": "vision"}).json()["items"]) == 2


def test_a_repeated_request_with_the_same_key_gives_the_same_analysis(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "ci-4711"}
    first = submit(client, headers=headers)
    assert submit(client, headers=headers) == first
    assert submit(client) != first
    other = client.post(ANALYSES, files={"archive": ("a.py", b"x = 1\n")}, headers=headers)
    assert other.status_code == 409
    assert other.json()["code"] == "idempotency-conflict"
    assert len(client.get(ANALYSES).json()["items"]) == 2


def test_requests_with_one_key_at_the_same_moment_make_one_analysis(client: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: submit(client, headers={"Idempotency-Key": "storm"}), range(4)))
    assert len(made) == 1


def test_keys_of_different_tokens_are_apart(client: httpx.Client, server: RunningServer) -> None:
    headers = {"Idempotency-Key": "mine"}
    other = {"Authorization": f"Bearer {token(server.settings)}", **headers}
    assert submit(client, headers=headers) != submit(client, headers=other)


def test_a_repeated_git_request_repeats_neither_the_analysis_nor_its_base(client: httpx.Client) -> None:
    body = {"git_url": "https://github.com/example/vision", "base_ref": "main"}
    first = submit(client, files=None, json=body, headers={"Idempotency-Key": "k"})
    assert submit(client, files=None, json=body, headers={"Idempotency-Key": "k"}) == first
    assert len(client.get(ANALYSES).json()["items"]) == 2


def test_the_list_is_filtered_and_read_page_by_page_newest_first(client: httpx.Client) -> None:
    made = [submit(client, data={"project": name}) for name in ("a", "b", "a", "b", "a")]
    first = client.get(ANALYSES, params={"limit": 2}).json()
    assert [item["id"] for item in first["items"]] == [made[4], made[3]]
    second = client.get(ANALYSES, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    third = client.get(ANALYSES, params={"limit": 2, "cursor": second["next_cursor"]}).json()
    assert [item["id"] for item in second["items"] + third["items"]] == [made[2], made[1], made[0]]
    assert third["next_cursor"] is None
    of_a = client.get(ANALYSES, params={"project": "a"}).json()["items"]
    assert [item["id"] for item in of_a] == [made[4], made[2], made[0]]
    assert client.get(ANALYSES, params={"status": "finished"}).json()["items"] == []
    both = client.get(ANALYSES, params={"status": ["finished", "queued"]}).json()["items"]
    assert len(both) == 5


def test_an_analysis_is_cancelled_once_and_for_all(client: httpx.Client, workshop: Workshop) -> None:
    identity = submit(client)
    cancelled = client.post(f"{ANALYSES}/{identity}/cancel")
    assert cancelled.status_code == 200
    assert cancelled.json()["status"] == "cancelled"
    assert cancelled.json()["gate"]["passed"] is False
    assert client.post(f"{ANALYSES}/{identity}/cancel").status_code == 200
    workshop.read()
    assert client.get(f"{ANALYSES}/{identity}").json()["status"] == "cancelled"


def test_an_analysis_that_has_ended_can_not_be_cancelled(client: httpx.Client, workshop: Workshop) -> None:
    identity = submit(client, data={"options": '{"static_only": true}'})
    workshop.read()
    refused = client.post(f"{ANALYSES}/{identity}/cancel")
    assert refused.status_code == 409
    assert refused.json()["code"] == "analysis-ended"


def test_running_again_makes_a_new_analysis_of_the_same_source(client: httpx.Client) -> None:
    identity = submit(client, data={"options": '{"static_only": true}', "project": "vision"})
    again = client.post(f"{ANALYSES}/{identity}/rerun")
    assert again.status_code == 202
    old = client.get(f"{ANALYSES}/{identity}").json()
    new = client.get(again.headers["location"]).json()
    assert new["id"] != old["id"]
    assert (new["snapshot"], new["options"], new["project"]) == (old["snapshot"], old["options"], "vision")


def test_a_doorbell_is_rung_for_what_is_submitted(client: httpx.Client, service_settings: Settings) -> None:
    submit(client)
    app = build_broker(service_settings)
    with app.connection_for_read() as connection, connection.SimpleQueue("cpu") as queue:
        message = queue.get(timeout=10)
        assert message.headers["task"] == DOORBELL
        message.ack()
    app.close()
    assert 'gradproof_queue_waiting{queue="cpu"} 1.0' in client.get("/metrics").text


def test_an_unknown_analysis_is_not_found_by_any_call(client: httpx.Client) -> None:
    for path in ("", "/events", "/report", "/findings", "/targets", "/checks"):
        for identity in ("0" * 27, "nonsense", "%00", "..%2f..", "x" * 3000):
            assert client.get(f"{ANALYSES}/{identity}{path}").status_code == 404
    for action in ("cancel", "rerun"):
        assert client.post(f"{ANALYSES}/{'0' * 27}/{action}").json()["code"] == "analysis-not-found"
    response = client.post(ANALYSES, files=upload(), data={"base": "0" * 27})
    assert response.json()["code"] == "analysis-not-found"
