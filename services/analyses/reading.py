"""Reading a stored snapshot: its configuration, its findings, its targets.

Runs nothing of what it reads. The caller decides in which process: hostile sources are read in one that may be
killed. This module must not know the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from analyzer.engine import AnalyzerOptions, analyze_files
from analyzer.findings import StaticAnalysis
from analyzer.registry import all_rules
from services.analyses.declared import Undiscovered
from services.analyses.examples import has_examples, is_text
from services.analyses.model import AnalysisOptions, DeclaredTarget, StaticOutcome
from services.checks.plan import CHECKS
from services.configuration import Configuration, RuleSelection, read_configuration
from services.gates.policy import RuleMode

# What is read: modules, and notebooks.
SUFFIXES: Final = (".py", ".ipynb")
# The keys of the configuration that decide which rule speaks of which file.
CHOOSES: Final = ("include", "exclude", "select", "ignore", "per_path", "rules")


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read, beside what is asked for.

    `only` are the files that count (None: all); the others tell what is a package and may hold helpers. `processes` and
    `cache` are the analyzer's.
    """

    only: frozenset[str] | None = None
    processes: int = 1
    cache: Path | None = None


def read_snapshot(root: Path, options: AnalysisOptions) -> StaticOutcome:
    """What reading the snapshot at `root` brings.

    Raises `ConfigurationError`, which names file, line and key, when the repository's own configuration is wrong:
    going on with defaults would show a team results that its own rules and gates do not stand behind.
    """
    files = [path for path in root.rglob("*") if (path.suffix in SUFFIXES or is_text(path)) and path.is_file()]
    paths = [path.relative_to(root).as_posix() for path in files if path.suffix in SUFFIXES]
    outcome = read_files(root, paths, options)
    runs = bool(outcome.analysis.targets) and not options.static_only
    return replace(outcome, has_examples=runs and has_examples(root, paths, filter(is_text, files)))


def read_files(
    root: Path,
    paths: Iterable[str],
    options: AnalysisOptions,
    *,
    configured_at: Path | None = None,
    reading: Reading = Reading(),
) -> StaticOutcome:
    """The same for some files below `root`, by the configuration at `configured_at` (None: at `root`)."""
    configuration = _under(options.modes, known_configuration(configured_at or root))
    selection = RuleSelection(configuration, select=options.rules, ignore=options.ignore)
    modules = [path for path in paths if path.endswith(SUFFIXES)]
    selected = sorted(configuration.files(modules))
    wanted = selected if reading.only is None else [path for path in selected if path in reading.only]
    analysis = analyze_files(
        root,
        wanted,
        options=AnalyzerOptions(rules=selection.rules),
        processes=reading.processes,
        cache=reading.cache,
        beside=modules,
        follow_imports=not options.static_only,
    )
    outcome = outcome_of(selection.applied(analysis), configuration)
    return with_declared(outcome, Undiscovered(root, modules, configuration, analysis.targets))


def with_declared(outcome: StaticOutcome, declared: Undiscovered) -> StaticOutcome:
    """The outcome with the declared targets that reading did not find, each in its place."""
    if not declared.found:
        return outcome
    targets = sorted((*outcome.analysis.targets, *declared.found), key=lambda target: (target.path, target.line))
    guessed = {
        target.name: replace(outcome.declared[target.name], guessed=True)
        for target in declared.found
        if target.name not in declared.absent
    }
    return replace(
        outcome,
        analysis=replace(outcome.analysis, targets=tuple(targets)),
        declared={**outcome.declared, **guessed},
        absent=declared.absent,
    )


def known_configuration(root: Path) -> Configuration:
    """The configuration at `root`, with every rule and check in it known to exist. Raises `ConfigurationError`."""
    rules = [word for rule in all_rules() for word in (rule.id, rule.name)]
    return read_configuration(root, rules=rules, checks=CHECKS)


def outcome_of(analysis: StaticAnalysis, configuration: Configuration) -> StaticOutcome:
    """An analysis together with what the configuration says about what follows it."""
    return StaticOutcome(
        analysis=analysis,
        policy=configuration.gate_policy,
        declared={
            target.target: DeclaredTarget(target.constructor, target.inputs, target.provenance)
            for target in configuration.targets
        },
        tolerances=dict(configuration.tolerances),
        checks=configuration.checks or (),
        reading=configuration.model_dump(mode="json", include=set(CHOOSES)),
    )


def _under(modes: Mapping[str, RuleMode], configuration: Configuration) -> Configuration:
    """The configuration with the modes that go before its own: a change must not switch off what judges it."""
    return configuration.model_copy(update={"rules": {**configuration.rules, **modes}}) if modes else configuration
