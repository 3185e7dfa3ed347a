"""The `static` job: have a snapshot read in a sandbox, and report what was found.

Parsers are native code, and what they parse may have been written to break them. So reading gets the same walls as
running: no network, the snapshot read-only, bounded memory and time; what comes out is bounded, validated, and names
files of the snapshot only. A machine that can't confine code reads nothing, unless its operator said that it may.
"""

from __future__ import annotations

import filecmp
import importlib.util
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import ValidationError

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.jobs.model import Claim
from services.jobs.models import JobState
from worker.circumstances import surroundings_of
from worker.reading_child import NO_MEMORY, OUTCOME, REFUSED, excess
from worker.sandbox import Launcher, SandboxUnavailableError, open_sandbox
from worker.sandbox.model import REQUEST, Command, Limits, Outcome, Status
from worker.tools import Tools

# 20,000 files of 4 kB take a minute on one core; the analyzer gives single files up after 20 s by itself.
WALL_S: Final = 600.0
# Reading a file of 4 MiB peaks at 1.5 GiB in libcst; more than this is an attack.
MEMORY: Final = 4 * 2**30
# A finding or target takes 400 bytes (375 and 1,010 of them took 0.5 MB), and one analysis has 40,000 at most. As
# Python objects it is some ten times that, here in the worker.
ANSWER_LIMIT: Final = 64 * 2**20
_SMALL: Final = 16 * 2**20
_SOURCE: Final = "/source"
_OWN_CODE: Final = "/gradproof"
# The rooms that reading takes. Shown under a place of their own: they need not lie in the interpreter's directories.
_ROOMS: Final = ("analyzer", "services", "worker")
_UNUSABLE: Final = "the reader of the source gave an unusable answer"
_LONGEST_REFUSAL: Final = 2_000
_START: Final = (
    f"import sys; sys.path.insert(0, {_OWN_CODE!r}); from worker.reading_child import main; sys.exit(main())"
)


@dataclass(frozen=True, slots=True)
class ReadingFailed:
    """Why a snapshot could not be read: the state the job ends in, and a sentence."""

    state: JobState
    reason: str


def read_source(claims: Sequence[Claim], tools: Tools) -> None:
    """Read, report. Whatever the source does to its reader is a result."""
    (claim,) = claims
    work = tools.load(lambda: tools.results.static_work(claim))
    source = tools.store.path(work.snapshot_digest)
    try:
        outcome = read_apart(
            source,
            work.options,
            launcher=open_sandbox(tools.settings),
            cancelled=lambda: not tools.held.holds(claim),
        )
    except SandboxUnavailableError as error:
        reason = error.message
        tools.end(claim, lambda: tools.results.lost(claim, reason))
        return
    if isinstance(outcome, StaticOutcome):
        base = None if work.base_digest is None else tools.store.path(work.base_digest)
        changed = None if base is None or not base.is_dir() else changed_files(source, base, outcome)
        surroundings = None if work.options.static_only else surroundings_of(tools.settings, source)
        tools.end(claim, lambda: tools.results.read(claim, outcome, changed, surroundings))
    elif isinstance(outcome, ReadingFailed):
        tools.end(claim, lambda: tools.results.ended(claim, outcome.state, outcome.reason))


def changed_files(source: Path, base: Path, outcome: StaticOutcome) -> frozenset[str]:
    """The files with targets that differ from those of the base. Compares bytes, parses nothing."""
    paths = sorted({target.path for target in outcome.analysis.targets})
    _, differing, unreadable = filecmp.cmpfiles(source, base, paths, shallow=False)
    return frozenset(differing) | frozenset(unreadable)


def read_apart(
    source: Path,
    options: AnalysisOptions,
    *,
    launcher: Launcher,
    cancelled: Callable[[], bool],
    wall_s: float = WALL_S,
    memory: int = MEMORY,
) -> StaticOutcome | ReadingFailed | None:
    """What reading brought, or why it failed, or None if it was cancelled. `wall_s` in seconds, `memory` in bytes.

    Raises SandboxUnavailableError if the launcher can't set up its sandbox.
    """
    pieces: list[bytes] = []
    command = Command(
        interpreter=Path(sys.executable),
        argv=(sys.executable, "-I", "-c", _START, REQUEST, _SOURCE),
        request=json.dumps({"options": options.model_dump(mode="json"), "memory": memory}).encode(),
        read_only={source: _SOURCE, **{_room(name): f"{_OWN_CODE}/{name}" for name in _ROOMS}},
    )
    limits = Limits(
        wall_s=wall_s,
        memory=memory,
        processes=16,
        tmp=_SMALL,
        job=_SMALL,
        shared_memory=_SMALL,
        result=ANSWER_LIMIT,
    )
    ended = launcher.run(command, limits, pieces.append, cancelled)
    if ended.status is Status.CANCELLED:
        return None
    outcome = _judge(ended, b"".join(pieces), wall_s)
    if isinstance(outcome, StaticOutcome) and (lie := _untrue(outcome, source)) is not None:
        return ReadingFailed(JobState.FAILED, f"{_UNUSABLE}: {lie}")
    return outcome


def _room(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"this installation lacks its package {name}: install Gradproof again")
    return Path(spec.origin).parent


def _judge(ended: Outcome, answer: bytes, wall_s: float) -> StaticOutcome | ReadingFailed:
    if (failed := _failure(ended, answer, wall_s)) is not None:
        return failed
    try:
        return OUTCOME.validate_json(answer)
    except ValidationError as error:
        return ReadingFailed(JobState.FAILED, f"{_UNUSABLE}: {error.title}, {error.error_count()} errors")


def _failure(ended: Outcome, answer: bytes, wall_s: float) -> ReadingFailed | None:
    """What befell the reader, if anything did."""
    state, reason = JobState.FAILED, ""
    if ended.status is Status.TIMED_OUT:
        state, reason = JobState.TIMED_OUT, f"reading the source took longer than {wall_s:.0f} s"
    elif ended.status is Status.OUT_OF_MEMORY or ended.exit_code == NO_MEMORY:
        state, reason = JobState.CRASHED, "reading the source needs more memory than it may have"
    elif ended.status is Status.OUTPUT_LIMIT:
        reason = f"the reader of the source said too much: {ended.detail}"
    elif ended.status is Status.SIGNALLED:
        state, reason = JobState.CRASHED, f"the reader of the source was ended by {_signal_name(ended.signal)}"
    elif ended.exit_code == REFUSED:
        reason = answer.decode(errors="replace").rstrip("\n")[:_LONGEST_REFUSAL]
    elif ended.exit_code != 0:
        last = ended.stderr_tail.strip().splitlines()[-1:] or ["no message"]
        reason = f"the reader of the source failed: {last[0][:_LONGEST_REFUSAL]}"
    return ReadingFailed(state, reason) if reason else None


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:  # those of the C library have no name
        return f"signal {number}"


def _untrue(outcome: StaticOutcome, source: Path) -> str | None:
    """What an answer can't be true of: more than may be, or files that the snapshot does not have.

    Its paths are opened later on, by this worker and by the API.
    """
    if (more := excess(outcome)) is not None:
        return more
    for path in frozenset(_paths(outcome)):
        name = PurePosixPath(path)
        if name.is_absolute() or ".." in name.parts or "\x00" in path or not (source / name).is_file():
            return f"it speaks of a file that the source does not have: {path[:200]!r}"
    return None


def _paths(outcome: StaticOutcome) -> Iterator[str]:
    analysis = outcome.analysis
    yield from (target.path for target in analysis.targets)
    yield from (note.path for note in analysis.import_notes)
    yield from (place[0] for places in analysis.reaches.values() for place in places)
    for finding in (*analysis.findings, *(suppression.finding for suppression in analysis.suppressed)):
        yield finding.region.path
        yield from (related.region.path for related in finding.related)
        yield from (edit.region.path for edit in finding.fix.edits)
