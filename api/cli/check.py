"""`gradproof check`: the whole analysis of local files, no server needed."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from analyzer.engine import analyze_files
from api.cli.console import deliver, people
from services.analyses.model import AnalysisOptions
from services.problems import BadInputError
from services.reports.document import Report
from services.reports.formats import FORMATS, Rendering, report_format
from services.reports.sources import TreeSources
from services.settings import Settings, read_settings
from services.snapshots.archives import read_archive
from services.snapshots.directories import read_directory
from services.snapshots.git import fetch
from services.snapshots.model import SourceTree
from services.snapshots.store import SnapshotStore
from worker.local import LocalAnalysis, LocalOptions, SilentProgress

Format = StrEnum("Format", {name: name for name in FORMATS})  # type: ignore[misc]  # the choices are data


# A scheme (https://, also ext:: and file://, which are refused by name), or the host part of git's scp form.
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[\w.-]+@[\w.-]+:")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


class Device(StrEnum):
    """Where checks run."""

    CPU = "cpu"
    CUDA = "cuda"


class BaseError(BadInputError):
    """What --base names is neither a report nor something that git knows."""

    code = "base"
    title = "The base can't be used"


class PathsError(BadInputError):
    """The paths to check have nothing in common."""

    code = "paths"
    title = "The paths can't be checked together"


class PythonError(BadInputError):
    """What --python names can't run anything."""

    code = "python"
    title = "The Python can't be used"


class NothingToReadError(BadInputError):
    """There are files, but none that Gradproof reads: a passed gate would say something about nothing."""

    code = "no-python"
    title = "There is nothing to check"


def register(app: typer.Typer) -> None:
    """Add `check` to the command line."""
    app.command("check")(check)


def check(
    paths: list[str] = typer.Argument(
        metavar="PATH…", help="A directory, Python files, an archive (.zip, .tar, .tar.gz), or an https git URL."
    ),
    static_only: bool = typer.Option(False, "--static-only", help="Read only: run nothing."),
    rules: str = typer.Option("", help="Only these rules: ids, names, or beginnings of ids, with commas between."),
    checks: str = typer.Option("", help="Only these checks, with commas between."),
    device: Device = typer.Option(
        Device.CPU, help="cuda: device_compare compares CUDA with the CPU. All other checks run on the CPU."
    ),
    output_format: Format = typer.Option("text", "--format", help="How the report is written."),
    output: Path | None = typer.Option(None, help="Write the report to this file instead of stdout."),
    base: str = typer.Option("", help="A git ref, or a JSON report: only what is not in it counts as new."),
    python: Path | None = typer.Option(None, help="The Python that runs the code; it needs torch."),
    sandbox: bool = typer.Option(
        True, "--sandbox/--no-sandbox", help="--no-sandbox: run the code unconfined. Only for code of your own."
    ),
) -> None:
    """Check a directory, file, archive or git URL: read it, run it in a sandbox, and say what was found.

    Exit codes: 0 the gate passed; 1 it failed; 2 the input can't be used; 3 Gradproof or its surroundings failed.
    """
    options = AnalysisOptions.parse({"static_only": static_only, "checks": _words(checks), "rules": _words(rules)})
    settings = _settings(python, sandbox=sandbox)
    console = people()
    with _tree(paths, settings) as (tree, only), _progress(console) as progress:
        _require_python(tree if only is None else only, paths)
        analysis = LocalAnalysis.run(
            tree,
            settings=settings,
            options=LocalOptions(
                analysis=options,
                device=device.value,
                known=_known(base, Path(paths[0])) if base else None,
                only=only,
            ),
            progress=progress,
        )
        report = analysis.report
        sources = TreeSources(tree)
        text = report_format(output_format.value).render(
            report, Rendering(sources=sources, colour=_coloured(output), width=_width(console))
        )
    deliver(text, output)
    if output is not None or output_format.value != "text":
        console.print(summary(report))
    if not report.gate.passed:
        raise typer.Exit(1)


def summary(report: Report) -> str:
    """One line about a report, for people who asked for a machine's format."""
    findings = ", ".join(f"{count} {name}" for name, count in sorted(report.summary.findings.items())) or "none"
    verdicts = ", ".join(f"{count} {name}" for name, count in sorted(report.summary.checks.items())) or "none"
    gate = "[green]passed[/]" if report.gate.passed else "[red]failed[/]"
    targets = report.summary.targets
    return f"Gate {gate}. Findings: {findings}. Targets run: {targets.run} of {targets.found}. Checks: {verdicts}."


def _require_python(files: Iterable[str], paths: list[str]) -> None:
    if not any(file.endswith(".py") for file in files):
        raise NothingToReadError(f"there is no Python file (.py) in {', '.join(paths)}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _settings(python: Path | None, *, sandbox: bool) -> Settings:
    changes: dict[str, Any] = {}
    if python is not None:
        if not (python.is_file() and os.access(python, os.X_OK)):
            raise PythonError(f"--python {python} is not an executable file")
        # Not resolved: the python of a virtual environment is a link, and its place is what makes it that environment.
        changes["python"] = python.absolute()
    if not sandbox:
        changes["sandbox"] = False
    return read_settings(**changes)


@contextmanager
def _tree(words: list[str], settings: Settings) -> Iterator[tuple[SourceTree, frozenset[str] | None]]:
    """The tree to read and, when only parts of it were asked for, the files that count."""
    if len(words) == 1:
        with _single(words[0], settings) as tree:
            yield tree, None
        return
    paths = [Path(word) for word in words]
    absolute = [path.absolute() for path in paths]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise PathsError(f"{missing[0]} does not exist", path=str(missing[0]))
    top = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in absolute]))
    if top == Path(top.anchor):
        raise PathsError("the paths have no directory in common but the root of the file system: check them apart")
    with read_directory(top) as tree:
        wanted = [Path(tree.prefix, path.relative_to(top)).as_posix() for path in absolute]
        only = frozenset(file for file in tree for want in wanted if want in (".", file) or file.startswith(f"{want}/"))
        yield tree, only


def _single(word: str, settings: Settings) -> SourceTree:
    path = Path(word)
    if not path.exists() and _REMOTE.match(word):
        tree, _ = fetch(word, None, settings)
        return tree
    if path.is_file() and path.name.endswith(_ARCHIVES):
        with path.open("rb") as stream:
            return read_archive(stream, path.name)
    return read_directory(path)


def _known(base: str, path: Path) -> frozenset[str]:
    """The fingerprints of the base: those of a report, or what reading the tree of a git ref brings."""
    report = Path(base)
    if report.is_file():
        try:
            document = Report.model_validate(json.loads(report.read_text(encoding="utf-8")))
        except (ValueError, OSError) as error:
            raise BaseError(f"{base} is not a report of Gradproof: {error}".split("\n", 1)[0], base=base) from error
        return frozenset(finding.fingerprint for finding in document.findings)
    return _fingerprints_of_ref(base, path)


def _fingerprints_of_ref(ref: str, path: Path) -> frozenset[str]:
    """Read, never run, the tree of a ref of the local repository around `path`."""
    where = path if path.is_dir() else path.parent
    if ref.startswith("-"):
        raise BaseError(f"{ref!r} is no git ref", base=ref)
    command = ["git", "-C", str(where), "archive", "--format=tar", f"{ref}:./"]
    try:
        archive = subprocess.run(command, capture_output=True, check=False, timeout=120)
    except FileNotFoundError as error:
        raise BaseError("git is not installed, and --base names no report file", base=ref) from error
    if archive.returncode:
        said = archive.stderr.decode(errors="replace").strip().splitlines()
        raise BaseError(f"{ref!r} is neither a report file nor a git ref: {said[-1] if said else ''}", base=ref)
    with tempfile.TemporaryDirectory(prefix="gradproof-base-") as directory:
        top = Path(directory) / where.resolve().name  # a package's own name is part of the paths
        top.mkdir(exist_ok=True)
        _unpack_files(archive.stdout, top)
        place = top if path.is_dir() else top / path.name
        if not place.exists():
            return frozenset()
        with read_directory(place) as tree:
            store = SnapshotStore(Path(directory) / ".git" / "snapshots")  # below .git, which no reader enters
            source = store.path(store.put(tree).digest)
            findings = analyze_files(source, [file for file in tree if file.endswith(".py")]).findings
            return frozenset(finding.fingerprint for finding in findings)


def _unpack_files(archive: bytes, directory: Path) -> None:
    """The regular files of an archive that git has just made of the user's own repository."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(directory, [member for member in members if member.isfile()], filter="data")


class _TerminalProgress:
    """A line that moves, on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("Reading files", total=None)
        self._lock = threading.Lock()

    def stage(self, name: str, total: int) -> None:
        words = {"static": "Reading the code", "checks": "Running the checks"}.get(name, name)
        with self._lock:
            self._progress.update(self._task, description=words, total=total or None, completed=0)

    def step(self, label: str) -> None:
        with self._lock:
            self._progress.advance(self._task)
            self._progress.console.print(f"  [dim]{label}[/]", highlight=False)


@contextmanager
def _progress(console: Console) -> Iterator[SilentProgress | _TerminalProgress]:
    if not console.is_terminal:
        yield SilentProgress()
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        yield _TerminalProgress(progress)


def _coloured(output: Path | None) -> bool:
    return output is None and Console().is_terminal and "NO_COLOR" not in os.environ


def _width(console: Console) -> int:
    return max(60, min(console.width, 140)) if console.is_terminal else 100
