"""Reading a stored snapshot: its configuration, its findings, its targets.

Runs nothing of what it reads. The caller decides in which process: hostile sources are read in one that may be
killed. This module must not know the database.
"""

from __future__ import annotations

from pathlib import Path

from analyzer.engine import AnalyzerOptions, analyze_files
from analyzer.registry import all_rules
from services.analyses.model import AnalysisOptions, DeclaredTarget, StaticOutcome, rule_ids
from services.checks.plan import CHECKS
from services.configuration import Configuration, read_configuration

# The engine's own notes (unreadable files, suppressions) are no rules that one could leave out.
_ENGINE_NOTES = "GP0"


def read_snapshot(root: Path, options: AnalysisOptions) -> StaticOutcome:
    """What reading the snapshot at `root` brings.

    Raises `ConfigurationError`, which names file, line and key, when the repository's own configuration is wrong:
    going on with defaults would show a team results that its own rules and gates do not stand behind.
    """
    known_rules = [word for rule in all_rules() for word in (rule.id, rule.name)]
    configuration = read_configuration(root, rules=known_rules, checks=CHECKS)
    rules = rule_ids((*options.rules, _ENGINE_NOTES)) if options.rules else None
    analysis = analyze_files(root, _sources(root, configuration), options=AnalyzerOptions(rules=rules))
    return StaticOutcome(
        analysis=analysis,
        policy=configuration.gate_policy,
        declared={
            target.target: DeclaredTarget(target.constructor, target.inputs, target.provenance)
            for target in configuration.targets
        },
        tolerances=dict(configuration.tolerances),
        checks=configuration.checks or (),
    )


def _sources(root: Path, configuration: Configuration) -> list[str]:
    """The Python files of the snapshot that its configuration does not leave out, as paths with forward slashes."""
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*.py") if path.is_file())
    return sorted(configuration.select(paths))
