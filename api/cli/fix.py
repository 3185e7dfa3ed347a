"""`gradproof fix`: applies the rewrites that findings carry, to files on disk.

Every file is written whole or not at all, and only if nobody changed it meanwhile. This module must not decide what a
fix is: `analyzer.fixing` does.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import typer
from rich.console import Console
from rich.markup import escape

from analyzer.engine import AnalyzerOptions, analyze_files
from analyzer.findings import FixSafety
from analyzer.fixing import FixedSource, fix_source
from analyzer.pool import Reader
from api.cli.console import people
from services.analyses.model import AnalysisOptions
from services.analyses.reading import known_configuration
from services.configuration import RuleSelection, is_configured
from services.problems import BadInputError
from services.reports.untrusted import one_line
from services.snapshots.places import LocalPlace, local_place


class FileChangedError(BadInputError):
    """A file changed, or could not be written, while its fix was being worked out."""

    code = "file-changed"
    title = "A file could not be rewritten"


class NotLocalError(BadInputError):
    """What is to be fixed is no file or directory on this machine."""

    code = "not-local"
    title = "Only local files can be fixed"


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file below a place that the user named: where it lies, and what findings call it."""

    place: Path
    name: str


@dataclass(slots=True)
class Tally:
    """What was done, for the summary. `left` counts reasons."""

    fixes: int = 0
    files: int = 0
    unsafe: int = 0
    refused: int = 0


def register(app: typer.Typer) -> None:
    """Add `fix` to the command line."""
    app.command("fix")(fix)


def fix(
    paths: list[Path] = typer.Argument(metavar="PATH…", help="Directories or Python files."),
    diff: bool = typer.Option(False, "--diff", help="Write nothing: print what would change, as a patch."),
    unsafe: bool = typer.Option(
        False, "--unsafe", help="Also fixes that can change values which were finite, such as a larger eps."
    ),
    rules: str = typer.Option("", "--rules", help="Only these rules: ids, names, or beginnings of ids, with commas."),
) -> None:
    """Mend what can be mended: rewrite the code that findings point at, and nothing else.

    A fix stays only if its finding is gone afterwards and no warning came in its place. Nothing is run.

    Exit codes: 0 done (with --diff: nothing would change); 1 with --diff: something would change; 2 the input can't be
    used; 3 Gradproof or its surroundings failed.
    """
    console = people()
    tally = Tally()
    failures: list[FileChangedError] = []
    chosen = AnalysisOptions.parse({"rules": [word.strip() for word in rules.split(",") if word.strip()]}).rules
    for path in paths:
        for file, fixed, before in _fixed(path, chosen, unsafe=unsafe):
            _count(tally, fixed)
            if fixed.problem is not None:
                console.print(f"[yellow]{escape(one_line(file.name))}: not fixed: {escape(one_line(fixed.problem))}[/]")
            if fixed.data == before:
                continue
            if diff:
                typer.echo(_patch(file.name, before, fixed.data), nl=False)
                continue
            try:
                _write(file, before, fixed.data)
            except FileChangedError as error:
                console.print(f"[yellow]{escape(error.message)}[/]")
                failures.append(error)
            else:
                _say(console, file, fixed)
    if failures:
        # All others were fixed: one file that can't be written must not cost them.
        raise failures[0]
    console.print(_summary(tally, diff=diff, unsafe=unsafe))
    if diff and tally.fixes:
        raise typer.Exit(1)


def _fixed(path: Path, rules: Sequence[str], *, unsafe: bool) -> Iterator[tuple[LocalFile, FixedSource, bytes]]:
    """Every file below a path that has something to fix, with its content before.

    What the configuration leaves out, files or rules, is left alone.
    """
    place = _local_place(path)
    configuration = known_configuration(place.top)
    selection = RuleSelection(configuration, select=rules)
    found = selection.applied(
        analyze_files(
            place.base,
            configuration.files(place.asked),
            options=AnalyzerOptions(rules=selection.rules),
            processes=os.cpu_count() or 1,
            beside=place.names,
            follow_imports=False,
        )
    )
    with_fixes = sorted({finding.region.path for finding in found.findings if finding.fix.safety is not FixSafety.NONE})
    reader = Reader(place.base, place.names, AnalyzerOptions(rules=selection.rules))
    for name in with_fixes:
        file = LocalFile(place.base / PurePosixPath(name), name)
        try:
            before = file.place.read_bytes()
        except OSError as error:
            yield file, FixedSource(b"", problem=f"can't be read: {error.strerror or error}"), b""
            continue
        options = AnalyzerOptions(rules=selection.rules_at(name))
        yield file, fix_source(before, name, unsafe=unsafe, options=options, surroundings=reader.surroundings), before


def _local_place(path: Path) -> LocalPlace:
    """The Python files that `gradproof check` would read at this path."""
    shown = one_line(str(path))
    if not path.exists():
        raise NotLocalError(f"there is no file or directory {shown}", path=shown)
    if path.is_file() and path.suffix != ".py":
        raise NotLocalError(f"{shown} is no Python file (.py)", path=shown)
    return local_place([str(path)], (".py",), is_configured)


def _write(file: LocalFile, before: bytes, after: bytes) -> None:
    """Put the new content in the place of the old, in one step."""
    place = file.place
    try:
        if not place.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
            # Replacing it would take the permission of its directory only, and somebody meant the file to stay.
            raise FileChangedError(f"{one_line(file.name)} is write-protected")
        if place.read_bytes() != before:
            raise FileChangedError(f"{one_line(file.name)} changed while its fix was worked out: run the command again")
        descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(after)
            Path(temporary).chmod(place.stat().st_mode)
            Path(temporary).replace(place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileChangedError(f"{one_line(file.name)} can't be written: {error.strerror or error}") from error


def _patch(name: str, before: bytes, after: bytes) -> bytes:
    """A unified diff that `patch -p1` and `git apply` take, line ends kept."""
    # Bytes, so that a patch of a Latin-1 file is one, and cut at line feeds alone, as `patch` does: Python's own
    # splitlines() also cuts at form feeds, of which old files have one between any two classes.
    old, new = ([*map(bytes, re.findall(rb"[^\n]*\n|[^\n]+", data))] for data in (before, after))
    path = name.encode("utf-8", "surrogateescape")
    lines = difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + path, b"b/" + path)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


def _count(tally: Tally, fixed: FixedSource) -> None:
    tally.fixes += len(fixed.applied)
    tally.files += bool(fixed.applied)
    tally.unsafe += sum(left.finding.fix.safety is FixSafety.UNSAFE and "unsafe" in left.reason for left in fixed.left)
    tally.refused += sum("unsafe" not in left.reason for left in fixed.left)


def _say(console: Console, file: LocalFile, fixed: FixedSource) -> None:
    counts = Counter(f"{finding.rule} {finding.name}" for finding in fixed.applied)
    said = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(counts.items()))
    console.print(f"[green]{escape(one_line(file.name))}[/]: {said}")


def _summary(tally: Tally, *, diff: bool, unsafe: bool) -> str:
    verb = "would be made" if diff else "made"
    fixes = f"{tally.fixes} {'fix' if tally.fixes == 1 else 'fixes'}"
    files = f"{tally.files} {'file' if tally.files == 1 else 'files'}"
    parts = [f"{fixes} {verb} in {files}." if tally.fixes else "Nothing to fix."]
    if tally.unsafe and not unsafe:
        parts.append(f"{tally.unsafe} more with --unsafe (look at them with --unsafe --diff).")
    if tally.refused:
        parts.append(f"{tally.refused} could not be applied without doing harm elsewhere and were left.")
    return " ".join(parts)
