"""The `static` job: read a snapshot in a process that can be killed, and report what it found."""

from __future__ import annotations

import filecmp
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.jobs.model import Claim
from services.jobs.models import JobState
from worker.circumstances import surroundings_of
from worker.reading_child import NO_MEMORY, OUTCOME, REFUSED
from worker.tools import Tools

# 20,000 files of 4 kB take a minute on one core; the analyzer gives single files up after 20 s by itself.
WALL_S = 600.0
# Reading a file of 4 MiB peaks at 1.5 GiB in libcst; more than this is an attack.
MEMORY = 4 * 2**30
ANSWER_LIMIT = 256 * 2**20
_POLL_S = 0.05


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
    outcome = read_in_child(source, work.options, cancelled=lambda: not tools.held.holds(claim))
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


def read_in_child(
    source: Path,
    options: AnalysisOptions,
    *,
    cancelled: Callable[[], bool],
    wall_s: float = WALL_S,
    memory: int = MEMORY,
) -> StaticOutcome | ReadingFailed | None:
    """What reading brought, or why it failed, or None if it was cancelled. `wall_s` in seconds, `memory` in bytes."""
    request = json.dumps({"source": str(source), "options": options.model_dump(mode="json"), "memory": memory})
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as complaints:
        asked.write(request.encode())
        asked.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "worker.reading_child"],
            stdin=asked,
            stdout=answer,
            stderr=complaints,
            env={},
            cwd="/",
            start_new_session=True,
        )
        deadline = time.monotonic() + wall_s
        try:
            while True:
                try:
                    code = child.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if cancelled():
                        return None
                    if time.monotonic() > deadline:
                        return ReadingFailed(JobState.TIMED_OUT, f"reading the source took longer than {wall_s:.0f} s")
                    if answer.seek(0, 2) > ANSWER_LIMIT:
                        return ReadingFailed(JobState.FAILED, f"the findings take more than {ANSWER_LIMIT >> 20} MiB")
        finally:
            child.kill()
            child.wait()
        answer.seek(0)
        complaints.seek(0)
        return _judge(code, answer.read(ANSWER_LIMIT + 1), complaints.read()[-500:])


def _judge(code: int, answer: bytes, complaints: bytes) -> StaticOutcome | ReadingFailed:
    if code < 0:
        return ReadingFailed(JobState.CRASHED, f"the reader of the source was ended by {signal.Signals(-code).name}")
    if code == REFUSED:
        return ReadingFailed(JobState.FAILED, answer.decode(errors="replace"))
    if code == NO_MEMORY:
        return ReadingFailed(JobState.CRASHED, "reading the source needs more memory than it may have")
    if code == 0:
        try:
            return OUTCOME.validate_json(answer)
        except ValidationError as error:
            return ReadingFailed(JobState.FAILED, f"the reader of the source gave an unusable answer: {error.title}")
    last = complaints.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
    return ReadingFailed(JobState.FAILED, f"the reader of the source failed: {last[0]}")
