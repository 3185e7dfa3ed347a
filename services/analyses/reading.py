"""Reads a snapshot: its configuration, its findings, its targets. What needs no running, in one pure call.

Used by the worker (in a process that can be killed: hostile source may hang or crash a parser) and by the command line.
This module must not know the database.
"""

from __future__ import annotations

from pathlib import Path

from analyzer.engine import AnalyzerOptions, analyze_files
from services.analyses.model import AnalysisOptions, StaticOutcome, rule_ids


def read_snapshot(source: Path, options: AnalysisOptions) -> StaticOutcome:
    """Read the files below `source`, a directory of plain files."""
    paths = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.py") if path.is_file())
    rules = rule_ids(options.rules) if options.rules else None
    return StaticOutcome(analysis=analyze_files(source, paths, options=AnalyzerOptions(rules=rules)))
