"""Reads one file, shows it to the rules, and turns what the rules say into findings.

This module must not know single rules (but for the engine's own notes), and must never raise for what a file
contains: a file that can't be analysed is a finding of its own (GP001, GP002), and the others go on.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from analyzer.alarm import interrupted_after
from analyzer.concrete import Places
from analyzer.context import DeadlineError, FileContext
from analyzer.findings import Finding, Fix, Region, Related, Suppression
from analyzer.fingerprints import Fingerprinter, normalised_source
from analyzer.modules import ModuleLayout
from analyzer.notebooks import SIZE_FACTOR, Notebook, is_notebook, read_notebook
from analyzer.options import AnalyzerOptions
from analyzer.outline import Outline, outline_of
from analyzer.package import Package
from analyzer.registry import all_rules
from analyzer.rewriting import fix_of
from analyzer.rules.base import Hit, Rule
from analyzer.rules.engine_notes import (
    EngineNote,
    SuppressionWithoutReasonNote,
    SyntaxErrorNote,
    UnreadableFileNote,
    UnusedSuppressionNote,
)
from analyzer.source import (
    InvalidSyntaxError,
    UnreadableSourceError,
    collection_paused,
    decode,
    normalise,
    parse,
    require_size,
)
from analyzer.suppressions import SuppressionComment, SuppressionTable, find_comments
from analyzer.triggers import Triggers

# The alarm is for what forgets to look at the clock, so it comes after the limit.
_GRACE_SECONDS = 0.5
_MENTIONS_TORCH = re.compile(r"\btorch\b")


@dataclass(frozen=True, slots=True)
class _Note:
    """A remark of the engine's own; `subject` tells two of one kind apart in a fingerprint."""

    kind: type[EngineNote]
    region: Region
    message: str
    subject: str = ""


class RuleFailedError(Exception):
    """A rule raised something that is no property of the file but a mistake of its own."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known beside the file itself: how the snapshot is laid out, and what its other files define."""

    layout: ModuleLayout
    package: Package | None = None


@dataclass(frozen=True, slots=True)
class FileResult:
    """What reading one file brought. `outline` is None for a file that could not be analysed."""

    findings: tuple[Finding, ...]
    suppressed: tuple[Suppression, ...] = ()
    lines: int = 0
    outline: Outline | None = None


def analyze_path(file: Path, path: str, surroundings: Surroundings, options: AnalyzerOptions) -> FileResult:
    """The result for the file at `file`, which is called `path` in findings. Never raises for the file."""
    try:
        factor = SIZE_FACTOR if is_notebook(path) else 1
        require_size(file.stat().st_size, options.max_bytes * factor)
        data = file.read_bytes()
    except OSError as error:
        return unreadable(path, f"can't be opened: {error.strerror or error}", 1, options)
    except UnreadableSourceError as error:
        return unreadable(path, error.reason, error.line, options)
    return analyze_text(data, path, surroundings, options)


def analyze_text(source: bytes | str, path: str, surroundings: Surroundings, options: AnalyzerOptions) -> FileResult:
    """The result for a file of this content. Never raises for the content."""
    with collection_paused():
        return _read_and_analyze(source, path, surroundings, options)


def _read_and_analyze(
    source: bytes | str, path: str, surroundings: Surroundings, options: AnalyzerOptions
) -> FileResult:
    if is_notebook(path):
        return _analyze_notebook(source, path, surroundings, options)
    try:
        text = _text(source, options.max_bytes)
    except UnreadableSourceError as error:
        return unreadable(path, error.reason, error.line, options)
    return _analyze_module(text, path, surroundings, options)


def _text(source: bytes | str, max_bytes: int) -> str:
    return decode(source, max_bytes=max_bytes) if isinstance(source, bytes) else normalise(source)


def _analyze_notebook(
    source: bytes | str, path: str, surroundings: Surroundings, options: AnalyzerOptions
) -> FileResult:
    """The result for the code cells of a notebook, told in cells and their lines. Nothing can be imported from it."""
    try:
        notebook = read_notebook(_text(source, options.max_bytes * SIZE_FACTOR))
        require_size(len(notebook.text), options.max_bytes)
    except UnreadableSourceError as error:
        return unreadable(path, error.reason, error.line, options)
    result = _analyze_module(notebook.text, path, surroundings, options)
    notes: list[_Note] = []
    for broken in notebook.broken:
        region = Region(path, broken.line, broken.column, broken.line, broken.column + 1)
        place = notebook.locate(region)
        where = f"cell {place.cell}, line {place.start_line}"
        message = f"Not valid Python: {broken.reason} ({where}). This cell was not analysed."
        notes.append(_Note(SyntaxErrorNote, region, message))
    findings = sorted((*result.findings, *_notes(notes, path, options)), key=lambda item: (item.region, item.rule))
    return FileResult(
        findings=tuple(_in_cells(finding, notebook) for finding in findings),
        suppressed=tuple(Suppression(_in_cells(item.finding, notebook), item.reason) for item in result.suppressed),
        lines=result.lines,
        outline=_of_notebook(result.outline) if result.outline is not None else None,
    )


def _of_notebook(outline: Outline) -> Outline:
    """Nothing can be imported from a notebook, so that nothing in it is a target or a helper of one."""
    return replace(outline, classes=(), functions=(), definitions=(), habits=())


def _in_cells(finding: Finding, notebook: Notebook) -> Finding:
    edits = tuple(replace(edit, region=notebook.locate(edit.region)) for edit in finding.fix.edits)
    region = notebook.locate(finding.region)
    within = all(edit.region.cell == region.cell for edit in edits)
    return replace(
        finding,
        region=region,
        related=tuple(replace(related, region=notebook.locate(related.region)) for related in finding.related),
        fix=replace(finding.fix, edits=edits) if within else Fix(),
    )


def _analyze_module(text: str, path: str, surroundings: Surroundings, options: AnalyzerOptions) -> FileResult:
    deadline = time.monotonic() + options.max_seconds_per_file
    try:
        tree = parse(text)
    except UnreadableSourceError as error:
        return unreadable(path, error.reason, error.line, options)
    except InvalidSyntaxError as error:
        region = Region(path, error.line, error.column, error.line, error.column + 1)
        message = f"Not valid Python: {error.reason} (line {error.line}). Nothing in this file was analysed."
        return FileResult(_notes([_Note(SyntaxErrorNote, region, message)], path, options))
    file = FileContext(
        path=path,
        module=surroundings.layout.locate(path)[1],
        text=text,
        tree=tree,
        deadline=deadline,
        package=surroundings.package,
        minimum_torch=options.minimum_torch,
    )
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    try:
        with interrupted_after(options.max_seconds_per_file + _GRACE_SECONDS, DeadlineError):
            outline = outline_of(file)
            findings, suppressed = _apply_rules(file, options)
    except DeadlineError:
        reason = f"the analysis took longer than {options.max_seconds_per_file:g} s and was given up"
        return unreadable(path, reason, 1, options)
    except RuleFailedError as error:
        return unreadable(path, str(error), 1, options)
    except RecursionError:
        return unreadable(path, "nested too deeply to be analysed", 1, options)
    finally:
        file.release()
    return FileResult(findings, suppressed, lines, outline)


def _apply_rules(file: FileContext, options: AnalyzerOptions) -> tuple[tuple[Finding, ...], tuple[Suppression, ...]]:
    hits: list[tuple[Rule, Hit]] = []
    if _MENTIONS_TORCH.search(file.text):
        rules = all_rules()
        for number in _triggers(rules).met(file.words):
            rule = rules[number]
            if options.runs(rule.id):
                file.check_deadline()
                hits.extend(_hits_of(rule, file))
    comments = find_comments(file.text)
    if not hits and not comments:
        return (), ()
    return _Reporter(file, options, comments).report(hits)


@cache
def _triggers(rules: tuple[Rule, ...]) -> Triggers:
    return Triggers([rule.triggers for rule in rules])


def _hits_of(rule: Rule, file: FileContext) -> list[tuple[Rule, Hit]]:
    try:
        return [(rule, hit) for hit in rule.check(file)]
    except (DeadlineError, RecursionError):
        raise
    except Exception as error:
        # A mistake in one rule costs this file, with a note that names the rule, and not the whole snapshot.
        raise RuleFailedError(f"rule {rule.id} failed on it ({type(error).__name__}: {error})") from error


class _Reporter:
    """Turns the hits in one file into findings, some of them suppressed."""

    def __init__(self, file: FileContext, options: AnalyzerOptions, comments: list[SuppressionComment]) -> None:
        self._file = file
        self._options = options
        self._places = Places(file.path, file.text, file.index.parents)
        self._fingerprinter = Fingerprinter(file.path)
        self._table = SuppressionTable(comments)

    def report(self, hits: list[tuple[Rule, Hit]]) -> tuple[tuple[Finding, ...], tuple[Suppression, ...]]:
        placed = [(self._places.region(hit.node), rule, hit) for rule, hit in hits]
        placed.sort(key=lambda item: (item[0], item[1].id))
        findings: list[Finding] = []
        suppressed: list[Suppression] = []
        for region, rule, hit in placed:
            finding = self._finding(region, rule, hit)
            lines = range(region.start_line, region.end_line + 1)
            comment = self._table.match(rule.id, lines, self._places.statement_line(hit.node))
            if comment is None:
                findings.append(finding)
            else:
                suppressed.append(Suppression(finding, comment.reason))
        findings.extend(_notes(self._comment_notes(), self._file.path, self._options))
        findings.sort(key=lambda finding: (finding.region, finding.rule))
        return tuple(findings), tuple(suppressed)

    def _finding(self, region: Region, rule: Rule, hit: Hit) -> Finding:
        symbol = self._file.symbol(hit.node)
        source = normalised_source(hit.node, self._file.text)
        return Finding(
            fingerprint=self._fingerprinter.fingerprint(rule.id, symbol, source),
            rule=rule.id,
            name=rule.name,
            severity=hit.severity or rule.severity,
            confidence=hit.confidence or rule.confidence,
            region=region,
            symbol=symbol,
            message=hit.message,
            settled_by=rule.settled_by,
            hypothesis=hit.hypothesis,
            fix=fix_of(self._file, hit.fix) if hit.fix is not None else Fix(),
            related=tuple(Related(self._places.region(node), message) for node, message in hit.related),
        )

    def _comment_notes(self) -> list[_Note]:
        known = {rule.id for rule in all_rules()}
        notes: list[_Note] = []
        for comment in self._table.comments:
            region = Region(self._file.path, comment.line, comment.column, comment.line, comment.end_column)
            names = ", ".join(comment.rules)
            if not comment.rules:
                message = "This comment names no rule and silences nothing; write `# gradproof: ignore[GP101] reason`."
                notes.append(_Note(SuppressionWithoutReasonNote, region, message))
            elif not comment.reason:
                message = f"No reason is given for ignoring {names}, so nothing is silenced."
                notes.append(_Note(SuppressionWithoutReasonNote, region, message, names))
            else:
                for rule in comment.rules:
                    if rule not in known:
                        notes.append(_Note(UnusedSuppressionNote, region, f"There is no rule {rule}.", rule))
                    elif rule not in comment.used and self._options.runs(rule):
                        message = f"{rule} finds nothing here: remove the comment."
                        notes.append(_Note(UnusedSuppressionNote, region, message, rule))
        return notes


def unreadable(path: str, reason: str, line: int, options: AnalyzerOptions) -> FileResult:
    """The result for a file that was given up."""
    message = f"Not analysed: {reason}."
    return FileResult(_notes([_Note(UnreadableFileNote, Region(path, line, 1, line, 1), message)], path, options))


def _notes(notes: list[_Note], path: str, options: AnalyzerOptions) -> tuple[Finding, ...]:
    fingerprinter = Fingerprinter(path)
    return tuple(
        Finding(
            fingerprint=fingerprinter.fingerprint(note.kind.id, "", note.subject),
            rule=note.kind.id,
            name=note.kind.name,
            severity=note.kind.severity,
            confidence=note.kind.confidence,
            region=note.region,
            symbol="",
            message=note.message,
        )
        for note in notes
        if options.runs(note.kind.id)
    )
