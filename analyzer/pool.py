"""Reads many files in several processes, and survives a file that kills or hangs one.

Results are the same as those of one process, whatever the order. A process that dies (a parser that overflows the C
stack) or does not answer takes its chunk along; the files of that chunk are then read one by one, and the culprit is
reported like any other file that can't be analysed. This module must not know rules.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from analyzer.file_analysis import FileResult, Surroundings, analyze_path, unreadable
from analyzer.modules import ModuleLayout
from analyzer.notebooks import is_notebook
from analyzer.options import AnalyzerOptions
from analyzer.package import Package

# Starting a process costs as much as reading 30,000 lines; below this many files one process is faster.
WORTH_A_POOL = 150
_CHUNK = 24
# A process looks at its own clock; this is for one that can't (measured: none of 6,292 files needs more than 2 s).
_GRACE_SECONDS = 30.0
# With the collector paused (it costs 22 % of a run) a file leaves next to nothing behind: 60 objects, measured.
_FILES_BETWEEN_COLLECTIONS = 2_000


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """A result, and the names of the modules whose content it depends on."""

    result: FileResult
    asked: frozenset[str]


class Reader:
    """Reads files of one snapshot in this process."""

    def __init__(self, root: Path, paths: Sequence[str], options: AnalyzerOptions) -> None:
        self.root = root
        self.paths = tuple(paths)
        self.options = options
        importable = [path for path in paths if not is_notebook(path)]
        self.layout = ModuleLayout(importable)
        self.package = Package(root, importable, self.layout)
        self._read = 0
        self.surroundings = Surroundings(self.layout, self.package)

    def read(self, path: str) -> FileOutcome:
        """One file. Never raises for it."""
        self._read += 1
        if self._read % _FILES_BETWEEN_COLLECTIONS == 0:
            gc.collect()
        with self.package.noting() as asked:
            result = analyze_path(self.root / path, path, self.surroundings, self.options)
        return FileOutcome(result, frozenset(asked))


def read_in_processes(reader: Reader, wanted: Sequence[str], processes: int) -> dict[str, FileOutcome]:
    """The outcomes of the `wanted` among the files that `reader` would read, from processes with readers like it."""
    setting = (reader.root, reader.paths, reader.options)
    chunks = [list(wanted[start : start + _CHUNK]) for start in range(0, len(wanted), _CHUNK)]
    outcomes: dict[str, FileOutcome] = {}

    def failing(asked: Sequence[list[str]], at_once: int) -> list[list[str]]:
        failed: list[list[str]] = []
        for chunk, answer in _answers(asked, setting, at_once):
            if answer is None:
                failed.append(chunk)
            else:
                outcomes.update(zip(chunk, answer, strict=True))
        return failed

    suspects: list[list[str]] = []
    while chunks:
        failed = failing(chunks, processes)
        # A pool breaks as a whole, but reads in order: who broke it is among the first that it did not answer for.
        suspects.extend(failed[: processes + 1])
        chunks = failed[processes + 1 :]
    # Then one process for each, so that the death of one is certain to be its own.
    guilty = [chunk for suspect in suspects for chunk in failing([suspect], 1)]
    for path in (path for chunk in guilty for path in chunk):
        _, answer = next(_answers([[path]], setting, 1))
        if answer is not None:
            outcomes[path] = answer[0]
        else:
            reason = "the process that read it died or did not answer"
            outcomes[path] = FileOutcome(unreadable(path, reason, 1, reader.options), frozenset())
    return outcomes


_Setting = tuple[Path, tuple[str, ...], AnalyzerOptions]


def _answers(
    chunks: Sequence[list[str]], setting: _Setting, processes: int
) -> Iterator[tuple[list[str], list[FileOutcome] | None]]:
    """The outcomes of each chunk; None for one whose process died or hung, and for those it took along."""
    context = multiprocessing.get_context("spawn")
    workers = min(processes, len(chunks))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=setting)
    limit = setting[2].max_seconds_per_file * max(map(len, chunks)) + _GRACE_SECONDS
    try:
        # The processes are started by this, and inherit that Ctrl-C is nothing to them: it comes to all, and what
        # they would say is a traceback each.
        with _interrupts_blocked():
            pending = [(chunk, pool.submit(_read_chunk, chunk)) for chunk in chunks]
        for chunk, future in pending:
            yield chunk, _answer(future, limit, pool)
    except BaseException:
        # Ctrl-C: nobody wants to wait for what they are reading.
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(future: Future[list[FileOutcome]], limit: float, pool: ProcessPoolExecutor) -> list[FileOutcome] | None:
    try:
        return future.result(limit)
    except BrokenProcessPool:
        return None
    except FutureTimeoutError:
        # Nothing else ends a worker that hangs: a pool can only wait for it.
        for process in multiprocessing.active_children():
            if process.pid in (pool._processes or {}):
                process.kill()
        return None


_reader: list[Reader] = []


def _start(root: Path, paths: tuple[str, ...], options: AnalyzerOptions) -> None:
    gc.disable()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _reader[:] = [Reader(root, paths, options)]


def _end_with_parent() -> None:
    """A parent that is killed says nothing, and its processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read_chunk(paths: list[str]) -> list[FileOutcome]:
    return [_reader[0].read(path) for path in paths]
