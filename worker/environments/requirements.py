"""What a repository says it needs, read as text: nothing is executed, and what can't be had as a wheel is refused.

This module must not know how packages are installed.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_MOST_BYTES: Final = 256 * 1024
_MOST_REQUIREMENTS: Final = 200
_LONGEST: Final = 300
# requirements.txt, requirements-extra.txt; what is needed for tests, documentation and the like is not what runs.
_FILE: Final = re.compile(r"requirements(?:[-_.](\w+))?\.txt")
_NOT_FOR_RUNNING: Final = frozenset(
    {"dev", "test", "tests", "testing", "doc", "docs", "lint", "ci", "build", "release"}
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A requirement that is not installed, as it was written, where, and why."""

    text: str
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requirements of a repository, normalised and sorted, and those that were refused."""

    requirements: tuple[str, ...]
    refused: tuple[Refused, ...] = field(default=())


def read_requirements(root: Path, extras: Sequence[str] = ()) -> Wanted:
    """What the files at the top of a repository ask for; `extras` are the optional groups that are wanted as well.

    The first kind of file that says anything counts: `pyproject.toml`, `setup.cfg`, else `requirements*.txt`.
    """
    refused: list[Refused] = []
    for source in (_of_pyproject, _of_setup_cfg, _of_text_files):
        listed = list(source(root, extras, refused))
        if listed:
            break
    wanted: dict[str, None] = {}
    for text, place in listed:
        requirement = _accepted(text, place, refused)
        if requirement is not None:
            wanted[requirement] = None
            if len(wanted) > _MOST_REQUIREMENTS:
                refused.append(Refused("…", place, f"there are more than {_MOST_REQUIREMENTS} requirements"))
                break
    return Wanted(tuple(sorted(wanted)[:_MOST_REQUIREMENTS]), tuple(refused[:_MOST_REQUIREMENTS]))


_Listed = Iterator[tuple[str, str]]


def _of_pyproject(root: Path, extras: Sequence[str], refused: list[Refused]) -> _Listed:
    text = _text(root / "pyproject.toml")
    if text is None:
        return
    try:
        project = tomllib.loads(text).get("project")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        refused.append(Refused("", "pyproject.toml", f"not valid TOML: {str(error)[:_LONGEST]}"))
        return
    if not isinstance(project, dict):
        return
    yield from _strings(project.get("dependencies"), "pyproject.toml")
    optional = project.get("optional-dependencies")
    for extra in extras:
        if isinstance(optional, dict):
            yield from _strings(optional.get(extra), f"pyproject.toml [{extra}]")


def _of_setup_cfg(root: Path, extras: Sequence[str], refused: list[Refused]) -> _Listed:
    text = _text(root / "setup.cfg")
    if text is None:
        return
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error as error:
        refused.append(Refused("", "setup.cfg", f"not readable: {str(error)[:_LONGEST]}"))
        return
    sections = [("options", "install_requires"), *(("options.extras_require", extra) for extra in extras)]
    for section, key in sections:
        for line in parser.get(section, key, fallback="").splitlines():
            if line.strip():
                yield line.strip(), "setup.cfg"


def _of_text_files(root: Path, extras: Sequence[str], _refused: list[Refused]) -> _Listed:
    for file in sorted(root.glob("requirements*.txt")):
        match = _FILE.fullmatch(file.name)
        kind = match.group(1) if match else ""
        if match is None or (kind and kind not in extras and kind.lower() in _NOT_FOR_RUNNING):
            continue
        # A line that ends in a backslash goes on: hashes stand so, below a requirement.
        text = (_text(file) or "").replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), start=1):
            bare = re.sub(r"(^|\s)#.*", "", line).strip()
            if bare:
                yield re.sub(r"\s--hash=\S+", "", bare), f"{file.name}:{number}"


def _text(file: Path) -> str | None:
    """The text of a plain file of the snapshot; None for one that is missing, too large or leads elsewhere."""
    try:
        if file.is_symlink() or file.stat().st_size > _MOST_BYTES:
            return None
        return file.read_text("utf-8", "replace")
    except OSError:
        return None


def _strings(value: Any, place: str) -> _Listed:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, str):
            yield item.strip(), place


def _accepted(text: str, place: str, refused: list[Refused]) -> str | None:
    reason = _against(text)
    if not reason:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = f"not a requirement: {str(error).splitlines()[0]}"
        else:
            if requirement.url is None:
                requirement.name = canonicalize_name(requirement.name)
                return str(requirement) if _applies(requirement) else None
            reason = "a URL: only wheels of the package index are installed"
    refused.append(Refused(text[:_LONGEST], place, reason[:_LONGEST]))
    return None


def _against(text: str) -> str:
    if len(text) > _LONGEST:
        return "longer than any requirement"
    if text.startswith("-"):
        return "an option: only names of packages are read"
    if re.match(r"(?:[a-z+]+:)?//|git\+|file:", text) or re.search(r"\s@\s", text):
        return "a URL: only wheels of the package index are installed"
    if text.startswith((".", "/", "~", "\\")) or text.endswith((".whl", ".tar.gz", ".zip")):
        return "a path: only wheels of the package index are installed"
    return ""


def _applies(requirement: Requirement) -> bool:
    """Whether its marker holds here; one about an extra that nobody asked for does not."""
    try:
        return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    except UndefinedEnvironmentName:
        return False
