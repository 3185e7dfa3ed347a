"""What an earlier `gradproof check` on this machine found out, for targets that nothing has changed for since.

One object for each analysis. This module must not run anything; where results lie is `worker.local.verdicts`' affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from analyzer.findings import TargetDeclaration
from services.analyses.model import StaticOutcome
from services.findings.hypotheses import Suspicions
from services.reuse.bounds import bounds_of
from services.reuse.keys import Circumstances, content_key, examples_key, is_lasting, run_key
from services.settings import Settings
from worker.circumstances import surroundings_of
from worker.local.verdicts import KeptExamples, KeptResult, VerdictCache


@dataclass
class Reuse:
    """Looks results up and keeps them. `directory` is None where nothing may be reused."""

    directory: Path | None
    source: Path
    snapshot: str
    outcome: StaticOutcome
    suspicions: Suspicions
    settings: Settings
    device: str
    seed: int
    checks: Sequence[str]
    _keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        surroundings = None if self.directory is None else surroundings_of(self.settings, self.source)
        self._circumstances = (
            None
            if surroundings is None
            else Circumstances(surroundings, self.seed, self.outcome.tolerances, bounds_of(self.settings))
        )
        self._cache = None if self.directory is None else VerdictCache(self.directory)

    def load(self, target: TargetDeclaration, mined: Sequence[Mapping[str, object]]) -> KeptResult | None:
        """What is known of a target, given the calls recorded of it."""
        key = self._key(target, mined)
        return None if key is None or self._cache is None else self._cache.load(key, KeptResult)

    def store(self, target: TargetDeclaration, result: KeptResult) -> None:
        """Keep what running a target brought that was looked up before, unless it may come out differently again."""
        key = self._keys.get(target.name)
        if key is None or self._cache is None:
            return
        if is_lasting(result.harness, result.not_run_reason, result.checks, asked=self.checks):
            self._cache.store(key, result)

    def load_examples(self, names: Sequence[str]) -> KeptExamples | None:
        """What the repository's own examples showed, if no file of it has changed."""
        if self._circumstances is None or self._cache is None:
            return None
        return self._cache.load(examples_key(self.snapshot, names, self._circumstances.surroundings), KeptExamples)

    def store_examples(self, names: Sequence[str], examples: KeptExamples) -> None:
        """Keep what they showed."""
        if self._circumstances is not None and self._cache is not None:
            self._cache.store(examples_key(self.snapshot, names, self._circumstances.surroundings), examples)

    def clear_old(self) -> None:
        """Take away what was not used for longest, when there is too much."""
        if self._cache is not None:
            self._cache.clear_old()

    def _key(self, target: TargetDeclaration, mined: Sequence[Mapping[str, object]]) -> str | None:
        if self._circumstances is None:
            return None
        declared = self.outcome.declared.get(target.name)
        content = content_key(
            target,
            self.outcome.analysis.closures.get(target.path),
            declared=None if declared is None else asdict(declared),
            hypotheses=self.suspicions.of(target),
            circumstances=self._circumstances,
        )
        if content is None:
            return None
        key = run_key(content, mined=mined, device=self.device, checks=self.checks)
        self._keys[target.name] = key
        return key
