"""Runs git so that neither the repository, the server nor the machine's configuration can make it do anything else.

Every command gets an empty environment, no configuration but ours, no protocol but https, no redirects, no
credentials but those handed in, no hooks, no file-system monitor, a process group of its own that is killed at the
deadline, and limits on memory and on what it may write; with root's rights in hand, it runs under a uid without any.
This module must not know what is fetched.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Final

from services.snapshots.errors import (
    GitAccessError,
    GitCancelledError,
    GitCertificateError,
    GitError,
    GitObjectsError,
    GitRedirectError,
    GitRefNotFoundError,
    GitTimeoutError,
    GitTooLargeError,
    GitUnavailableError,
    GitUnreachableError,
)
from services.snapshots.limits import MB, Deadline, size_text
from services.snapshots.paths import shown

_MINIMUM_VERSION: Final = (2, 38)  # http.curloptResolve came with 2.37, safe.bareRepository with 2.38
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_MEMORY: Final = 2048 * MB  # address space; fetching torchvision's tree takes 300 MB of it
_SMALL_OUTPUT: Final = 16 * MB  # a listing of 20,000 files, or the refs of a very large repository
_ERROR_TAIL: Final = 2000
_LOOK_S: Final = 0.2  # how often a running command is asked whether anybody still waits for it

_ENVIRONMENT: Final = {
    "PATH": _PATH,
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ALLOW_PROTOCOL": "https",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_SSH_COMMAND": "/bin/false",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}

_CONFIGURATION: Final = {
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    "http.followRedirects": "false",
    "http.sslVerify": "true",
    "http.proxy": "",
    "http.lowSpeedLimit": "1000",  # bytes a second, for as long as
    "http.lowSpeedTime": "30",  # seconds: a server that dribbles is given up
    "credential.helper": "",
    "core.askPass": "",
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.symlinks": "false",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.bigFileThreshold": "16m",  # larger blobs are streamed to disk instead of held in memory
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "safe.bareRepository": "explicit",
    "fetch.fsckObjects": "true",
    "transfer.fsckObjects": "true",
    "transfer.bundleURI": "false",
    "transfer.credentialsInUrl": "die",
    "fetch.unpackLimit": "1",  # one pack, so that one limit bounds it
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "pack.threads": "1",
    "gc.auto": "0",
    "maintenance.auto": "false",
}

_TOO_LARGE: Final = re.compile(r"File too large|out of memory|memory exhausted", re.IGNORECASE)

# git has no error codes: the causes that a person can act on are told by git's own English (LC_ALL=C).
_CAUSES: Final[tuple[tuple[re.Pattern[str], type[GitError], str], ...]] = (
    (
        re.compile(r"not our ref|find remote ref|unadvertised object"),
        GitRefNotFoundError,
        "the repository has no such commit, or does not give it out",
    ),
    (
        re.compile(r"returned error: 30\d|redirect", re.IGNORECASE),
        GitRedirectError,
        "the server redirects elsewhere, which is not followed: give the address that it redirects to",
    ),
    (
        re.compile(r"could not read Username|Authentication failed|returned error: 40[134]|not found|HTTP 40[134]"),
        GitAccessError,
        "the repository does not exist, or is not public",
    ),
    (
        re.compile(r"certificate|handshake|SSL_connect", re.IGNORECASE),
        GitCertificateError,
        "the server's certificate is not trusted",
    ),
    (
        re.compile(
            r"Could not resolve|Failed to connect|Connection (refused|reset|timed out)|Couldn't connect|"
            r"Operation too slow|Recv failure|recv error|RPC failed|returned error: 5\d\d|Empty reply|"
            r"the remote end hung up|not valid: is this a git repository|invalid server response"
        ),
        GitUnreachableError,
        "there is no git server that answers at that address",
    ),
)


@dataclass(frozen=True, slots=True)
class GitProcess:
    """Where and as whom git runs. `uid` is None without root's rights: then it runs as we do.

    `cancelled` is asked five times a second whether nobody waits for the fetch any more. `secrets` are variables of
    git's environment, where no other uid reads them: arguments are shown to everybody, and so are messages.
    """

    directory: Path
    uid: int | None
    deadline: Deadline
    seconds: float
    max_bytes: int
    options: tuple[str, ...] = ()
    cancelled: Callable[[], bool] = lambda: False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def require_wanted(self) -> None:
        """Raise `GitCancelledError` if nobody waits for the fetch any more."""
        if self.cancelled():
            raise GitCancelledError("the fetch was cancelled")

    def small(self, *arguments: str) -> bytes:
        """Run one command and give its output, of at most 16 MB."""
        with self.run(*arguments, limit=_SMALL_OUTPUT) as output:
            return output.read()

    def run(self, *arguments: str, limit: int | None = None, stdin: IO[bytes] | None = None) -> IO[bytes]:
        """Run one command; its output, in a temporary file at its start.

        `limit` bounds the bytes of every file that it writes (default: `max_bytes`). Raises the kind of `GitError`
        that the command's own words tell, `GitTimeoutError`, or `GitCancelledError`.
        """
        output: IO[bytes] = tempfile.TemporaryFile(prefix="gradproof-git-")  # noqa: SIM115
        try:
            with tempfile.TemporaryFile(prefix="gradproof-git-") as errors:
                bound = limit or self.max_bytes
                code = self._wait(self._start(arguments, bound, stdin, output, errors))
                _check(code, bound, errors)
        except BaseException:
            output.close()
            raise
        output.seek(0)
        return output

    def _start(
        self, arguments: Sequence[str], limit: int, stdin: IO[bytes] | None, output: IO[bytes], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        configuration = [part for key, value in _CONFIGURATION.items() for part in ("-c", f"{key}={value}")]
        command = [
            _tool("prlimit"),
            f"--fsize={limit}",
            f"--as={_MEMORY}",
            "--core=0",
            "--",
            _git(),
            *configuration,
            *self.options,
            *arguments,
        ]
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env={
                **_ENVIRONMENT,
                **self.secrets,
                "TMPDIR": str(self.directory),
                "GIT_CEILING_DIRECTORIES": str(self.directory),
            },
            stdin=stdin or subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            # Python ignores SIGXFSZ; git inherits that, and says "File too large" instead of dying without a word.
            restore_signals=False,
            user=self.uid,
            group=self.uid,
            extra_groups=None if self.uid is None else [],
            umask=0o077,
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status. Whatever the command left running in its process group ends with it."""
        descriptor = os.pidfd_open(process.pid)
        ended = False
        try:
            while not (ended or self.deadline.expired):
                self.require_wanted()
                ended = bool(select.select([descriptor], [], [], min(_LOOK_S, self.deadline.remaining))[0])
        finally:
            os.close(descriptor)
            # Before the process is reaped: until then its number, and so the group's, can't belong to anybody else.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        if not ended:
            raise GitTimeoutError(f"the fetch was not done within {self.seconds:g} seconds", limit=self.seconds)
        return code


def _check(code: int, limit: int, errors: IO[bytes]) -> None:
    """Raise what a command's exit status and its own words tell, if it failed."""
    if code == 0:
        return
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _ERROR_TAIL))
    text = errors.read().decode("utf-8", "replace")
    said = shown(" / ".join(line.strip() for line in text.splitlines() if line.strip()), limit=600)
    if _TOO_LARGE.search(text):
        raise GitTooLargeError(f"the repository brings more than {size_text(limit)}", limit=limit, git=said)
    for pattern, kind, sentence in _CAUSES:
        if pattern.search(text):
            raise kind(sentence, git=said)
    raise GitObjectsError(f"git failed: {said}", git=said, code=code)


def _git() -> str:
    """The git to run. Older versions pass over the settings that pin the address and refuse embedded repositories."""
    found = _tool("git")
    version = _version(found)
    if version < _MINIMUM_VERSION:
        raise GitUnavailableError(
            f"git {'.'.join(map(str, version))} is too old: fetching a repository safely needs "
            f"{'.'.join(map(str, _MINIMUM_VERSION))}",
            tool="git",
        )
    return found


@lru_cache(maxsize=8)
def _version(git: str) -> tuple[int, ...]:
    command = [git, "version"]
    said = subprocess.run(command, cwd="/", env=_ENVIRONMENT, stdout=subprocess.PIPE, check=False).stdout.decode()
    numbers = re.search(r"version (\d+)\.(\d+)", said)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


def _tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise GitUnavailableError(f"{name} is not installed: fetching a repository needs it", tool=name)
    return found
