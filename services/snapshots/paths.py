"""Which names a file of a snapshot may have, and which files are never kept.

Pure functions over text: this module must not touch a file system.

Accepted are relative POSIX paths that mean the same file on every file system: no `.` or `..` part, no backslash,
no control character, nothing longer than file systems take. Names in any script are fine, so are spaces. Characters
that reorder or break a line of text (bidirectional controls, line separators) are refused with the control
characters: a report could not show such a name truthfully.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from services.snapshots.errors import PathAbsoluteError, PathRefusedError, PathTraversalError

MAX_PART_BYTES: Final = 240  # file systems take 255; the rest is for suffixes that tools add
MAX_PATH_BYTES: Final = 1024  # PATH_MAX is 4096 on Linux and 1024 on macOS, with the store's own path in front
MAX_DEPTH: Final = 64
_DRIVE: Final = re.compile(r"[A-Za-z]:")  # `C:x.py` is elsewhere on Windows

# UAX #9 explicit formatting characters, the implicit marks, and the Arabic letter mark.
_BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_REFUSED_CHARACTERS: Final = {"\\": "a backslash", "\0": "a NUL character"}
_REFUSED_CATEGORIES: Final = {
    "Cc": "a control character",
    "Zl": "a control character",
    "Zp": "a control character",
    "Cs": "bytes that are not UTF-8",
}

_VERSION_CONTROL: Final = frozenset({".git", ".hg", ".svn", ".bzr", "cvs"})
_CACHES: Final = frozenset(
    {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".eggs"}
)
_OF_THE_SYSTEM: Final = frozenset({"__macosx", ".ds_store", "thumbs.db"})
_ENVIRONMENTS: Final = frozenset({"node_modules", "site-packages", "dist-packages", ".tox", ".nox"})

VIRTUAL_ENVIRONMENT_MARK: Final = "pyvenv.cfg"

VERSION_CONTROL: Final = "version control"
CACHE: Final = "cache"
ENVIRONMENT: Final = "installed packages"
SYSTEM: Final = "file of an operating system"
COMPILED: Final = "compiled Python"
TOO_LARGE: Final = "larger than a kept file may be"
SYMLINK: Final = "symbolic link"
SPECIAL: Final = "not a regular file"
SUBMODULE: Final = "submodule"
UNUSABLE_NAME: Final = "unusable name"
UNREADABLE: Final = "unreadable"


def shown(name: str, limit: int = 160) -> str:
    """`name` for a message: what can't be printed truthfully is escaped, and the middle of a long name is cut."""
    text = "".join(
        character
        if character.isprintable() and character not in _BIDIRECTIONAL and character != "\\"
        else character.encode("unicode_escape").decode("ascii")
        for character in (name if len(name) <= limit else f"{name[: limit // 2]}…{name[-limit // 2 :]}")
    )
    return text or "(empty)"


def check_path(name: str) -> str:
    """The accepted form of a relative POSIX path: without a leading `./` and a trailing `/`.

    "" stands for the top itself. Raises `PathRefusedError` or one of its kinds.
    """
    if name.startswith("/") or _DRIVE.match(name.lstrip("./")):
        raise PathAbsoluteError(f"the name is absolute: {shown(name)}", member=shown(name), reason="absolute")
    path = name
    while path.startswith("./"):
        path = path[2:]
    path = path.removesuffix("/")
    if path in {"", "."}:
        return ""
    parts = path.split("/")
    if ".." in parts:
        raise PathTraversalError(f"the name has a '..' part: {shown(name)}", member=shown(name), reason="'..' part")
    reason = _refusal(path, parts)
    if reason is not None:
        raise PathRefusedError(f"the name has {reason}: {shown(name)}", member=shown(name), reason=reason)
    return path


def _refusal(path: str, parts: list[str]) -> str | None:
    reasons = (_character_refusal(character) for character in path)
    return next((reason for reason in reasons if reason is not None), None) or _shape_refusal(path, parts)


def _character_refusal(character: str) -> str | None:
    if character in _BIDIRECTIONAL:
        return "a bidirectional control character"
    return _REFUSED_CHARACTERS.get(character) or _REFUSED_CATEGORIES.get(unicodedata.category(character))


def _shape_refusal(path: str, parts: list[str]) -> str | None:
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"more than {MAX_PATH_BYTES} bytes"
    if len(parts) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} parts"
    if any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"a part of more than {MAX_PART_BYTES} bytes"
    return "an empty or '.' part" if {"", "."} & set(parts) else None


def collision_key(path: str) -> str:
    """What two paths share when a file system that ignores case or normalises Unicode takes them for one."""
    if path.isascii():
        return path.lower()
    # "Canonical caseless matching", definition D145 of the Unicode standard.
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def directory_left_out(name: str) -> str | None:
    """Why a directory of this name is never part of a snapshot, or None. `name` is one part."""
    folded = name.casefold()
    if folded in _VERSION_CONTROL:
        return VERSION_CONTROL
    if folded in _CACHES:
        return CACHE
    if folded in _OF_THE_SYSTEM:
        return SYSTEM
    return ENVIRONMENT if folded in _ENVIRONMENTS else None


def file_left_out(path: str) -> str | None:
    """Why the file at this accepted path is never part of a snapshot, or None.

    Everything else is kept, data files included: submitted code may read them when it is imported.
    """
    *directories, name = path.split("/")
    for directory in directories:
        reason = directory_left_out(directory)
        if reason is not None:
            return reason
    if name.casefold() == ".git":
        return VERSION_CONTROL  # of a submodule or a worktree: a file that points elsewhere
    if name.casefold() in _OF_THE_SYSTEM:
        return SYSTEM
    return COMPILED if name.endswith((".pyc", ".pyo")) else None


def is_python(path: str) -> bool:
    """Whether the file is Python source."""
    return path.endswith((".py", ".pyi"))
