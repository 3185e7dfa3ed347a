"""Real repositories come in over real https; what a URL, a ref, a server or a repository can try is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from services.settings import Settings
from services.snapshots import DEFAULT_LIMITS, Source, read_archive
from services.snapshots.errors import (
    GitAccessError,
    GitAddressNotPublicError,
    GitCancelledError,
    GitCertificateError,
    GitError,
    GitObjectsError,
    GitRedirectError,
    GitRefError,
    GitRefNotFoundError,
    GitTimeoutError,
    GitTooLargeError,
    GitUnavailableError,
    GitUnreachableError,
    GitUrlError,
    PythonFileTooLargeError,
    TooManyFilesError,
    TreeTooLargeError,
)
from services.snapshots.git import fetch
from services.snapshots.model import Author
from tests.recovery.support import eventually
from tests.snapshots.git_server import HOST_NAME, GitServer, serve
from tests.snapshots.making import FILES, stream, tar_of


class Repository:
    """A repository in the making, and its published bare copy."""

    def __init__(self, root: Path, name: str) -> None:
        self.work = root / "work" / name
        self.work.mkdir(parents=True)
        self.bare = root / f"{name}.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", "--template=", str(self.bare)], check=True)
        self.git("init", "-q", "-b", "main", "--template=")

    def git(self, *arguments: str, data: bytes | None = None) -> str:
        options = ["user.name=A", "user.email=a@example.org", "core.compression=1", "gc.auto=0"]
        command = ["git", *(part for option in options for part in ("-c", option)), *arguments]
        done = subprocess.run(command, cwd=self.work, check=True, input=data, capture_output=True)
        return done.stdout.decode().strip()

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_bytes(data)

    def commit(self, files: dict[str, bytes]) -> str:
        self.write(files)
        self.git("add", "-A", "-f")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.publish()

    def commit_tree(self, listing: str) -> str:
        """A commit of exactly these tree entries, also such as `git add` would not make."""
        tree = self.git("mktree", "--missing", data=listing.encode())
        self.git("update-ref", "refs/heads/main", self.git("commit-tree", tree, "-m", "x"))
        return self.publish()

    def blob(self, data: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", data=data)

    def publish(self, *refs: str) -> str:
        self.git("push", "-q", "-f", str(self.bare), "HEAD:refs/heads/main", *refs)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def server() -> Iterator[GitServer]:
    with tempfile.TemporaryDirectory() as root, serve(Path(root)) as running:
        yield running


@pytest.fixture(scope="module")
def settings(server: GitServer) -> Settings:
    return Settings(git_trusted_networks=(IPv4Network("127.0.0.0/8"),), git_ca_file=server.authority)


@pytest.fixture(scope="module")
def model(server: GitServer) -> Repository:
    repository = Repository(server.root, "model")
    repository.commit({**FILES, "old.py": b""})
    (repository.work / "old.py").unlink()
    repository.commit(FILES)
    return repository


def test_the_default_branch_is_fetched_with_the_digest_of_the_same_files_in_an_archive(
    server: GitServer, settings: Settings, model: Repository
) -> None:
    tree = fetch(server.url("model.git"), None, settings)
    commit = tree.source.commit
    with tree, read_archive(stream(tar_of(FILES)), "a.tar") as archived:
        assert dict(tree) == FILES
        assert commit == model.git("rev-parse", "HEAD")
        assert tree.source == Source("git", server.url("model.git"), commit, Author("A", "a@example.org"))
        assert tree.digest == archived.digest


@pytest.mark.parametrize(
    ("name", "email", "author"),
    [
        ("Zoë Example", "zoe@example.org", Author("Zoë Example", "zoe@example.org")),
        ("\u202e<script>", "a@b", Author("\\u202escript", "a@b")),
        ("N" * 300, "a@b", Author(f"{'N' * 50}…{'N' * 50}", "a@b")),
        ("A", "not an address", None),
        ("A", "\u202ea@b", None),
        ("A", f"{'a' * 260}@b", None),
        ("A", "", None),
    ],
)
def test_the_author_is_whom_the_commit_names_as_far_as_that_can_be_shown(
    server: GitServer, settings: Settings, name: str, email: str, author: Author | None
) -> None:
    place = f"written-{sum(map(ord, name + email))}"
    repository = Repository(server.root, place)
    repository.write({"a.py": b"1"})
    repository.git("add", "-A")
    message = "x\n\nauthor Somebody Else <else@example.org> 1 +0000"
    repository.git("-c", f"user.name={name}", "-c", f"user.email={email}", "commit", "-q", "-m", message)
    repository.publish()
    tree = fetch(server.url(f"{place}.git"), None, settings)
    with tree:
        assert tree.source.author == author


def test_a_ref_is_a_branch_a_tag_a_full_name_or_a_commit(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "refs")
    first = repository.commit({"a.py": b"1"})
    repository.git("tag", "-a", "-m", "x", "v1")
    repository.git("tag", "light")
    second = repository.commit({"a.py": b"2"})
    repository.git("tag", "main")
    repository.git("update-ref", "refs/pull/7/head", first)
    third = repository.commit({"a.py": b"3"})
    repository.publish("refs/tags/*:refs/tags/*", "refs/pull/*:refs/pull/*", f"{first}:refs/heads/feature/x")
    for ref, expected in {
        None: third,
        "HEAD": third,
        "main": third,
        "refs/tags/main": second,
        "v1": first,
        "refs/tags/v1": first,
        "light": first,
        "refs/pull/7/head": first,
        "feature/x": first,
        "refs/heads/feature/x": first,
        second: second,
    }.items():
        with fetch(server.url("refs.git"), ref, settings) as tree:
            assert tree.source.commit == expected, ref


@pytest.mark.parametrize("ref", ["nope", "refs/heads/nope", "ain", "x", "1" * 40, "0" * 40, "abc1234"])
def test_a_ref_that_does_not_exist_is_named(server: GitServer, settings: Settings, model: Repository, ref: str) -> None:
    with pytest.raises(GitRefNotFoundError) as caught:
        fetch(server.url("model.git"), ref, settings)
    assert ref in caught.value.message
    assert caught.value.details["ref"] == ref


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "-b",
        "--upload-pack=touch /tmp/x",
        "--output=x",
        "a..b",
        "a b",
        "a\nb",
        "a\0b",
        "a~1",
        "a^{tree}",
        "a:b",
        "refs/heads/*",
        "a[b",
        "a\\b",
        "@{-1}",
        "@",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a/.b",
        "a.lock",
        "a.",
        "x" * 256,
    ],
)
def test_a_ref_that_git_could_take_for_something_else_never_reaches_git(
    server: GitServer, settings: Settings, ref: str
) -> None:
    before = len(server.requests)
    with pytest.raises((GitRefError, GitRefNotFoundError)) as caught:
        fetch(server.url("nothing.git"), ref, settings)
    assert caught.type is GitRefError
    assert len(server.requests) == before


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc",
        "/etc",
        "ext::sh -c id",
        "ext::https://127.0.0.1/a",
        "ssh://-oProxyCommand=id/a",
        "git@127.0.0.1:a/b",
        "http://127.0.0.1/a",
        "--upload-pack=id",
        "-c",
        "https://user:secret@127.0.0.1/a",
        "https://127.0.0.1/../a",
    ],
)
def test_no_other_way_of_naming_a_repository_reaches_git(settings: Settings, url: str) -> None:
    with pytest.raises(GitUrlError):
        fetch(url, None, settings)


def test_an_internal_address_is_not_asked_by_name_or_number(server: GitServer) -> None:
    strict = Settings(git_ca_file=server.authority)
    before = len(server.requests)
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(GitAddressNotPublicError):
            fetch(server.url("model.git", host), None, strict)
    with pytest.raises(GitAddressNotPublicError):
        fetch(server.url("model.git", HOST_NAME), None, strict, resolver=lambda _host, _port: ["127.0.0.1"])
    assert len(server.requests) == before


def test_git_goes_to_the_address_that_was_judged_and_asks_no_name_server_again(
    server: GitServer, settings: Settings, model: Repository
) -> None:
    asked = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"]

    # The name exists nowhere: only the pinned address can have answered, under a certificate for that name.
    tree = fetch(server.url("model.git", HOST_NAME), None, settings, resolver=resolver)
    with tree:
        assert dict(tree) == FILES
    assert asked == [(HOST_NAME, server.port)]


def test_a_redirect_to_another_host_is_not_followed(server: GitServer, settings: Settings, model: Repository) -> None:
    with tempfile.TemporaryDirectory() as root, serve(Path(root)) as other:
        server.redirects["moved.git"] = other.url("model.git")
        with pytest.raises(GitRedirectError, match="give the address that it redirects to"):
            fetch(server.url("moved.git"), None, settings)
        assert other.requests == []


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest", "file:///etc", "https://127.0.0.1:1/x"])
def test_a_redirect_to_something_internal_is_not_followed(server: GitServer, settings: Settings, target: str) -> None:
    server.redirects["lure.git"] = target
    with pytest.raises(GitRedirectError):
        fetch(server.url("lure.git"), None, settings)


def test_a_forge_that_serves_only_the_name_with_its_suffix_is_asked_for_that(
    server: GitServer, settings: Settings, model: Repository
) -> None:
    server.redirects["model"] = server.url("model.git")
    try:
        tree = fetch(server.url("model"), None, settings)
    finally:
        del server.redirects["model"]
    with tree:
        assert dict(tree) == FILES
        assert tree.source.url == server.url("model.git")


def test_links_and_submodules_are_left_out_and_counted(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "links")
    repository.write({"a.py": b"x = 1\n"})
    (repository.work / "passwd.py").symlink_to("/etc/passwd")
    (repository.work / "up").symlink_to("../../..")
    repository.commit({".gitmodules": b'[submodule "x"]\n\tpath = vendored\n\turl = https://127.0.0.1/x\n'})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendored")
    repository.git("commit", "-q", "-m", "x")
    repository.publish()
    tree = fetch(server.url("links.git"), None, settings)
    with tree:
        assert set(tree) == {"a.py", ".gitmodules"}
        assert tree.left_out == {"symbolic link": 2, "submodule": 1}


def test_attributes_filters_and_embedded_repositories_have_no_effect(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "tricks")
    marker = repository.work.parent / "marker"
    files = {
        ".gitattributes": b"*.py filter=evil text eol=crlf ident export-subst working-tree-encoding=UTF-16\n",
        "a.py": b"$Id$\n$Format:%H$\n",
        "bare/HEAD": b"ref: refs/heads/main\n",
        "bare/config": b"[core]\n\tbare = true\n\tfsmonitor = touch %s\n" % str(marker).encode(),
        "bare/objects/x": b"",
        "bare/refs/x": b"",
    }
    repository.write(files)
    listing = "".join(
        f"100644 blob {repository.blob(data)}\t{name}\n" for name, data in files.items() if "/" not in name
    )
    inner = "".join(
        f"100644 blob {repository.blob(files[name])}\t{name.removeprefix('bare/')}\n"
        for name in ("bare/HEAD", "bare/config")
    )
    listing += f"040000 tree {repository.git('mktree', data=inner.encode())}\tbare\n"
    repository.commit_tree(listing)
    tree = fetch(server.url("tricks.git"), None, settings)
    with tree:
        assert tree["a.py"] == files["a.py"]
        assert tree["bare/config"] == files["bare/config"]
    assert not marker.exists()


def test_a_tree_that_git_calls_malformed_is_refused(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "malformed")
    inner = repository.git("mktree", data=f"100644 blob {repository.blob(b'x')}\tconfig\n".encode())
    repository.commit_tree(f"040000 tree {inner}\t..\n")
    with pytest.raises(GitObjectsError) as caught:
        fetch(server.url("malformed.git"), None, settings)
    assert "'..'" in str(caught.value.details["git"])


def test_names_that_can_not_be_kept_are_left_out(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "names")
    repository.commit({"a.py": b"", "A.py": b"", "b\\c.py": b"", "Icon\r": b"", "x/a.py": b"", "X/b.py": b""})
    tree = fetch(server.url("names.git"), None, settings)
    with tree:
        assert set(tree) == {"A.py", "X/b.py"}
        assert tree.left_out == {"unusable name": 4}


def test_large_data_is_left_out_and_a_large_python_file_refused(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "large")
    repository.commit({"a.py": b"", "weights.bin": os.urandom(6_000_000)})
    tree = fetch(server.url("large.git"), None, settings)
    with tree:
        assert set(tree) == {"a.py"}
        assert tree.left_out == {"larger than a kept file may be": 1}
    repository.commit({"huge.py": b"#" * 50_000_000})
    with pytest.raises(PythonFileTooLargeError, match=r"huge\.py has 50 MB"):
        fetch(server.url("large.git"), None, settings)


def test_a_commit_with_too_much_in_it_is_refused(server: GitServer, settings: Settings) -> None:
    repository = Repository(server.root, "much")
    repository.commit({f"m{number}.bin": os.urandom(100_000) for number in range(12)})
    url = server.url("much.git")
    with pytest.raises(GitTooLargeError, match=r"more than 1\.0 MB"):
        fetch(url, None, settings, limits=replace(DEFAULT_LIMITS, total=1_000_000))
    repository.commit({f"m{number}.bin": bytes([number]) * 50_000 for number in range(30)})
    with pytest.raises(TreeTooLargeError, match=r"more than 1\.0 MB"):
        fetch(url, None, settings, limits=replace(DEFAULT_LIMITS, total=1_000_000))
    with pytest.raises(TooManyFilesError, match="more than 20 files"):
        fetch(url, None, settings, limits=replace(DEFAULT_LIMITS, members=20))


def test_a_private_repository_is_fetched_with_a_credential_that_nobody_sees(
    server: GitServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository(server.root, "private").commit(FILES)
    secret = "Basic eC1hY2Nlc3MtdG9rZW46c2VjcmV0"
    server.private["private.git"] = secret
    commands: list[str] = []
    start = subprocess.Popen

    def noting(command: list[str], **rest: object) -> object:
        commands.extend(command)
        return start(command, **rest)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", noting)
    with pytest.raises(GitAccessError):
        fetch(server.url("private.git"), None, settings)
    tree = fetch(server.url("private.git"), None, settings, headers={"Authorization": secret})
    with tree:
        assert tree.source.url == server.url("private.git")
    with pytest.raises(GitAccessError) as refused:
        fetch(server.url("private.git"), None, settings, headers={"Authorization": secret + "A"})
    assert secret not in str(refused.value.details)
    assert commands
    assert not any("eC1hY2Nlc3M" in word for word in commands)


def test_a_repository_that_is_not_there_or_not_public_is_called_so(server: GitServer, settings: Settings) -> None:
    server.statuses |= {"private.git": 401, "forbidden.git": 403}
    for name in ("absent.git", "private.git", "forbidden.git"):
        with pytest.raises(GitAccessError, match="does not exist, or is not public"):
            fetch(server.url(name), None, settings)


def test_an_empty_repository_has_no_commit(server: GitServer, settings: Settings) -> None:
    Repository(server.root, "void")
    with pytest.raises(GitRefNotFoundError, match="the repository is empty"):
        fetch(server.url("void.git"), None, settings)


def test_a_server_that_is_down_or_speaks_something_else(server: GitServer, settings: Settings) -> None:
    server.statuses["broken.git"] = 500
    server.statuses["page.git"] = 200
    for url in (server.url("broken.git"), server.url("page.git"), "https://127.0.0.1:1/a"):
        with pytest.raises(GitUnreachableError):
            fetch(url, None, settings)


def test_a_certificate_of_an_unknown_authority_is_not_trusted(server: GitServer, settings: Settings) -> None:
    unknown = settings.model_copy(update={"git_ca_file": None})
    with pytest.raises(GitCertificateError):
        fetch(server.url("model.git"), None, unknown)


def test_a_certificate_for_another_name_is_not_trusted(server: GitServer, settings: Settings) -> None:
    with pytest.raises(GitCertificateError):
        fetch(server.url("model.git", "other.example"), None, settings, resolver=lambda _host, _port: ["127.0.0.1"])


@pytest.mark.parametrize(("address", "trusted"), [("127.0.0.1", True), ("9.9.9.9", False)])
def test_the_own_authority_counts_for_trusted_networks_only(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, address: str, trusted: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        spy = Path(place) / "git"
        spy.write_text(
            f'#!/bin/sh\n[ "$1" = version ] && exec echo git version 2.40.0\necho "$@" > {place}/seen\nexit 1\n'
        )
        spy.chmod(0o755)
        monkeypatch.setattr("services.snapshots.git_process._PATH", f"{place}:/usr/bin:/bin")
        with pytest.raises(GitObjectsError):
            fetch(f"https://{HOST_NAME}/a", None, settings, resolver=lambda _host, _port: [address])
        arguments = (Path(place) / "seen").read_text()
    assert f"http.curloptResolve={HOST_NAME}:443:{address}" in arguments
    assert ("http.sslCAInfo=" in arguments) is trusted


def test_a_server_that_never_answers_is_given_up_and_git_is_gone(server: GitServer, settings: Settings) -> None:
    server.stalled.add("tarpit.git")
    hasty = settings.model_copy(update={"git_wall": timedelta(seconds=0.5)})
    with pytest.raises(GitTimeoutError, match=r"not done within 0\.5 seconds"):
        fetch(server.url("tarpit.git"), None, hasty)
    # A process that was killed stays in the table until it has let go of its memory.
    deadline = time.monotonic() + 30
    while _processes_naming(server.url("tarpit.git")):
        assert time.monotonic() < deadline, "git is still running"


def test_a_fetch_that_nobody_waits_for_is_stopped_and_leaves_nothing_behind(
    server: GitServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stalled.add("cancelled.git")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", place)
        url = server.url("cancelled.git")
        patient = settings.model_copy(update={"git_wall": timedelta(hours=1)})
        with pytest.raises(GitCancelledError):
            fetch(url, None, patient, cancelled=lambda: bool(_processes_naming(url)))
        assert list(Path(place).iterdir()) == []
    eventually(lambda: not _processes_naming(url), "git is gone")


def _processes_naming(word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_nothing_is_left_behind_whether_it_worked_or_not(
    server: GitServer, settings: Settings, model: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", place)
        tree = fetch(server.url("model.git"), None, settings)
        tree.close()
        with pytest.raises(GitError):
            fetch(server.url("model.git"), "nope", settings)
        assert list(Path(place).iterdir()) == []


def test_git_runs_without_our_rights_and_our_environment(
    server: GitServer, settings: Settings, model: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        (Path(place) / "seen").mkdir(mode=0o777)
        (Path(place) / "seen").chmod(0o777)
        spy = Path(place) / "git"
        seen = f"id -u >> {place}/seen/uid; env >> {place}/seen/env"
        spy.write_text(f'#!/bin/sh\n[ "$1" = version ] || {{ {seen}; }}\nexec /usr/bin/git "$@"\n')
        spy.chmod(0o755)
        monkeypatch.setattr("services.snapshots.git_process._PATH", f"{place}:/usr/bin:/bin")
        monkeypatch.setenv("GRADPROOF_SECRET_KEY", "do-not-leak")
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("GIT_SSL_NO_VERIFY", "1")
        tree = fetch(server.url("model.git"), None, settings)
        tree.close()
        uids = set((Path(place) / "seen" / "uid").read_text().split())
        environment = (Path(place) / "seen" / "env").read_text()
    expected = settings.sandbox_uid_base - 1 if os.geteuid() == 0 else os.geteuid()
    assert uids == {str(expected)}
    assert "do-not-leak" not in environment
    assert "proxy" not in environment
    assert "NO_VERIFY" not in environment


def test_a_machine_without_git_says_so(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("services.snapshots.git_process._PATH", str(tmp_path))
    with pytest.raises(GitUnavailableError, match="is not installed") as caught:
        fetch("https://127.0.0.1/a", None, settings)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("version", ["git version 2.37.9", "git version 1.8.3.1", "something else"])
def test_a_git_that_would_pass_over_the_walls_is_not_used(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    (tmp_path / "git").write_text(f"#!/bin/sh\necho {version}\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setattr("services.snapshots.git_process._PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(GitUnavailableError, match=r"is too old: fetching a repository safely needs 2\.38"):
        fetch("https://127.0.0.1/a", None, settings)


def test_the_place_where_git_works_is_closed_to_others(
    server: GitServer, settings: Settings, model: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", place)

        def resolver(_host: str, _port: int) -> list[str]:
            return ["127.0.0.1"]

        original = os.chown

        def chown(path: Path, uid: int, gid: int) -> None:
            original(path, uid, gid)
            modes.append(stat.S_IMODE(path.stat().st_mode))

        monkeypatch.setattr(os, "chown", chown)
        tree = fetch(server.url("model.git", HOST_NAME), None, settings, resolver=resolver)
        tree.close()
    assert modes == ([0o700] if os.geteuid() == 0 else [])
