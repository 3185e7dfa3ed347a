"""Bare git repositories on disk, written and asked by git itself. Knows nothing of forges."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tools.fake_forge.diffs import FileDiff, Hunk, parse_hunks

Files = Mapping[str, str | bytes | None]

_NOBODY: Final = "0" * 40
_STATUSES: Final = {"A": "added", "D": "removed", "M": "modified", "R": "renamed", "C": "added", "T": "changed"}


@dataclass(frozen=True)
class Commit:
    """One commit as git tells of it."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    author: str
    email: str
    at: str
    message: str


class GitRepository:
    """One bare repository. Commits are made from dictionaries of files, without a working tree.

    What is asked of commits is remembered: they never change, and a git process takes some 5 ms.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[str, ...], Any] = {}

    @classmethod
    def create(cls, path: Path, default_branch: str = "main") -> GitRepository:
        """A new, empty one."""
        # What `git init --bare` makes, without a process.
        for directory in ("objects", "refs"):
            path.joinpath(directory).mkdir(parents=True)
        path.joinpath("HEAD").write_text(f"ref: refs/heads/{default_branch}\n", encoding="utf-8")
        path.joinpath("config").write_text(_CONFIGURATION, encoding="utf-8")
        return cls(path)

    def commit(self, ref: str, files: Files, message: str, *, parent: str | None, author: str, at: datetime) -> str:
        """Put a commit on `ref`: the parent's files with these changes (None removes a file). Its name."""
        person = f"{author} <{author}@users.example> {int(at.timestamp())} +0000"
        parts = [f"commit {ref}\nmark :1\nauthor {person}\ncommitter {person}\n".encode(), _data(message)]
        if parent:
            parts.append(f"from {parent}\n".encode())
        for path, content in files.items():
            quoted = _quoted(path)
            if content is None:
                parts.append(b"D " + quoted + b"\n")
            else:
                parts.append(b"M 100644 inline " + quoted + b"\n" + _data(content))
        parts.append(b"\nget-mark :1\ndone\n")
        return self._git("fast-import", "--quiet", "--done", "--force", input=b"".join(parts)).decode().strip()

    def merge(self, base: str, head: str, message: str, *, author: str, at: datetime) -> str:
        """A merge commit of two commits, on no branch. Raises `RuntimeError` when they don't merge cleanly."""
        tree = self._git("merge-tree", "--write-tree", base, head).decode().split()[0]
        stamp = f"{int(at.timestamp())} +0000"
        who = {"NAME": author, "EMAIL": f"{author}@users.example", "DATE": stamp}
        people = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
        arguments = ("commit-tree", tree, "-p", base, "-p", head, "-m", message)
        return self._git(*arguments, environment=people).decode().strip()

    def set_ref(self, ref: str, sha: str | None) -> None:
        """Point a ref at a commit, or remove it."""
        if sha is None:
            self._git("update-ref", "-d", ref)
        else:
            self._git("update-ref", ref, sha)

    def fetch(self, other: GitRepository, sha: str, ref: str) -> None:
        """Bring a commit of another repository here, as `ref`."""
        self._git("fetch", "--quiet", "--no-tags", str(other.path), f"+{sha}:{ref}")

    def sha(self, name: str) -> str | None:
        """The commit that a ref, a branch or an abbreviated commit name stands for."""
        try:
            found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except RuntimeError:
            return None
        return found.decode().strip()

    def read(self, commit: str, path: str) -> bytes:
        """A file's content. Raises `RuntimeError` if it isn't there."""
        return self._git("cat-file", "blob", f"{commit}:{path}")

    def commit_info(self, sha: str) -> Commit:
        """What is known of one commit."""
        return self._remembered(self._commit_info, sha)  # type: ignore[no-any-return]

    def _commit_info(self, sha: str) -> Commit:
        form = "%H%n%T%n%P%n%an%n%ae%n%aI%n%B"
        lines = self._git("show", "--no-patch", f"--format={form}", sha).decode("utf-8", "replace").split("\n")
        author, email, at = lines[3:6]
        message = "\n".join(lines[6:]).strip()
        return Commit(lines[0], lines[1], tuple(lines[2].split()), author, email, at, message)

    def merge_base(self, one: str, other: str) -> str | None:
        """The best common ancestor of two commits; None if the histories have nothing in common."""
        return self._remembered(self._merge_base, one, other)  # type: ignore[no-any-return]

    def _merge_base(self, one: str, other: str) -> str | None:
        try:
            return self._git("merge-base", one, other).decode().strip()
        except RuntimeError:
            return None

    def commits(self, since: str, until: str) -> list[str]:
        """The commits that are in `until` and not in `since`, oldest first."""
        return list(self._remembered(self._commits, since, until))

    def _commits(self, since: str, until: str) -> list[str]:
        return self._git("rev-list", "--reverse", "--topo-order", f"{since}..{until}").decode().split()

    def diff(self, old: str, new: str) -> list[FileDiff]:
        """What changed between two commits, file by file, with renames found."""
        return list(self._remembered(self._diff, old, new))

    def _diff(self, old: str, new: str) -> list[FileDiff]:
        raw = self._git("diff", "--raw", "-z", "--no-abbrev", "-M", old, new).decode("utf-8", "replace")
        text = self._git("diff", "-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", old, new)
        sections = iter(text.decode("utf-8", "replace").split("\ndiff --git "))
        fields, found = iter(raw.split("\0")), []
        for head in fields:
            if not head:
                continue
            _, _, old_blob, new_blob, status = head.split()
            path, previous = next(fields), None
            if status[0] in "RC":
                previous, path = path, next(fields)
            section = next(sections, "")
            if status[0] == "T":
                section = next(sections, "")  # a change of the kind is told as a removal and an addition
            _, at, hunks = section.partition("\n@@ ")
            patch = "@@ " + hunks.removesuffix("\n") if at else None
            blob = old_blob if new_blob == _NOBODY else new_blob
            kind = _STATUSES[status[0]]
            found.append(FileDiff(path, previous, kind, blob, patch, parse_hunks(patch or "")))  # type: ignore[arg-type]
        return found

    def line_moves(self, path: str, old: str, new: str) -> tuple[Hunk, ...] | None:
        """How the lines of one file moved between two commits; None if the file is gone."""
        return self._remembered(self._line_moves, path, old, new)  # type: ignore[no-any-return]

    def _line_moves(self, path: str, old: str, new: str) -> tuple[Hunk, ...] | None:
        if self.sha(new) is None or not self._git("ls-tree", new, "--", path):
            return None
        text = self._git("diff", "-p", "-U0", "--no-renames", "--no-color", "--no-ext-diff", old, new, "--", path)
        _, at, hunks = text.decode("utf-8", "replace").partition("\n@@ ")
        return parse_hunks("@@ " + hunks) if at else ()

    def _remembered(self, ask: Callable[..., Any], *commits: str) -> Any:
        key = (ask.__name__, *commits)
        if key not in self._known:
            self._known[key] = ask(*commits)
        return self._known[key]

    def _git(self, *arguments: str, input: bytes | None = None, environment: Mapping[str, str] | None = None) -> bytes:  # noqa: A002
        done = subprocess.run(
            ["git", "--git-dir", str(self.path), *arguments],
            check=False,
            capture_output=True,
            input=input,
            env=_ENVIRONMENT | dict(environment or {}),
        )
        if done.returncode:
            raise RuntimeError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


# Any commit may be asked for by its name, as on GitHub; also those that a force-push left behind.
_CONFIGURATION: Final = """\
[core]
\trepositoryformatversion = 0
\tbare = true
[uploadpack]
\tallowAnySHA1InWant = true
[gc]
\tauto = 0
"""
_ENVIRONMENT: Final = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "LC_ALL": "C.UTF-8",
}


def _data(content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return f"data {len(raw)}\n".encode() + raw + b"\n"


def _quoted(path: str) -> bytes:
    """A path for fast-import: quoted, with octal escapes, so that any name is possible."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in path.encode()
    )
    return f'"{escaped}"'.encode()
