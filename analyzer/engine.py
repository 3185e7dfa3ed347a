"""Reads files, shows them to the rules, and turns what the rules say into findings.

This module must not know single rules, and must never raise for what a file contains.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzer.context import FileContext
from analyzer.findings import Finding, Region, StaticAnalysis
from analyzer.registry import all_rules


@dataclass(frozen=True, slots=True)
class AnalyzerOptions:
    """What to run and how far to go.

    `rules`: ids to run (None: all). `max_bytes`: larger files are refused. `max_seconds_per_file`: after that much
    time a file is given up.
    """

    rules: frozenset[str] | None = None
    max_bytes: int = 4 * 1024 * 1024
    max_seconds_per_file: float = 20.0


DEFAULT_OPTIONS = AnalyzerOptions()


def analyze_source(
    source: bytes | str, path: str = "<source>", *, options: AnalyzerOptions = DEFAULT_OPTIONS
) -> StaticAnalysis:
    """Analyses one file given as text or bytes."""
    text = source if isinstance(source, str) else source.decode("utf-8")
    tree = ast.parse(text)
    context = FileContext(path=path, module="", text=text, tree=tree)
    findings: list[Finding] = []
    for rule in all_rules():
        if options.rules is not None and rule.id not in options.rules:
            continue
        for hit in rule.check(context):
            node = hit.node
            region = Region(path, node.lineno, node.col_offset + 1, node.end_lineno or 0, (node.end_col_offset or 0) + 1)  # type: ignore[attr-defined]
            findings.append(
                Finding(
                    fingerprint="", rule=rule.id, name=rule.name, severity=hit.severity or rule.severity,
                    confidence=hit.confidence or rule.confidence, region=region, symbol=context.symbol(node),
                    message=hit.message, settled_by=rule.settled_by, hypothesis=hit.hypothesis,
                )
            )
    return StaticAnalysis(tuple(findings), (), (), 1, text.count("\n"))


def analyze_files(root: Path, paths: Sequence[str], *, options: AnalyzerOptions = DEFAULT_OPTIONS) -> StaticAnalysis:
    """Analyses files of a snapshot; `paths` are relative to `root`, with forward slashes."""
    parts = [analyze_source((root / path).read_bytes(), path, options=options) for path in paths]
    return StaticAnalysis(
        tuple(finding for part in parts for finding in part.findings), (), (), len(parts), sum(p.lines for p in parts)
    )
