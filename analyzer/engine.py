"""Analyses the files of a snapshot, or one file by itself.

This module must not know rules, and must never raise for what a file contains: a file that can't be analysed is a
finding of its own (GP001, GP002), and the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analyzer.file_analysis import FileResult, Surroundings, analyze_path, analyze_text
from analyzer.findings import Finding, StaticAnalysis, Suppression, TargetDeclaration
from analyzer.modules import ModuleLayout
from analyzer.options import DEFAULT_OPTIONS, AnalyzerOptions
from analyzer.outline import Outline
from analyzer.package import Package
from analyzer.targets import targets_of

__all__ = ["DEFAULT_OPTIONS", "AnalyzerOptions", "analyze_files", "analyze_source"]


def analyze_files(root: Path, paths: Sequence[str], *, options: AnalyzerOptions = DEFAULT_OPTIONS) -> StaticAnalysis:
    """Analyses files of a snapshot; `paths` are relative to `root`, with forward slashes. Never raises for a file."""
    distinct = sorted(set(paths))
    layout = ModuleLayout(distinct)
    package = Package(root, distinct, layout)
    surroundings = Surroundings(layout, package)
    try:
        results = [analyze_path(root / path, path, surroundings, options) for path in distinct]
    finally:
        package.release()
    return _joined(results, distinct)


def analyze_source(
    source: bytes | str, path: str = "<source>", *, options: AnalyzerOptions = DEFAULT_OPTIONS
) -> StaticAnalysis:
    """Analyses one file given as text or bytes, as if it stood alone at `path`. Never raises for its content."""
    return _joined([analyze_text(source, path, Surroundings(ModuleLayout([path])), options)], [path])


def _joined(results: Sequence[FileResult], paths: Sequence[str]) -> StaticAnalysis:
    findings: list[Finding] = []
    suppressed: list[Suppression] = []
    outlines: list[Outline] = []
    for result in results:
        findings.extend(result.findings)
        suppressed.extend(result.suppressed)
        if result.outline is not None:
            outlines.append(result.outline)
    targets: tuple[TargetDeclaration, ...] = targets_of(outlines, paths)
    return StaticAnalysis(
        findings=tuple(findings),
        suppressed=tuple(suppressed),
        targets=targets,
        files=len(paths),
        lines=sum(result.lines for result in results),
    )
