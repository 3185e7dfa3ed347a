"""Writes declared targets into a configuration: what is there stays as it is, tables are added at its end.

What would be written is read back before it is, by the reader that everybody else uses: a file that it refuses is
never written. This module must not know where harnesses come from.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from services.configuration.errors import ConfigurationError
from services.configuration.model import MAX_TARGETS, TargetTable
from services.configuration.reading import MAX_BYTES, OWN_FILE, PYPROJECT, read_configuration
from services.problems import BadInputError

_HEADING: Final = "# How targets were built and called when they ran: `gradproof check --write-targets`."
# JSON's way to write a text is TOML's, but for this character.
_DELETE: Final = re.compile("\x7f")


class TargetsFileError(BadInputError):
    """Targets can't be written where they should be."""

    code = "targets-file"
    title = "The targets can't be written"


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the targets: `text` is the whole file; `left_out` could not be declared, or there was no room."""

    text: str
    added: tuple[str, ...]
    kept: tuple[str, ...]
    left_out: tuple[str, ...]


def configuration_file(directory: Path) -> Path:
    """The file of a directory that configures Gradproof, or that would."""
    if (directory / OWN_FILE).is_file() or not (directory / PYPROJECT).is_file():
        return directory / OWN_FILE
    return directory / PYPROJECT


def declarable(target: str, constructor: str | None, inputs: Sequence[str]) -> TargetTable | None:
    """A target as it may be declared; None if its harness is none that a configuration can hold."""
    try:
        return TargetTable(target=target, constructor=constructor, inputs=tuple(inputs))
    except ValidationError:
        return None


def targets_text(targets: Iterable[TargetTable], *, own_file: bool = False) -> str:
    """The targets as tables, for `gradproof.toml` (`own_file`) or `pyproject.toml`."""
    return "".join(_table(target, own_file=own_file) for target in targets)


def with_targets(file: Path, targets: Iterable[TargetTable]) -> Written:
    """The text of `file` with those of the targets that it does not declare yet. Nothing is written.

    Raises `TargetsFileError`, also for a file that is wrong already.
    """
    before = _read(file)
    declared = {target.target for target in _loaded(file, before)}
    new = [target for target in targets if target.target not in declared]
    own_file = file.name == OWN_FILE
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    text, added, left_out = before + gap + _HEADING + "\n", list[str](), list[str]()
    for target in new:
        table = _table(target, own_file=own_file)
        if len(declared) + len(added) >= MAX_TARGETS or len((text + table).encode()) > MAX_BYTES:
            left_out.append(target.target)
        else:
            text += table
            added.append(target.target)
    if not added:
        return Written(before, (), tuple(sorted(declared)), tuple(left_out))
    found = {target.target: target for target in _loaded(file, text)}
    for target in new:
        if target.target in added and (found[target.target].constructor, found[target.target].inputs) != (
            target.constructor, target.inputs,
        ):  # fmt: skip
            raise TargetsFileError(f"{file}: {target.target} would not be read as it was written")
    return Written(text, tuple(added), tuple(sorted(declared)), tuple(left_out))


def write(file: Path, text: str) -> None:
    """Replace the file at once, or not at all. Raises `TargetsFileError`."""
    place = file.resolve()
    draft = place.with_name(f".{place.name}.gradproof")
    try:
        draft.write_text(text, encoding="utf-8")
        if place.exists():
            shutil.copymode(place, draft)
        draft.replace(place)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise TargetsFileError(f"{file}: {error.strerror or error}", path=str(file)) from error


def _table(target: TargetTable, *, own_file: bool) -> str:
    lines = ["", "[[targets]]" if own_file else "[[tool.gradproof.targets]]", f"target = {_string(target.target)}"]
    if target.constructor is not None:
        lines.append(f"constructor = {_string(target.constructor)}")
    if target.inputs:
        lines += ["inputs = [", *(f"    {_string(expression)}," for expression in target.inputs), "]"]
    return "\n".join([*lines, ""])


def _string(text: str) -> str:
    return _DELETE.sub(r"\\u007F", json.dumps(text, ensure_ascii=False))


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise TargetsFileError(f"{file}: {said}", path=str(file)) from error


def _loaded(file: Path, text: str) -> Sequence[TargetTable]:
    """The targets that this text declares, in the place of the file."""
    name = OWN_FILE if file.name == OWN_FILE else PYPROJECT
    other = file.with_name(PYPROJECT if name == OWN_FILE else OWN_FILE)
    with tempfile.TemporaryDirectory(prefix="gradproof-targets-") as directory:
        Path(directory, name).write_bytes(text.encode())
        if other.is_file() and file.name in (OWN_FILE, PYPROJECT):
            shutil.copyfile(other, Path(directory, other.name))
        try:
            return read_configuration(Path(directory)).targets
        except ConfigurationError as error:
            raise TargetsFileError(f"{file} could not be read with targets added: {error.message}") from error
