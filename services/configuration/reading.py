"""Finds, reads and validates the configuration of a repository, and says line by line what is wrong with it."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from services.configuration.errors import MAX_MISTAKES, ConfigurationError, Mistake
from services.configuration.model import (
    Configuration,
    ConfigurationTable,
    DeclaredTarget,
    Gate,
    PathRules,
    Table,
    TargetTable,
)
from services.configuration.positions import Key, Positions, key_positions

PYPROJECT: Final = "pyproject.toml"
OWN_FILE: Final = "gradproof.toml"
_TABLE: Final = ("tool", "gradproof")
MAX_BYTES: Final = 256 * 1024
# tomllib takes time that grows with the square of the parts of a dotted key: 256 kB of them keep it busy for hours.
_MAX_LINE: Final = 8_000
_MAX_DOTS: Final = 100  # between two of = and , on one line, where a number has one and a version three
_MAX_SHOWN: Final = 80
_LINE_IN_MESSAGE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_TABLES: Final[dict[str, type[Table]]] = {"gate": Gate, "targets": TargetTable, "per_path": PathRules}


@dataclass(frozen=True, slots=True)
class _Document:
    """A parsed file: the table that is ours, the path of that table, and where its keys stand."""

    file: str
    table: dict[str, Any]
    positions: Positions
    path: tuple[str, ...]

    def line(self, location: Iterable[Key]) -> int:
        """The line of a key, or of the nearest table around it."""
        path = (*self.path, *location)
        for length in range(len(path), 0, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return 1

    def mistake(self, location: tuple[Key, ...], message: str) -> Mistake:
        return Mistake(self.line(location), _written((*self.path, *location)), message)


def read_configuration(
    root: Path, *, rules: Collection[str] | None = None, checks: Collection[str] | None = None
) -> Configuration:
    """The configuration of the repository at `root`; the defaults where there is none.

    `rules` (ids and names) and `checks` are those that exist: with them, others are refused. Raises
    `ConfigurationError` when a file can't be read or used, or when both files configure.
    """
    documents = [document for document in (_own(root), _pyproject(root)) if document is not None]
    if not documents:
        return Configuration()
    document = documents[0]
    if len(documents) > 1:
        place = documents[1].line(())
        raise ConfigurationError(
            PYPROJECT, [Mistake(place, _written(_TABLE), f"{OWN_FILE} configures as well: keep one of the two")]
        )
    try:
        table = ConfigurationTable.model_validate(document.table)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        first = sorted(details, key=lambda detail: document.line(detail["loc"]))[:MAX_MISTAKES]
        mistakes = [_explained(document, detail) for detail in first]
        raise ConfigurationError(document.file, mistakes, count=len(details)) from None
    mistakes = [*_unknown_rules(document, table, rules), *_unknown_checks(document, table, checks)]
    mistakes += _repeated_targets(document, table)
    if mistakes:
        raise ConfigurationError(document.file, mistakes)
    fields = {name: getattr(table, name) for name in ConfigurationTable.model_fields if name != "targets"}
    targets = tuple(
        DeclaredTarget(
            target=target.target,
            constructor=target.constructor,
            inputs=target.inputs,
            provenance=f"{document.file}:{document.line(('targets', index))}",
        )
        for index, target in enumerate(table.targets)
    )
    return Configuration(**fields, targets=targets, file=document.file)


def is_configured(root: Path) -> bool:
    """Whether a file at `root` configures Gradproof, be it right or wrong."""
    try:
        return _own(root) is not None or _pyproject(root) is not None
    except ConfigurationError:
        return True


def _own(root: Path) -> _Document | None:
    text = _text(root, OWN_FILE)
    return None if text is None else _Document(OWN_FILE, *_parsed(OWN_FILE, text), path=())


def _pyproject(root: Path) -> _Document | None:
    """The table in `pyproject.toml`. A file that does not name it is not even parsed: it is not ours to judge."""
    text = _text(root, PYPROJECT)
    if text is None or "gradproof" not in text:
        return None
    content, positions = _parsed(PYPROJECT, text)
    tool = content.get("tool")
    if not isinstance(tool, dict) or "gradproof" not in tool:
        return None
    table = tool["gradproof"]
    document = _Document(PYPROJECT, table, positions, path=_TABLE)
    if not isinstance(table, dict):
        raise ConfigurationError(PYPROJECT, [document.mistake((), "must be a table")])
    return document


def _text(root: Path, name: str) -> str | None:
    """The text of a file at the top, None if there is none. Only a regular file is read: a pipe would block."""
    try:
        descriptor = os.open(root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(name, [Mistake(1, "", f"can't be read: {error.strerror}")]) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # before `open`, which has an error of its own for a directory
        raise ConfigurationError(name, [Mistake(1, "", "is not a regular file")])
    with open(descriptor, "rb") as file:  # noqa: PTH123
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigurationError(name, [Mistake(1, "", f"has more than {MAX_BYTES:,} bytes")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(name, [Mistake(line, "", "is not UTF-8")]) from error


def _parsed(name: str, text: str) -> tuple[dict[str, Any], Positions]:
    for number, content in enumerate(text.split("\n"), 1):
        if len(content) > _MAX_LINE:
            raise ConfigurationError(name, [Mistake(number, "", f"the line has more than {_MAX_LINE:,} characters")])
        if any(part.count(".") > _MAX_DOTS for part in re.split("[=,]", content)):
            raise ConfigurationError(name, [Mistake(number, "", f"a key has more than {_MAX_DOTS} parts")])
    try:
        return tomllib.loads(text), key_positions(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _LINE_IN_MESSAGE.search(message)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        what = _LINE_IN_MESSAGE.sub("", message)
        raise ConfigurationError(name, [Mistake(line, "", f"not valid TOML: {what}")]) from error
    except RecursionError as error:
        raise ConfigurationError(name, [Mistake(1, "", "not valid TOML: nested too deeply")]) from error


def _explained(document: _Document, detail: ErrorDetails) -> Mistake:
    """One of pydantic's errors, at its place and in our words."""
    location = tuple(part for part in detail["loc"] if part != "[key]")
    if detail["type"] == "extra_forbidden":
        model = _TABLES.get(str(location[0]), ConfigurationTable) if len(location) > 1 else ConfigurationTable
        return document.mistake(location, f"unknown key{_closest(str(location[-1]), model.model_fields)}")
    if detail["type"] == "missing":
        return Mistake(document.line(location), _written((*document.path, *location)), "is required")
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return document.mistake(location, message)


def _unknown_rules(document: _Document, table: ConfigurationTable, known: Collection[str] | None) -> Iterable[Mistake]:
    named: list[tuple[tuple[Key, ...], str]] = [(("rules", rule), rule) for rule in table.rules]
    named += [(("severities", rule), rule) for rule in table.severities]
    places: list[tuple[tuple[Key, ...], ConfigurationTable | PathRules]] = [((), table)]
    places += [(("per_path", index), part) for index, part in enumerate(table.per_path)]
    for place, part in places:
        for key, rules in (("select", part.select), ("ignore", part.ignore)):
            named += [((*place, key, index), rule) for index, rule in enumerate(rules)]
    for location, rule in named:
        if known is not None and rule not in known and not (rule.isupper() and _begins_one(rule, known)):
            yield document.mistake(location, f"there is no such rule{_closest(rule, known)}")


def _begins_one(beginning: str, rules: Collection[str]) -> bool:
    return beginning == "ALL" or any(rule.startswith(beginning) for rule in rules)


def _unknown_checks(document: _Document, table: ConfigurationTable, known: Collection[str] | None) -> Iterable[Mistake]:
    if known is None:
        return
    for index, check in enumerate(table.checks or ()):
        if check not in known:
            yield document.mistake(("checks", index), f"there is no check {check}{_closest(check, known)}")
    tolerances = [f"{check}_{kind}" for check in known for kind in ("rtol", "atol")]
    for tolerance in table.tolerances:
        if tolerance not in tolerances:
            yield document.mistake(
                ("tolerances", tolerance), f"there is no such tolerance{_closest(tolerance, tolerances)}"
            )


def _repeated_targets(document: _Document, table: ConfigurationTable) -> Iterable[Mistake]:
    seen: dict[str, int] = {}
    for index, target in enumerate(table.targets):
        line = document.line(("targets", index))
        if target.target in seen:
            yield Mistake(
                line,
                _written((*document.path, "targets", index, "target")),
                f"{target.target} is declared at line {seen[target.target]} already",
            )
        seen.setdefault(target.target, line)


def _closest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name[:_MAX_SHOWN], sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else f"; known are {', '.join(sorted(known))}"


def _written(path: Iterable[Key]) -> str:
    """A path as a person writes it: `tool.gradproof.targets[0].inputs[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            short = part if len(part) <= _MAX_SHOWN else f"{part[:_MAX_SHOWN]}…"
            bare = re.fullmatch(r"[A-Za-z0-9_…-]+", short)
            name = short if bare else f'"{short.encode("unicode_escape").decode("ascii")}"'
            text += f".{name}" if text else name
    return text
