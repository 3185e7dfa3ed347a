"""Which rules speak, where, and how grave it is: what the configuration and the submission say together.

What is asked for on the spot goes before the file: rules selected there replace those of the file, rules ignored there
come on top. The engine's own notes (unreadable files, wrong suppressions) speak unless they are ignored by name. Pure,
but for the clock that bounds untrusted patterns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from analyzer.findings import Finding, Severity, StaticAnalysis
from analyzer.registry import all_rules, rules_named
from services.configuration.errors import ConfigurationError, Mistake
from services.configuration.model import Configuration, PathRules
from services.gates.policy import RuleMode
from services.snapshots.patterns import Coverage, parse_patterns

_ENGINE_NOTES: Final = "GP0"
_MATCHING_SECONDS: Final = 10


class RuleSelection:
    """The rules of one analysis. `select` and `ignore` are those asked for on the spot."""

    def __init__(self, configuration: Configuration, *, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> None:
        self._configuration = configuration
        self._severities = {key: Severity(value) for key, value in configuration.severities.items()}
        self._per_path = [_Part(part) for part in configuration.per_path]
        self._silent: dict[str, frozenset[str]] = {}
        self._spent = 0.0
        selected = select or configuration.select
        ignored = rules_named((*ignore, *configuration.ignore)) | _switched_off(configuration)
        self.rules: frozenset[str] | None = None
        if selected:
            self.rules = rules_named((*selected, _ENGINE_NOTES)) - ignored
        elif ignored:
            self.rules = frozenset(rule.id for rule in all_rules()) - ignored

    def applied(self, analysis: StaticAnalysis) -> StaticAnalysis:
        """The analysis without what the rules for its paths leave out, and with the severities asked for.

        Raises `ConfigurationError` when the patterns are made so that matching them takes longer than 10 seconds.
        """
        if not self._per_path and not self._severities:
            return analysis
        return replace(
            analysis,
            findings=tuple(self._graded(item) for item in analysis.findings if self._speaks(item)),
            suppressed=tuple(
                replace(item, finding=self._graded(item.finding))
                for item in analysis.suppressed
                if self._speaks(item.finding)
            ),
        )

    def rules_at(self, path: str) -> frozenset[str] | None:
        """The rules that speak in one file; None for all. Raises `ConfigurationError` as `applied` does."""
        silent = self._silent_at(path)
        if not silent:
            return self.rules
        return (self.rules if self.rules is not None else _all_but(())) - silent

    def _graded(self, finding: Finding) -> Finding:
        """The rule's id decides, then its name, then the longest beginning of its id."""
        keys = [finding.rule, finding.name, *(finding.rule[:length] for length in range(len(finding.rule), 0, -1))]
        severity = next((self._severities[key] for key in keys if key in self._severities), None)
        return finding if severity is None else replace(finding, severity=severity)

    def _speaks(self, finding: Finding) -> bool:
        return finding.rule not in self._silent_at(finding.region.path)

    def _silent_at(self, path: str) -> frozenset[str]:
        if path not in self._silent:
            start = time.monotonic()
            self._silent[path] = frozenset().union(*(part.silent_at(path) for part in self._per_path))
            self._spent += time.monotonic() - start
            if self._spent > _MATCHING_SECONDS:
                message = f"the patterns take longer than {_MATCHING_SECONDS} seconds to match"
                raise ConfigurationError(self._configuration.file or "", [Mistake(1, "per_path", message)])
        return self._silent[path]


class _Part:
    """The rules for some of the files."""

    def __init__(self, part: PathRules) -> None:
        self._coverage = Coverage(parse_patterns(part.paths))
        silent = rules_named(part.ignore)
        if part.select:
            silent |= _all_but((*part.select, _ENGINE_NOTES))
        self._silent = silent

    def silent_at(self, path: str) -> frozenset[str]:
        return self._silent if self._coverage.covers(path) else frozenset()


def _switched_off(configuration: Configuration) -> frozenset[str]:
    """Rules of mode `off`: what says nothing need not run."""
    if not configuration.rules:
        return frozenset()
    policy = configuration.gate_policy
    return frozenset(rule.id for rule in all_rules() if policy.mode(rule.id, rule.name) is RuleMode.OFF)


def _all_but(words: Iterable[str]) -> frozenset[str]:
    return frozenset(rule.id for rule in all_rules()) - rules_named(words)
