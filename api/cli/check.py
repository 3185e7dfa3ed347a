"""`gradproof check`: the whole analysis of local files, no server needed.

Reading alone (`--static-only`) is what editors and commit hooks do, so that way loads neither a worker nor a database.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from analyzer.registry import rules_named
from api.cli.console import deliver, people
from api.cli.targets import OPTION, CommandWithTargets, place_for, require_usable, write_harnesses
from services.analyses.model import AnalysisOptions
from services.analyses.reading import SUFFIXES
from services.analyses.static import digest_of, digest_of_buffer, read_buffer, read_place, static_report
from services.configuration import is_configured
from services.problems import BadInputError
from services.reports.baseline import baseline_of, compared, read_baseline, write_baseline
from services.reports.document import Report
from services.reports.formats import FORMATS, Rendering, report_format
from services.reports.sources import DirectorySources, Sources, TreeSources
from services.snapshots.errors import EmptyTreeError, PythonFileTooLargeError
from services.snapshots.limits import DEFAULT_LIMITS, size_text
from services.snapshots.paths import check_path
from services.snapshots.places import local_place, top_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from api.cli.base import Base
    from services.settings import Settings
    from services.snapshots.model import SourceTree
    from worker.local import SilentProgress

Format = StrEnum("Format", {name: name for name in FORMATS})  # type: ignore[misc]  # the choices are data

# A scheme (https://, also ext:: and file://, which are refused by name), or the host part of git's scp form.
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[\w.-]+@[\w.-]+:")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_STDIN = "-"
# Finding out where results are kept costs 40 ms, as much as reading a few files.
_WORTH_A_CACHE = 6
# What is read from stdin is one file; larger ones than this are refused by the analyzer anyway.
_MAX_STDIN = 80 * 2**20


class Device(StrEnum):
    """Where checks run."""

    CPU = "cpu"
    CUDA = "cuda"


class Environment(StrEnum):
    """What becomes of requirements."""

    OFF = "off"
    WHEELS = "wheels"


class PythonError(BadInputError):
    """What --python names can't run anything."""

    code = "python"
    title = "The Python can't be used"


class NothingToReadError(BadInputError):
    """There are files, but none that Gradproof reads: a passed gate would say something about nothing."""

    code = "no-python"
    title = "There is nothing to check"


class StdinError(BadInputError):
    """Source is to come from stdin, and something does not go with that."""

    code = "stdin"
    title = "The input can't be read from stdin"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the command line asks for, beside the paths."""

    options: AnalysisOptions
    known: frozenset[str]
    writes_baseline: bool
    root: Path | None
    uses_cache: bool
    base: Base | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """A report, where its lines are quoted from, and the files that were asked for (None: all there are)."""

    report: Report
    sources: Sources
    asked: frozenset[str] | None


def register(app: typer.Typer) -> None:
    """Add `check` to the command line."""
    app.command("check", cls=CommandWithTargets)(check)


def check(
    paths: list[str] = typer.Argument(
        metavar="PATH…",
        help="Directories, Python files, notebooks; an archive (.zip, .tar, .tar.gz); an https git URL; - for stdin.",
    ),
    static_only: bool = typer.Option(False, "--static-only", help="Read only: run nothing."),
    select: str = typer.Option(
        "", "--select", "--rules", help="Only these rules: ids, names, or beginnings of ids, with commas between."
    ),
    ignore: str = typer.Option("", help="Not these rules, named likewise."),
    checks: str = typer.Option("", help="Only these checks, with commas between."),
    device: Device = typer.Option(
        Device.CPU, help="cuda: device_compare compares CUDA with the CPU. All other checks run on the CPU."
    ),
    output_format: Format = typer.Option("text", "--format", help="How the report is written."),
    output: Path | None = typer.Option(None, help="Write the report to this file instead of stdout."),
    base: str = typer.Option("", help="A git ref, or a JSON report: only what is not in it counts as new."),
    baseline: Path | None = typer.Option(None, help="A baseline: only what is not in it counts as new."),
    write_to: Path | None = typer.Option(
        None, "--write-baseline", help="Write a baseline that knows everything found now."
    ),
    targets_to: str | None = typer.Option(
        None,
        OPTION,
        metavar="[FILE]",
        help="Declare how each target was built and called when it ran: in the configuration of the directory, in"
        " FILE (.toml), or on stdout with -.",
    ),
    root: Path | None = typer.Option(
        None, help="Name files relative to this directory, whose configuration counts. Else: where the nearest one is."
    ),
    stdin_filename: str = typer.Option("", help="With -: the file that stdin stands for. Nothing is run."),
    cache: bool = typer.Option(
        True, "--cache/--no-cache", help="--no-cache: read and run everything, also what has not changed."
    ),
    python: Path | None = typer.Option(None, help="The Python that runs the code; it needs torch."),
    sandbox: bool = typer.Option(
        True, "--sandbox/--no-sandbox", help="--no-sandbox: run the code unconfined. Only for code of your own."
    ),
    environment: Environment | None = typer.Option(
        None, help="wheels: install what the files say they need, as wheels, for this run. off: as Python finds it."
    ),
) -> None:
    """Check directories, files, an archive or a git URL: read them, run them in a sandbox, and say what was found.

    Exit codes: 0 the gate passed; 1 it failed; 2 the input can't be used; 3 Gradproof or its surroundings failed.
    """
    options = AnalysisOptions.parse(
        {"static_only": static_only, "checks": _words(checks), "rules": _words(select), "ignore": _words(ignore)}
    )
    _require_executable(python)
    place = None if targets_to is None else place_for(targets_to, paths, root)
    if targets_to is not None:
        machine = output is None and output_format.value != "text"
        require_usable(place, static_only=static_only or _STDIN in paths, stdout_is_taken=machine)
    known = read_baseline(baseline) if baseline is not None else None
    compared_with = _base(base, paths, root)
    wanted = _Wanted(
        options=options,
        known=(known.fingerprints if known is not None else frozenset())
        | (compared_with.fingerprints if compared_with is not None else frozenset()),
        base=compared_with,
        writes_baseline=write_to is not None,
        root=root,
        uses_cache=cache,
        environment=None if environment is None else environment.value,
    )
    with _read(paths, stdin_filename, wanted, device, python, sandbox=sandbox) as read:
        report = read.report
        if known is not None and baseline is not None:
            gone = compared(known, baseline, report.findings, rules=_rules(options), asked=read.asked)
            report = report.model_copy(update={"baseline": gone})
        if write_to is not None:
            write_baseline(baseline_of(report.findings), write_to)
        rendering = Rendering(sources=read.sources, colour=_coloured(output), width=_width(people()))
        deliver(report_format(output_format.value).render(report, rendering), output)
    if output is not None or output_format.value not in ("text", "github"):
        people().print(summary(report))
    if targets_to is not None:
        write_harnesses(report, place)
    if write_to is not None:
        people().print(f"{len(report.findings)} findings are known from now on.", highlight=False)
    if not report.gate.passed:
        raise typer.Exit(1)


def summary(report: Report) -> str:
    """One line about a report, for people who asked for a machine's format."""
    findings = ", ".join(f"{count} {name}" for name, count in sorted(report.summary.findings.items())) or "none"
    verdicts = ", ".join(f"{count} {name}" for name, count in sorted(report.summary.checks.items())) or "none"
    gate = "[green]passed[/]" if report.gate.passed else "[red]failed[/]"
    targets = report.summary.targets
    line = f"Gate {gate}. Findings: {findings}. Targets run: {targets.run} of {targets.found}. Checks: {verdicts}."
    if report.baseline is not None and report.baseline.gone:
        line += f" No longer found of the baseline: {len(report.baseline.gone)}."
    return line


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _rules(options: AnalysisOptions) -> frozenset[str] | None:
    """The rules that were asked for; None for all."""
    if not options.rules and not options.ignore:
        return None
    return rules_named(options.rules or ("ALL",)) - rules_named(options.ignore)


def _base(base: str, paths: list[str], root: Path | None) -> Base | None:
    if not base:
        return None
    from api.cli.base import base_of  # noqa: PLC0415 - subprocess and tarfile are for those who ask

    place = Path(paths[0]).resolve()
    return base_of(base, top_of([place], is_configured, root=root)[0] if place.exists() else place)


# --- reading -------------------------------------------------------------------------------------------------


@contextmanager
def _read(
    paths: list[str], stdin_filename: str, wanted: _Wanted, device: Device, python: Path | None, *, sandbox: bool
) -> Iterator[_Read]:
    started = datetime.now(UTC)
    if _STDIN in paths or stdin_filename:
        yield _read_stdin(paths, stdin_filename, wanted, started)
    elif wanted.options.static_only and _is_local(paths):
        place = local_place(paths, SUFFIXES, is_configured, root=wanted.root)
        _require_python(place.asked, paths)
        cache = _cache_directory() if wanted.uses_cache and len(place.asked) >= _WORTH_A_CACHE else None
        outcome = read_place(place, wanted.options, processes=os.cpu_count() or 1, cache=cache)
        report = static_report(
            outcome,
            digest_of(place),
            known=wanted.known,
            everything_known=wanted.writes_baseline,
            started=started,
        )
        yield _Read(report, DirectorySources(place.base), place.only)
    else:
        with _run(paths, wanted, device, python, sandbox=sandbox) as read:
            yield read


def _cache_directory() -> Path:
    """Where results are kept for files that have not changed."""
    from services.settings import read_settings  # noqa: PLC0415 - the environment is read by who needs it

    return read_settings().data_dir / "read"


def _read_stdin(paths: list[str], stdin_filename: str, wanted: _Wanted, started: datetime) -> _Read:
    if paths != [_STDIN]:
        raise StdinError("--stdin-filename goes with - as the only path")
    if not stdin_filename:
        raise StdinError("- needs --stdin-filename, the file that stdin stands for: its place decides what counts")
    if not stdin_filename.endswith(SUFFIXES):
        raise StdinError(f"--stdin-filename {stdin_filename} has to end in {' or '.join(SUFFIXES)}")
    check_path(Path(stdin_filename).name)
    source = sys.stdin.buffer.read(_MAX_STDIN + 1)
    file = Path(stdin_filename).resolve()
    directory = next(place for place in file.parents if place.is_dir())
    top, is_chosen = top_of([directory], is_configured, root=wanted.root)
    if not is_chosen and not is_configured(top):
        # Nothing says where names begin: the working directory does, as the name given is most often relative to it.
        top = Path.cwd() if file.is_relative_to(Path.cwd()) else file.parent
    name = check_path(file.relative_to(top).as_posix())
    place = local_place([str(top)], SUFFIXES, is_configured, root=top)
    outcome = read_buffer(source, name, place, wanted.options)
    report = static_report(
        outcome,
        digest_of_buffer(source, name),
        known=wanted.known,
        everything_known=wanted.writes_baseline,
        started=started,
    )
    return _Read(report, TreeSources({name: source}), frozenset({name}))


def _is_local(paths: list[str]) -> bool:
    """Whether these are files and directories to be read where they are; archives and URLs are unpacked first."""
    if len(paths) > 1:
        return True
    path = Path(paths[0])
    if path.is_file() and path.name.endswith(_ARCHIVES):
        return False
    return path.exists() or not _REMOTE.match(paths[0])


def _require_python(files: tuple[str, ...] | Mapping[str, bytes] | frozenset[str], paths: list[str]) -> None:
    for path in map(Path, paths):
        if path.is_file() and path.suffix == ".py" and path.stat().st_size > DEFAULT_LIMITS.kept_file:
            limit = size_text(DEFAULT_LIMITS.kept_file)
            raise PythonFileTooLargeError(f"{path} is too large: a Python file may have {limit}", member=str(path))
    if not any(file.endswith(SUFFIXES) for file in files):
        if all(path.is_dir() and not any(path.iterdir()) for path in map(Path, paths)):
            raise EmptyTreeError("there are no files to analyse")
        raise NothingToReadError(f"there is no Python file (.py) or notebook (.ipynb) in {', '.join(paths)}")


# --- reading and running -------------------------------------------------------------------------------------


@contextmanager
def _run(paths: list[str], wanted: _Wanted, device: Device, python: Path | None, *, sandbox: bool) -> Iterator[_Read]:
    from services.logs import configure_logging  # noqa: PLC0415 - reading alone does not need a worker
    from worker.local import LocalAnalysis, LocalOptions  # noqa: PLC0415

    configure_logging(level=logging.WARNING)  # what nobody set up is written to stdout, which the report has for itself

    settings = _settings(python, wanted.environment, sandbox=sandbox, cache=wanted.uses_cache)
    with _tree(paths, settings, wanted.root) as (tree, only), _progress(people()) as progress:
        _require_python(tree if only is None else only, paths)
        analysis = LocalAnalysis.run(
            tree,
            settings=settings,
            options=LocalOptions(
                analysis=wanted.options,
                device=device.value,
                known=wanted.known,
                everything_known=wanted.writes_baseline,
                only=only,
                changed=None if wanted.base is None else wanted.base.changed(tree),
                verdicts=settings.data_dir / "verdicts" if wanted.uses_cache else None,
                directory=_directory(paths),
            ),
            progress=progress,
        )
        yield _Read(analysis.report, TreeSources(tree), only)


def _require_executable(python: Path | None) -> None:
    if python is not None and not (python.is_file() and os.access(python, os.X_OK)):
        raise PythonError(f"--python {python} is not an executable file")


def _directory(paths: list[str]) -> Path | None:
    """Where the code lies; None for what is unpacked or fetched first."""
    if not _is_local(paths):
        return None
    first = Path(paths[0])
    return first if first.is_dir() else first.parent


def _settings(python: Path | None, environment: str | None, *, sandbox: bool, cache: bool) -> Settings:
    from services.settings import read_settings  # noqa: PLC0415 - only runs have settings

    changes: dict[str, Any] = {} if environment is None else {"environment": environment}
    if python is not None:
        # Not resolved: the python of a virtual environment is a link, and its place is what makes it that environment.
        changes["python"] = python.absolute()
    if not sandbox:
        changes["sandbox"] = False
    if not cache:
        changes["kept_kernels"] = False
    settings = read_settings(**changes)
    return settings.model_copy(update={"kept_kernels_home": settings.own_kept_kernels_directory})


@contextmanager
def _tree(
    paths: list[str], settings: Settings, root: Path | None
) -> Iterator[tuple[SourceTree, frozenset[str] | None]]:
    """The tree to read and, when only parts of it were asked for, the files that count."""
    from services.snapshots.directories import read_directory  # noqa: PLC0415

    if not _is_local(paths):
        with _fetched(paths[0], settings) as tree:
            yield tree, None
        return
    place = local_place(paths, SUFFIXES, is_configured, root=root)
    lone = place.names if len(place.names) == 1 and len(paths) == 1 and Path(paths[0]).is_file() else ()
    with read_directory(Path(paths[0]) if lone == (Path(paths[0]).name,) else place.top) as tree:
        yield tree, None if place.only is None or lone else place.only & frozenset(tree)


def _fetched(word: str, settings: Settings) -> SourceTree:
    from services.snapshots.archives import read_archive  # noqa: PLC0415
    from services.snapshots.git import fetch  # noqa: PLC0415

    path = Path(word)
    if path.exists():
        with path.open("rb") as stream:
            return read_archive(stream, path.name)
    return fetch(word, None, settings)


class _TerminalProgress:
    """A line that moves, on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("Reading files", total=None)
        self._lock = threading.Lock()

    def stage(self, name: str, total: int) -> None:
        words = {
            "static": "Reading the code",
            "examples": "Running its own examples",
            "checks": "Running the checks",
        }.get(name, name)
        with self._lock:
            self._progress.update(self._task, description=words, total=total or None, completed=0)

    def step(self, label: str) -> None:
        with self._lock:
            self._progress.advance(self._task)
            self._progress.console.print(f"  [dim]{label}[/]", highlight=False)


@contextmanager
def _progress(console: Console) -> Iterator[SilentProgress | _TerminalProgress]:
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )  # fmt: skip

    from worker.local import SilentProgress  # noqa: PLC0415

    if not console.is_terminal:
        yield SilentProgress()
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        yield _TerminalProgress(progress)


def _coloured(output: Path | None) -> bool:
    return output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _width(console: Console) -> int:
    return max(60, min(console.width, 140)) if console.is_terminal else 100
