"""Whether an analysis looked for a finding that it does not have: only then the finding is fixed.

A rule that was not chosen, a file that was not read, a check that did not run say nothing about what they would have
found. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from analyzer.registry import all_rules
from services.analyses.model import AnalysisOptions
from services.checks.plan import CHECKS
from services.configuration import Configuration, RuleSelection
from services.configuration.errors import ConfigurationError
from services.findings.model import SettledFinding, TargetResult

# What the engine says of a file that it could not read, or only in part.
UNREADABLE: Final = frozenset({"GP001", "GP002"})


class Looked:
    """What one analysis looked for.

    `reading` is what the configuration of the repository chose (`StaticOutcome.reading`); None: nobody knows, as of
    analyses of before it was kept, and then nothing was looked for. `paths` are the files that are asked about.
    """

    def __init__(
        self,
        options: AnalysisOptions,
        reading: Mapping[str, object] | None,
        findings: Collection[SettledFinding],
        targets: Sequence[TargetResult],
        paths: Collection[str],
    ) -> None:
        self._selection: RuleSelection | None = None
        self._read: frozenset[str] = frozenset()
        if reading is not None:
            configuration = Configuration.model_validate(reading)
            self._selection = RuleSelection(configuration, select=options.rules, ignore=options.ignore)
            with suppress(ConfigurationError):  # its patterns take too long to be matched: nothing is known
                self._read = frozenset(configuration.files(paths))
        self._static_only = options.static_only
        self._rules = frozenset(rule.id for rule in all_rules())
        self._unreadable = {item.finding.region.path for item in findings if item.finding.rule in UNREADABLE}
        self._targets = {target.declaration.name: target for target in targets}

    def for_rule(self, rule: str, path: str) -> bool:
        """Whether the rule was there to speak of the file. A file that is not there any more has been looked at."""
        if self._selection is None or rule not in self._rules or path not in self._read:
            return False
        if path in self._unreadable and rule not in UNREADABLE:
            return False
        try:
            speaking = self._selection.rules_at(path)
        except ConfigurationError:
            return False
        return speaking is None or rule in speaking

    def for_failure(self, check: str, targets: Collection[str]) -> bool:
        """Whether the check passes on all of these targets that are still there.

        One that fails, if only for another reason, may hide what it failed for before.
        """
        if self._static_only or check not in CHECKS or not targets:
            return False
        return all(
            any(result.check == check and result.verdict == "pass" for result in target.checks)
            for target in map(self._targets.get, targets)
            if target is not None
        )
