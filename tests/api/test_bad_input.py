"""Each bad input gets a clear problem, and the service goes on."""

from __future__ import annotations

import io
import json
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterator

import httpx
import pytest

from services.settings import Settings
from tests.serving import RunningServer, packed, upload

ANALYSES = "/api/v1/analyses"
MB = 1_000_000


def tar_of(*members: tarfile.TarInfo) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"\0" * member.size))
    return target.getvalue()


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.size = size
    return info


def zip_of(name: str, content: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return target.getvalue()


ARCHIVES: dict[str, tuple[str, Callable[[], bytes], int, str]] = {
    "no archive at all": ("a.zip", lambda: b"this is no archive", 422, "archive-"),
    "of an unknown kind": ("a.rar", lambda: b"Rar!", 415, "archive-unsupported"),
    "an empty file": ("a.tar.gz", lambda: b"", 422, "archive-"),
    "cut short": ("a.tar.gz", lambda: packed({"a.py": "x = 1\n" * 5000})[:80], 422, "archive-"),
    "a zip bomb": ("a.zip", lambda: zip_of("a.bin", b"\0" * 150 * MB), 422, "archive-"),
    "path traversal": ("a.tar", lambda: tar_of(member("../../etc/cron.d/x", size=1)), 422, "path-traversal"),
    "an absolute path": ("a.tar", lambda: tar_of(member("/etc/passwd", size=1)), 422, "path-absolute"),
    "a symbolic link": ("a.tar", lambda: tar_of(member("a", kind=tarfile.SYMTYPE, link="/etc")), 422, "archive-"),
    "a hard link": ("a.tar", lambda: tar_of(member("a", kind=tarfile.LNKTYPE, link="b")), 422, "archive-"),
    "a device": ("a.tar", lambda: tar_of(member("a", kind=tarfile.CHRTYPE)), 422, "archive-"),
    "30,000 files": ("a.tar", lambda: tar_of(*(member(f"d/{i}.py") for i in range(30_000))), 422, "too-many-files"),
    "a 50 MB Python file": ("a.tar.gz", lambda: packed({"a.py": b"x = 1  # " + b"\0" * 50 * MB}), 422, ""),
    "nothing in it": ("a.tar", tar_of, 422, "no-files"),
}


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["code"].startswith(code), problem
    assert problem["type"] == f"urn:gradproof:problem:{problem['code']}"
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in response.text
    return dict(problem)


@pytest.fixture
def service_settings(embedded_settings: Settings) -> Settings:
    """The embedded parts only: what is refused never comes near a database."""
    return embedded_settings


@pytest.fixture
def still_serving(client: httpx.Client) -> Iterator[None]:
    """After the test the service still takes an honest submission."""
    yield
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.post(ANALYSES, files=upload()).status_code == 202


@pytest.mark.usefixtures("still_serving")
def test_each_bad_archive_is_refused_by_name_and_nothing_is_queued(client: httpx.Client) -> None:
    for case, (name, content, status, code) in ARCHIVES.items():
        response = client.post(ANALYSES, files={"archive": (name, content())})
        assert response.status_code == status, (case, response.text)
        assert_problem(response, status, code)
    assert client.get(ANALYSES).json()["items"] == []


def test_the_offending_member_is_named_without_its_tricks(client: httpx.Client) -> None:
    archive = tar_of(member("pkg/\u202egnp.py\x1b[2J", size=1))
    problem = assert_problem(client.post(ANALYSES, files={"archive": ("a.tar", archive)}), 422, "path-")
    assert "\u202e" not in str(problem)
    assert "\x1b" not in str(problem)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", "git-url-scheme"),
        ("ext::sh -c touch% /tmp/x", "git-url"),
        ("--upload-pack=touch /tmp/x", "git-url"),
        ("-oProxyCommand=x", "git-url"),
        ("ssh://git@github.com/a/b", "git-url"),
        ("git@github.com:a/b", "git-url"),
        ("http://github.com/a/b", "git-url-scheme"),
        ("https://user:secret@github.com/a/b", "git-url-userinfo"),
        ("https://127.0.0.1/a/b", "git-"),
        ("https://[::1]/a/b", "git-"),
        ("https://169.254.169.254/latest/meta-data", "git-"),
        ("https://2130706433/a", "git-url"),
        ("https://github.com/a/b\r\nHost: evil", "git-url"),
    ],
)
def test_a_git_url_that_may_not_be_fetched_is_refused(client: httpx.Client, url: str, code: str) -> None:
    problem = assert_problem(client.post(ANALYSES, json={"git_url": url}), 422, code)
    assert "secret" not in str(problem)
    assert client.get(ANALYSES).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"git_url": "https://github.com/a/b", "brach": "main"}, "body.brach"),
        ({"ref": "main"}, "body.git_url"),
        ({"git_url": 7}, "body.git_url"),
        ({"git_url": "https://github.com/a/b", "project": "../x y"}, "body.project"),
        ({"git_url": "https://github.com/a/b", "options": {"fast": True}}, "body.options.fast"),
        ([], "body"),
    ],
)
def test_unknown_missing_and_unusable_fields_are_listed(client: httpx.Client, body: object, field: str) -> None:
    problem = assert_problem(client.post(ANALYSES, json=body), 422, "invalid-request")
    errors = problem["details"]["errors"]  # type: ignore[index]
    assert [error["field"] for error in errors] == [field]
    assert all(error["reason"] for error in errors)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"optoins": "{}"}, "body.optoins"),
        ({"options": '{"static": true}'}, "body.options.static"),
        ({"project": "a b"}, "body.project"),
        ({"base": "' OR 1=1"}, "body.base"),
    ],
)
def test_fields_of_an_upload_are_judged_as_strictly(client: httpx.Client, data: dict[str, str], field: str) -> None:
    problem = assert_problem(client.post(ANALYSES, files=upload(), data=data), 422, "invalid-request")
    assert problem["details"]["errors"][0]["field"] == field  # type: ignore[index]


def test_an_option_that_does_not_exist_is_named_with_those_there_are(client: httpx.Client) -> None:
    response = client.post(ANALYSES, files=upload(), data={"options": '{"checks": ["gradchek"]}'})
    problem = assert_problem(response, 422, "invalid-options")
    assert "gradcheck" in str(problem["detail"])


def test_bodies_that_are_not_what_they_say_are_refused(client: httpx.Client) -> None:
    json_type = {"Content-Type": "application/json"}
    assert_problem(client.post(ANALYSES, content=b"{", headers=json_type), 400, "malformed-body")
    assert_problem(client.post(ANALYSES, content=b"\xff\xfe", headers=json_type), 400, "malformed-body")
    assert_problem(client.post(ANALYSES, content=b"[" * 60_000, headers=json_type), 400, "malformed-body")
    assert_problem(client.post(ANALYSES, files=upload(), data={"options": "{"}), 400, "malformed-body")
    no_boundary = {"Content-Type": "multipart/form-data"}
    assert_problem(client.post(ANALYSES, content=b"x", headers=no_boundary), 400, "malformed-body")
    broken = {"Content-Type": "multipart/form-data; boundary=b"}
    assert_problem(client.post(ANALYSES, content=b"no boundary here", headers=broken), 400, "malformed-body")
    assert_problem(client.post(ANALYSES, content=b"--b\r\ncut", headers=broken), 422, "invalid-request")
    assert_problem(client.post(ANALYSES, content=b"x", headers={"Content-Type": "text/plain"}), 415, "unsupported")
    assert_problem(client.post(ANALYSES), 415, "unsupported-media-type")


def test_an_upload_without_a_file_with_two_or_with_a_file_for_an_option_is_refused(client: httpx.Client) -> None:
    assert_problem(client.post(ANALYSES, files={"options": (None, "{}")}), 422, "invalid-request")
    two = [("archive", ("a.py", b"x = 1")), ("archive", ("b.py", b"x = 1"))]
    assert_problem(client.post(ANALYSES, files=two), 422, "invalid-request")
    assert_problem(client.post(ANALYSES, files={**upload(), "options": ("o.json", b"{}")}), 422, "invalid-request")


@pytest.mark.usefixtures("still_serving")
def test_a_huge_body_is_refused_by_its_announced_length_before_it_is_sent(
    client: httpx.Client, server: RunningServer
) -> None:
    head = (
        f"POST {ANALYSES} HTTP/1.1\r\nHost: gradproof\r\nAuthorization: {client.headers['authorization']}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {server.settings.upload_limit + 1}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    status, _, rest = answer.partition(b"\r\n")
    assert status.startswith(b"HTTP/1.1 413")
    assert json.loads(rest.partition(b"\r\n\r\n")[2])["code"] == "body-too-large"


@pytest.mark.usefixtures("still_serving")
def test_a_huge_body_of_no_announced_length_is_cut_off_at_the_limit(
    client: httpx.Client, server: RunningServer
) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="archive"; filename="a.zip"\r\n\r\n'
        while sent < 4 * server.settings.upload_limit:
            sent += MB
            yield b"\0" * MB

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    with httpx.Client(base_url=server.url, headers=client.headers) as other:
        try:
            response = other.post(ANALYSES, content=endless(), headers=headers)
        except httpx.WriteError:
            response = None
    if response is not None:
        assert_problem(response, 413, "body-too-large")
    assert sent < 2 * server.settings.upload_limit


def test_a_json_body_may_be_small_only(client: httpx.Client) -> None:
    body = json.dumps({"git_url": "https://github.com/a/b", "ref": "x" * 100_000}).encode()
    response = client.post(ANALYSES, content=body, headers={"Content-Type": "application/json"})
    problem = assert_problem(response, 413, "body-too-large")
    assert problem["details"] == {"limit": 65536}


def test_unknown_addresses_methods_and_parameters_are_problems_too(client: httpx.Client) -> None:
    assert_problem(client.get("/api/v1/nothing"), 404, "route-not-found")
    assert_problem(client.delete(ANALYSES), 405, "method-not-allowed")
    assert client.delete(ANALYSES).headers["allow"]
    problem = assert_problem(client.get(ANALYSES, params={"page": 2}), 422, "invalid-request")
    assert problem["details"]["errors"][0]["field"] == "query.page"  # type: ignore[index]
    assert_problem(client.get(ANALYSES, params={"limit": 101}), 422, "invalid-request")
    assert_problem(client.get(ANALYSES, params={"project": "\x00"}), 422, "invalid-request")
    assert_problem(client.get(ANALYSES, params={"cursor": "\x00"}), 422, "invalid-request")


def test_an_unusable_idempotency_key_is_refused(client: httpx.Client) -> None:
    for key in ("", "x" * 201):
        response = client.post(ANALYSES, files=upload(), headers={"Idempotency-Key": key})
        assert_problem(response, 422, "invalid-request")
