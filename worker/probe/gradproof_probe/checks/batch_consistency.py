"""Does a sample yield the same whoever else is in its batch, and a position whatever is hidden from it?

The comparisons themselves are in `training.batches` and `training.sequences`.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.training.batches import Samples
from gradproof_probe.training.instances import Instances, input_names
from gradproof_probe.training.sequences import Sequences


class BatchConsistency(Check):
    name: ClassVar[str] = "batch_consistency"
    cost: ClassVar[float] = 10.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Changes one sample of a batch and looks whether the outputs of others change, in evaluation mode.",
        what_it_does=(
            "The batch of the harness is brought to a number of samples that no other axis has, so that the axis of "
            "samples can be told. One sample is changed (the first, then the last); results of all operations are "
            "compared with those of a run without the change, and where the change gets to other samples, the result "
            "is put back for them: the operation for which that makes the outputs right is the cause. At last a "
            "sample is given alone. Where code says that it is causal (a flag, its name, a triangular mask), later "
            "positions are changed, and where an argument holds lengths or a padding mask, what it hides. "
            "Functions and custom Functions are tried likewise; a function is causal if its name or an argument that "
            "is True says so."
        ),
        how_it_decides=(
            "`fail` where an output keeps the axis of samples and a cause was shown: a reshape that puts several "
            "samples into one row, copies in another order than the rows they meet, a mask lined up with another "
            "axis, a sequence layer that takes samples for steps, a softmax, cumulative sum or statistic over the "
            "batch (where code or layers say that the first axis is the batch), batch norm that ignores its running "
            "statistics; likewise where later positions reach earlier outputs, and where attention, an average or a "
            "recurrent layer lets hidden positions through. Names that speak of pairs, graphs, sets, contrast, "
            "whitening and the like, and products that compare samples, are `inconclusive`, with the word. `skipped` "
            "where no output keeps samples apart (a loss) or no input has an axis of samples. A function may be one of "
            "any axes: it is judged only where its code, comments or docstring say that the first is the batch, and "
            "means, norms and other figures of the whole batch are `inconclusive` there, as they may be its purpose."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        target = context.resolved.target
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                instances = Instances(context)
                samples = Samples(instances, seed=context.seed)
                found = samples.run()
                evidence = samples.evidence
                if found.verdict != "fail" and instances.more():
                    names = input_names(context.resolved.value)
                    sequences = Sequences(instances, seed=context.seed, input_names=names)
                    found = _together(found, sequences.run(), sequences.evidence)
                    evidence |= sequences.evidence
            except ExpressionError as error:
                return CheckResult("error", f"the target can't be built: {describe_error(error.cause, 300)}")
            except Exception as error:
                mode = "in evaluation mode the" if target.kind == "module" else "the"
                return CheckResult("error", f"{mode} call raises {describe_error(error, 300)}")
        return found.result(target, evidence)


def _together(samples: Answer, positions: Answer | None, evidence: dict[str, Any]) -> Answer:
    """The worse of what samples and what positions of sequences know of each other."""
    if positions is not None and (positions.verdict == "fail" or samples.verdict in ("pass", "skipped")):
        return positions
    held = [str(evidence[name]) for name in ("causal", "padding") if name in evidence]
    if held and samples.verdict == "skipped":
        return Answer("pass", "separate", "; ".join(held))
    if held and samples.verdict == "pass":
        return Answer("pass", samples.cause, "; ".join([samples.text, *held]))
    return samples
