"""The `examples` job: run a repository's own examples for the calls they make, then let its targets begin.

However that ends, the targets are queued: what fails here costs harnesses and never the analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from services.jobs.model import Claim
from services.jobs.models import JobState
from worker.environments.told import packages_for
from worker.execution import Examples, ExamplesOutcome, run_examples
from worker.sandbox import SandboxUnavailableError, open_sandbox
from worker.tools import Tools

_ENDED: Final = {"crashed": JobState.CRASHED, "timed out": JobState.TIMED_OUT, "out of memory": JobState.CRASHED}


def run_own_examples(claims: Sequence[Claim], tools: Tools) -> None:
    """Run them and report. A sandbox that can't be set up, or a probe that does not come up, is tried again."""
    (claim,) = claims
    work = tools.load(lambda: tools.results.examples_work(claim))
    source = tools.store.path(work.snapshot_digest)
    examples = Examples(
        source=source,
        targets=work.targets,
        python=tools.settings.python,
        layer=packages_for(source, claim, tools),
    )
    try:
        outcome = run_examples(
            examples,
            launcher=open_sandbox(tools.settings),
            settings=tools.settings,
            cancelled=lambda: not tools.held.holds(claim),
        )
    except SandboxUnavailableError as error:
        reason = error.message
        tools.end(claim, lambda: tools.results.lost(claim, reason))
        return
    if outcome.torch is None and outcome.cause is not None:
        tools.end(claim, lambda: tools.results.lost(claim, f"{outcome.cause}: {outcome.detail}"))
    else:
        tools.end(claim, lambda: _report(claim, outcome, tools))


def _report(claim: Claim, outcome: ExamplesOutcome, tools: Tools) -> None:
    ended = None
    if outcome.cause is not None:
        ended = (_ENDED.get(outcome.cause, JobState.FAILED), f"{outcome.cause}: {outcome.detail}")
    calls = {name: [asdict(call) for call in calls] for name, calls in outcome.calls.items()}
    tools.results.examples(claim, outcome.tried, calls, ended=ended, peak_memory=outcome.peak_memory)
