"""Is what reading suspects so? Each static finding is settled at its own place. The methods are in `suspicions`."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.importing import describe_error
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.families import FAMILIES
from gradproof_probe.suspicions.instrument import NotInstrumentableError
from gradproof_probe.suspicions.ordinary import ordinary_values
from gradproof_probe.suspicions.scripts import finding_repro
from gradproof_probe.suspicions.suspect import Answer, Suspect, not_reached, read_suspects


class FindingSearch(Check):
    name: ClassVar[str] = "finding_search"
    cost: ClassVar[float] = 20.0
    adapts: ClassVar[bool] = True
    documentation: ClassVar[Documentation] = Documentation(
        summary="Runs the target with a watch at the place of each static finding, and says whether it is so.",
        what_it_does=(
            "Findings about values that are not finite are settled by `nan_gradient`; this check takes those of other "
            "kinds. The function around a finding is exchanged in memory for a copy in which the place is watched, "
            "line numbers kept. Where a gradient is said to be cut, it is watched whether one goes in and comes out, "
            "and what comes out is moved to see whether the output follows. Where a write in place is said to spoil a "
            "saved tensor, its bytes are compared around the statement, and the gradients with those that backward "
            "gives with what was saved as it was. Module state is reloaded into a new instance, moved to another "
            "device, and carried through two steps; calls in evaluation mode are repeated; one sample of a batch is "
            "changed to see whether others follow; checkpoints are compared with direct calls, half and double "
            "precision with float32; Dynamo is asked where it breaks the graph."
        ),
        how_it_decides=(
            "`fail` when at least one finding that is more than a note is confirmed: what it says happened at its "
            "place, and made a difference to an output, a gradient or what is kept. `pass` when findings were searched "
            "and held. `inconclusive` when no call came to any of them. Graph breaks, other dtypes and tensors left "
            "behind by `.to()` are confirmed without a failure where the rule only notes them. `skipped` when no "
            "finding of these kinds concerns the target."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        suspects = [suspect for suspect in read_suspects(context.hypotheses) if suspect.rule in FAMILIES]
        if not suspects:
            return CheckResult("skipped", "no static finding of a kind that this check settles concerns the target")
        bench = Bench(context.resolved, context.recipe, context.source_root, context.seed, context.deadline)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of much that is tried here on purpose
            answers = [(suspect, _settle(bench, suspect)) for suspect in suspects]
        return _result(bench, answers)


def _settle(bench: Bench, suspect: Suspect) -> Answer:
    if not bench.more():
        return not_reached("time ran out before this one")
    try:
        return FAMILIES[suspect.rule].settle(bench, suspect)
    except NotInstrumentableError as error:
        return not_reached(str(error))
    except Exception as error:  # submitted code can break what it is given in ways that nobody foresees
        return not_reached(f"the search ended with {describe_error(error)[:200]}")


def _result(bench: Bench, answers: list[tuple[Suspect, Answer]]) -> CheckResult:
    evidence: dict[str, Any] = {"hypotheses": [answer.to_wire(suspect) for suspect, answer in answers]}
    shown = [(suspect, answer) for suspect, answer in answers if answer.outcome == "confirmed"]
    if any(suspect.said.get("fix") for suspect, _ in shown):
        evidence["ordinary"] = ordinary_values(bench)
    failing = [(suspect, answer) for suspect, answer in shown if not suspect.is_note]
    if failing:
        suspect, answer = failing[0]
        return CheckResult(
            "fail",
            answer.text,
            diagnosis=Diagnosis("finding_confirmed", answer.text, {"rule": suspect.rule, **answer.numbers}),
            path=suspect.path,
            line=suspect.line,
            evidence=evidence,
            repro=finding_repro(bench, answer),
        )
    held = sum(answer.outcome == "not_reproduced" for _, answer in answers)
    if not held and not shown:
        return CheckResult("inconclusive", f"no call came to any of {len(answers)} places", evidence=evidence)
    notes = f", {len(shown)} notes are so" if shown else ""
    return CheckResult("pass", f"{held} of {len(answers)} findings were searched and held{notes}", evidence=evidence)
