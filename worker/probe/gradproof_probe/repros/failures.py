"""The script of a failing check that brings none of its own: what shows each kind of failure outside Gradproof.

Everything that a script needs is read from the result and the recipe, so that checks need not know scripts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gradproof_probe.checks.base import CheckContext, CheckResult, Diagnosis
from gradproof_probe.harness.recipe import make_inputs
from gradproof_probe.repro import whole_script
from gradproof_probe.repros.accumulating import accumulating_body
from gradproof_probe.repros.checkpoints import checkpoint_body
from gradproof_probe.repros.compiling import compiling_body
from gradproof_probe.repros.evaluation import evaluation_body
from gradproof_probe.repros.flowing import flowing_body
from gradproof_probe.repros.half import half_body
from gradproof_probe.repros.hessians import HESSIAN
from gradproof_probe.repros.placing import placing_body
from gradproof_probe.repros.plain_script import plain_script
from gradproof_probe.repros.ranking import ranking_body
from gradproof_probe.repros.recording import recording_body
from gradproof_probe.repros.remembering import remembering_body
from gradproof_probe.repros.sampling import sampling_body
from gradproof_probe.repros.saving import saving_body
from gradproof_probe.repros.stepping import stepping_body
from gradproof_probe.repros.suspected import suspected_body
from gradproof_probe.training.samples import batch_along

Body = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failing check, as its script needs it."""

    context: CheckContext
    diagnosis: Diagnosis
    evidence: Mapping[str, Any]

    @property
    def cause(self) -> str:
        return self.diagnosis.cause

    @property
    def numbers(self) -> Mapping[str, Any]:
        return self.diagnosis.numbers

    def suspicions(self) -> dict[str, Mapping[str, Any]]:
        """What the target was run with in mind, by rule."""
        return {str(item.get("rule")): item for item in self.context.hypotheses}

    def samples(self) -> tuple[int, int] | None:
        """How many samples the given inputs have, along the axis of the evidence, and a number that no axis has."""
        context = self.context
        args, kwargs = make_inputs(context.resolved, context.recipe.inputs, seed=context.seed)
        batch = batch_along(args, kwargs, self.evidence.get("axis", 0))
        spare = None if batch is None else next(batch.spare_sizes(), None)
        return None if batch is None else (batch.size, batch.size if spare is None else spare)


def _sampling(it: _Failure) -> Body | None:
    samples = it.samples()
    return sampling_body(it.cause, it.numbers, it.evidence, None if samples is None else samples[0])


def _suspected(it: _Failure) -> Body | None:
    return suspected_body(str(it.numbers.get("rule")), it.diagnosis.text, it.numbers, it.samples())


def _accumulating(it: _Failure) -> Body | None:
    return stepping_body(it.cause) or accumulating_body(it.evidence)


_BODIES: Final[dict[str, Callable[[_Failure], Body | None]]] = {
    "eval_side_effects": lambda it: evaluation_body(it.cause),
    "state_dict": lambda it: saving_body(it.cause, it.numbers),
    "gradient_flow": lambda it: flowing_body(it.cause, it.numbers),
    "finding_search": _suspected,
    "batch_consistency": _sampling,
    "training_step": lambda it: stepping_body(it.cause),
    "checkpoint_equivalence": lambda it: checkpoint_body(it.cause, it.evidence),
    "accumulation_equivalence": _accumulating,
    "memory": lambda it: remembering_body(it.evidence),
    "autocast": lambda it: half_body(it.numbers, it.evidence),
    "export_equivalence": lambda it: recording_body(it.diagnosis.text),
    "ddp_consistency": lambda it: ranking_body(str(it.evidence.get("kind")), wrapped=bool(it.evidence.get("wrapped"))),
    "compile_equivalence": lambda it: compiling_body(it.cause, it.diagnosis.text, it.evidence, it.suspicions()),
    "device_compare": lambda it: placing_body(it.cause, it.diagnosis.text),
}


def with_repro(check: str, context: CheckContext, result: CheckResult) -> CheckResult:
    """The result, with a script where the check failed and brought none."""
    if result.repro is not None:
        return result
    with contextlib.suppress(Exception):  # submitted code is asked for its inputs: a failure needs no script to be one
        return replace(result, repro=failure_repro(check, context, result))
    return result


def failure_repro(check: str, context: CheckContext, result: CheckResult) -> str | None:
    """The script for what the check failed with; None where no short one shows it."""
    diagnosis = result.diagnosis
    if result.verdict != "fail" or diagnosis is None:
        return None
    target, recipe, seed, summary = context.resolved.target, context.recipe, context.seed, diagnosis.text
    if check == "hvp":
        return whole_script(target, recipe, HESSIAN, seed=seed, summary=summary, dtype="float64")
    find = _BODIES.get(check)
    found = None if find is None else find(_Failure(context, diagnosis, result.evidence))
    if found is None:
        return None
    body, constants = found
    return plain_script(target, recipe, seed=seed, summary=summary, body=body, constants=constants)
