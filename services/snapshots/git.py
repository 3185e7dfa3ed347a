"""Fetches one commit of a public repository over https and reads it into a tree, without ever checking it out.

The ref is resolved to a commit first, and that commit is fetched and recorded: what is analysed is what the name meant
at one moment. Files are read as objects (`ls-tree`, `cat-file`), so neither links, attributes, filters, hooks nor names
of the repository reach a file system. Symbolic links and submodules are left out and counted.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

from services.settings import Settings
from services.snapshots.building import TreeBuilder
from services.snapshots.errors import (
    GitObjectsError,
    GitRedirectError,
    GitRefError,
    GitRefNotFoundError,
    GitUnavailableError,
    PathRefusedError,
)
from services.snapshots.git_process import GitProcess
from services.snapshots.limits import DEFAULT_LIMITS, MB, Deadline, Limits
from services.snapshots.model import Author, Source, SourceTree
from services.snapshots.paths import SUBMODULE, SYMLINK, UNUSABLE_NAME, shown
from services.snapshots.urls import GitUrl, ResolvedUrl, Resolver, parse_git_url, resolve

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MAX_REF: Final = 255
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
# What `git check-ref-format` refuses, and a leading `-`.
_BAD_REF: Final = re.compile(r"^[-/]|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|(?:^|/)\.|\.lock(?:/|$)|[/.]$|^@$")
_FILE_MODES: Final = frozenset({b"100644", b"100755", b"100664"})
_FETCH: Final = (
    "fetch",
    "--quiet",
    "--depth=1",
    "--no-tags",
    "--no-recurse-submodules",
    "--no-write-fetch-head",
    "--no-auto-maintenance",
)
_MAX_LISTING: Final = 64 * MB  # 500,000 files; the tree builder counts them
_AUTHOR: Final = re.compile(rb"author (.*?) ?<([^<>]*)> \d+ [+-]\d+")
_LONGEST_NAME: Final = 100
_LONGEST_EMAIL: Final = 254  # RFC 5321: what a server takes
_LINK_MODE: Final = b"120000"
_SUBMODULE_MODE: Final = b"160000"


def fetch(
    url: str,
    ref: str | None,
    settings: Settings,
    *,
    limits: Limits = DEFAULT_LIMITS,
    resolver: Resolver | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    headers: Mapping[str, str] = NO_HEADERS,
) -> SourceTree:
    """The tree of one commit; its source tells the commit's full name.

    `ref` is a branch, a tag, a full ref name (`refs/pull/7/head`), a full commit name, or None for the default
    branch; a branch is preferred to a tag of the same name. `resolver` maps host and port to addresses (default: the
    system's). `cancelled` is asked five times a second whether to stop, which raises `GitCancelledError` and leaves
    nothing behind. `headers` are sent along, to this host alone: the credential for a repository that is not public;
    they get into no argument, message or log. Raises a kind of `GitError`; `TooManyFilesError`, `TreeTooLargeError`,
    `PythonFileTooLargeError` or `EmptyTreeError` for the commit's content; `GitUnavailableError` when this machine
    can't fetch at all.
    """
    wanted = _check_ref(ref)
    resolved = resolve(parse_git_url(url, settings), settings, resolver)
    with _workplace(settings, resolved, limits, cancelled, headers) as process:
        address, commit = _find(process, resolved.url, wanted)
        repository = _Repository(process, commit)
        repository.fetch(address)
        builder = TreeBuilder(limits)
        try:
            repository.read(builder)
            process.require_wanted()
            source = Source("git", url=str(address), commit=commit, author=repository.author())
            return builder.finish(source)
        except BaseException:
            builder.close()
            raise


def _check_ref(ref: str | None) -> str | None:
    if ref is not None and (not ref or len(ref.encode("utf-8", "replace")) > _MAX_REF or _BAD_REF.search(ref)):
        raise GitRefError(f"not a valid ref: {shown(ref)}", ref=shown(ref))
    return ref


@contextmanager
def _workplace(
    settings: Settings,
    resolved: ResolvedUrl,
    limits: Limits,
    cancelled: Callable[[], bool],
    headers: Mapping[str, str],
) -> Iterator[GitProcess]:
    """A directory of git's own, owned by the uid that git runs as."""
    # Below the uids of the sandboxes: a fetch and a sandboxed job never share one.
    uid = settings.sandbox_uid_base - 1 if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="gradproof-git-"))
    try:
        if uid is not None:
            _hand_over(directory, uid)
        options = ["-c", f"http.curloptResolve={_pin(resolved)}"] if not resolved.url.is_address else []
        if settings.git_ca_file is not None and resolved.trusted:
            # A copy, since git's uid need not be able to read the operator's file.
            authority = directory / "authority.pem"
            shutil.copyfile(settings.git_ca_file, authority)
            authority.chmod(0o444)
            options += ["-c", f"http.sslCAInfo={authority}"]
        seconds = settings.git_wall.total_seconds()
        yield GitProcess(
            directory,
            uid,
            Deadline(seconds),
            seconds,
            limits.total,
            tuple(options),
            cancelled,
            _sent_to(resolved.url, headers),
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sent_to(url: GitUrl, headers: Mapping[str, str]) -> dict[str, str]:
    """Configuration in the environment that makes git send headers to one host."""
    origin = str(replace(url, path="/"))
    sent = {"GIT_CONFIG_COUNT": str(len(headers))} if headers else {}
    for number, (name, value) in enumerate(headers.items()):
        if not (name + value).isprintable():
            raise ValueError("a header has a character that would end it")
        sent |= {
            f"GIT_CONFIG_KEY_{number}": f"http.{origin}.extraHeader",
            f"GIT_CONFIG_VALUE_{number}": f"{name}: {value}",
        }
    return sent


def _hand_over(directory: Path, uid: int) -> None:
    try:
        os.chown(directory, uid, uid)
    except OSError as error:
        raise GitUnavailableError(
            f"git can't be given the uid {uid}, just below GRADPROOF_SANDBOX_UID_BASE: {error.strerror}", uid=uid
        ) from error


def _pin(resolved: ResolvedUrl) -> str:
    """curl's own form: `host:port:address[,address]`."""
    addresses = ",".join(f"[{address}]" if address.version == 6 else str(address) for address in resolved.addresses)
    return f"{resolved.url.host}:{resolved.url.port}:{addresses}"


def _find(process: GitProcess, url: GitUrl, ref: str | None) -> tuple[GitUrl, str]:
    """The URL that answers, and the commit that the ref names.

    Some forges serve `name.git` and redirect `name` there: since redirects are not followed, that one is tried.
    """
    try:
        return url, _resolve_ref(process, url, ref)
    except GitRedirectError:
        if url.path.endswith(".git"):
            raise
    with_suffix = replace(url, path=f"{url.path}.git")
    return with_suffix, _resolve_ref(process, with_suffix, ref)


def _resolve_ref(process: GitProcess, url: GitUrl, ref: str | None) -> str:
    if ref is None:
        candidates = ["HEAD"]
    elif ref == "HEAD" or ref.startswith("refs/"):
        candidates = [f"{ref}^{{}}", ref]
    else:
        candidates = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}"]
    listing = process.small("ls-remote", "--quiet", "--", str(url), *candidates)
    found: dict[str, str] = {}
    for line in listing.decode("utf-8", "replace").splitlines():
        name, _, advertised = line.partition("\t")
        if _COMMIT.fullmatch(name):
            found.setdefault(advertised, name)
    for candidate in candidates:
        if candidate in found:
            return found[candidate]
    if ref is not None and _COMMIT.fullmatch(ref):
        return ref
    if ref is None:
        raise GitRefNotFoundError("the repository is empty: it has no default branch", ref=None)
    raise GitRefNotFoundError(
        f"the repository has no branch or tag {shown(ref)} (a commit needs its full name)", ref=shown(ref)
    )


@dataclass(frozen=True, slots=True)
class _Blob:
    path: str
    name: bytes
    size: int


class _Repository:
    """A bare repository that receives one commit."""

    def __init__(self, process: GitProcess, commit: str) -> None:
        self._process = process
        self._commit = commit
        self._directory = f"--git-dir={process.directory / 'repository'}"

    def fetch(self, url: GitUrl) -> None:
        object_format = "sha256" if len(self._commit) == 64 else "sha1"
        self._process.small(
            "init", "--quiet", "--bare", "--template=", f"--object-format={object_format}", "--", "repository"
        )
        try:
            self._process.run(self._directory, *_FETCH, "--", str(url), self._commit).close()
        except GitRefNotFoundError as error:
            raise GitRefNotFoundError(
                f"the repository has no commit {self._commit}, or does not give it out",
                ref=self._commit,
                **error.details,
            ) from error
        kind = self._process.small(self._directory, "cat-file", "-t", self._commit).strip()
        if kind != b"commit":
            raise GitObjectsError(f"{self._commit} is a {shown(kind.decode('ascii', 'replace'))}, not a commit")

    def author(self) -> Author | None:
        """Who wrote the commit, as it says; None if it says nothing that can be read."""
        header, _, _ = self._process.small(self._directory, "cat-file", "commit", self._commit).partition(b"\n\n")
        found = next((match for line in header.split(b"\n") if (match := _AUTHOR.fullmatch(line))), None)
        if found is None:
            return None
        name, email = (part.decode("utf-8", "replace").strip() for part in found.groups())
        return Author(shown(name or email, _LONGEST_NAME), email) if _is_sound(email) else None

    def read(self, builder: TreeBuilder) -> None:
        """Put every file of the commit into the tree."""
        blobs = list(self._blobs(builder))
        with tempfile.TemporaryFile(prefix="gradproof-git-") as names:
            names.writelines(blob.name + b"\n" for blob in blobs)
            names.seek(0)
            with self._process.run(self._directory, "cat-file", "--batch", stdin=names) as contents:
                for blob in blobs:
                    builder.add(blob.path, _content(contents, blob))

    def _blobs(self, builder: TreeBuilder) -> Iterator[_Blob]:
        with self._process.run(
            self._directory, "ls-tree", "-r", "-z", "-l", "--full-tree", self._commit, limit=_MAX_LISTING
        ) as output:
            listing = output.read()
        for line in listing.split(b"\0")[:-1]:
            entry, _, raw_path = line.partition(b"\t")
            mode, _, name, size = entry.split()
            if mode == _LINK_MODE:
                builder.leave_out(SYMLINK)
            elif mode == _SUBMODULE_MODE:
                builder.leave_out(SUBMODULE)
            elif mode not in _FILE_MODES:
                raise GitObjectsError(
                    f"a tree has an entry of the unknown mode {shown(mode.decode('ascii', 'replace'))}"
                )
            else:
                try:
                    path = builder.admit(raw_path.decode("utf-8", "surrogateescape"), int(size))
                except PathRefusedError:
                    builder.leave_out(UNUSABLE_NAME)
                    continue
                if path is not None:
                    yield _Blob(path, name, int(size))


def _is_sound(email: str) -> bool:
    """Whether it could be an address at all: no blank, nothing that a page or a header would have to escape."""
    return 0 < len(email) <= _LONGEST_EMAIL and email.isprintable() and " " not in email


def _content(contents: IO[bytes], blob: _Blob) -> bytes:
    """The next object of a `cat-file --batch` stream: a line with name, type and size, the bytes, a line feed."""
    header = contents.readline()
    data = contents.read(blob.size)
    if header != b"%s blob %d\n" % (blob.name, blob.size) or len(data) != blob.size or contents.read(1) != b"\n":
        raise GitObjectsError(f"the object of {shown(blob.path)} can't be read", member=shown(blob.path))
    return data
