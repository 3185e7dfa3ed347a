"""Analyses the files of a snapshot, or one file by itself.

This module must not know rules, and must never raise for what a file contains: a file that can't be analysed is a
finding of its own (GP001, GP002), and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path

from analyzer.cache import ResultCache, SourceFile
from analyzer.closure import closures_of
from analyzer.file_analysis import FileResult, Surroundings, analyze_text
from analyzer.findings import Finding, ImportNote, StaticAnalysis, Suppression
from analyzer.imported_outlines import imported_outlines
from analyzer.modules import ModuleLayout
from analyzer.options import DEFAULT_OPTIONS, AnalyzerOptions
from analyzer.outline import Outline
from analyzer.pool import WORTH_A_POOL, FileOutcome, Reader, read_in_processes
from analyzer.reach import reaches_of
from analyzer.requirements import minimum_torch_of
from analyzer.snapshot import SnapshotOutline
from analyzer.source import collection_paused
from analyzer.targets import targets_of

__all__ = ["DEFAULT_OPTIONS", "AnalyzerOptions", "analyze_files", "analyze_source"]


def analyze_files(
    root: Path,
    paths: Sequence[str],
    *,
    options: AnalyzerOptions = DEFAULT_OPTIONS,
    processes: int = 1,
    cache: Path | None = None,
    beside: Sequence[str] = (),
    follow_imports: bool = True,
) -> StaticAnalysis:
    """Analyses files of a snapshot; `paths` are relative to `root`, with forward slashes. Never raises for a file.

    `beside`: the other files of the snapshot, which tell what is a package and may hold helpers. `follow_imports`:
    those of them that are imported are read too (5 ms each), so that targets and what they rest on are known wholly;
    findings don't need it.
    `processes`: how many may read at the same time; the result does not depend on it. `cache`: a directory where
    results are kept from one run to the next.
    """
    distinct = sorted(set(paths))
    if options.minimum_torch is None:
        options = replace(options, minimum_torch=minimum_torch_of(root))
    reader = Reader(root, sorted({*distinct, *beside}), options)
    try:
        with collection_paused():
            if cache is None:
                results = {path: outcome.result for path, outcome in _outcomes(reader, distinct, processes)}
            else:
                results = _read_with_cache(ResultCache(cache, options), reader, distinct, processes)
            read = [results[path] for path in distinct]
            known = [result.outline for result in read if result.outline is not None]
            imported = (
                imported_outlines(root, known, reader.paths, max_bytes=options.max_bytes) if follow_imports else ()
            )
            return _joined(read, distinct, reader.paths, imported)
    finally:
        reader.package.release()


def _read_with_cache(
    cache: ResultCache, reader: Reader, wanted: Sequence[str], processes: int
) -> dict[str, FileResult]:
    results: dict[str, FileResult] = {}
    unknown: dict[str, SourceFile | None] = {}
    for path in wanted:
        file = _source_file(reader, path)
        known = cache.load(file, reader.package) if file is not None else None
        if known is not None:
            results[path] = known
        else:
            unknown[path] = file
    for path, outcome in _outcomes(reader, list(unknown), processes):
        results[path] = outcome.result
        file = unknown[path]
        if file is not None:
            cache.store(file, reader.package, outcome.asked, outcome.result)
    if unknown:
        cache.clear_old()
    return results


def _source_file(reader: Reader, path: str) -> SourceFile | None:
    """A file that may be kept; None for one that can't be read, which is nothing to remember."""
    try:
        place = reader.root / path
        if place.stat().st_size > reader.options.max_bytes:
            return None
        return SourceFile(path, reader.layout.locate(path)[1], place.read_bytes())
    except OSError:
        return None


def _outcomes(reader: Reader, wanted: Sequence[str], processes: int) -> Iterator[tuple[str, FileOutcome]]:
    if processes > 1 and len(wanted) >= WORTH_A_POOL:
        yield from read_in_processes(reader, wanted, processes).items()
    else:
        for path in wanted:
            yield path, reader.read(path)


def analyze_source(
    source: bytes | str,
    path: str = "<source>",
    *,
    options: AnalyzerOptions = DEFAULT_OPTIONS,
    root: Path | None = None,
    beside: Sequence[str] = (),
) -> StaticAnalysis:
    """Analyses one file given as text or bytes as if it stood at `path`. Never raises for its content.

    It stands alone there, unless `root` names a directory: then `beside` are the other files of the snapshot.
    """
    if root is None:
        return _joined([analyze_text(source, path, Surroundings(ModuleLayout([path])), options)], [path], [path])
    reader = Reader(root, sorted({path, *beside}), options)
    try:
        return _joined([analyze_text(source, path, reader.surroundings, options)], [path], reader.paths)
    finally:
        reader.package.release()


def _joined(
    results: Sequence[FileResult], paths: Sequence[str], snapshot: Sequence[str], imported: Sequence[Outline] = ()
) -> StaticAnalysis:
    findings: list[Finding] = []
    suppressed: list[Suppression] = []
    outlines: list[Outline] = []
    for result in results:
        findings.extend(result.findings)
        suppressed.extend(result.suppressed)
        if result.outline is not None:
            outlines.append(result.outline)
    together = SnapshotOutline([*outlines, *imported], snapshot)
    targets = targets_of(together, set(paths))
    return StaticAnalysis(
        findings=tuple(findings),
        suppressed=tuple(suppressed),
        targets=targets,
        files=len(paths),
        lines=sum(result.lines for result in results),
        reaches=reaches_of(together, targets),
        closures=closures_of(together, {target.path for target in targets if target.eligible}),
        import_notes=_notes_on_imports(outlines, {target.path for target in targets}),
    )


def _notes_on_imports(outlines: Sequence[Outline], paths: Set[str]) -> tuple[ImportNote, ...]:
    """What importing the files with targets does beside defining things."""
    return tuple(
        ImportNote(outline.path, habit.line, habit.kind, habit.detail)
        for outline in outlines
        if outline.path in paths
        for habit in outline.habits
    )
