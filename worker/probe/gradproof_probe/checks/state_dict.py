"""Is everything that matters for the output in the state dict? The comparison itself is in `training.saving`."""

from __future__ import annotations

import warnings
from typing import ClassVar

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.training.instances import Instances
from gradproof_probe.training.saving import Reloading


class StateDict(Check):
    name: ClassVar[str] = "state_dict"
    cost: ClassVar[float] = 8.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Saves the state dict, loads it into a new instance, and compares what the two compute.",
        what_it_does=(
            "The new instance is built with another seed (what the caller hands to the constructor stays the same), "
            "and the state dict goes through `torch.save` and `torch.load(weights_only=True)` in memory. Then the "
            "module is trained for two steps, saved and loaded again, and compared in evaluation and in training mode "
            "on other data. Where outputs differ, single attributes of the saved instance are copied into the new one "
            "until they are equal: what has to be copied is what was lost."
        ),
        how_it_decides=(
            "`fail` when an attribute was found whose copy makes the outputs equal: trained tensors that are not "
            "registered (a list of layers, a plain tensor), random tensors of the constructor, flags, numbers and "
            "running estimates that training changes; also when the first call registers something that a new "
            "instance refuses to load. Constant tables are the same each time and are no fault. Hidden states, caches "
            "and queues that start anew, frozen networks kept apart and buffers declared as not persistent are "
            "`inconclusive`, with what they are. `skipped` for what is no module, or keeps nothing that changes its "
            "output."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        target = context.resolved.target
        if target.kind != "module":
            return CheckResult("skipped", f"the target is a {target.kind.replace('_', ' ')} and has no state dict")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reloading = Reloading(Instances(context))
                found = reloading.run()
            except ExpressionError as error:
                return CheckResult("error", f"the target can't be built: {describe_error(error.cause, 300)}")
            except Exception as error:
                text = f"the target can't be called, saved or loaded: {describe_error(error, 300)}"
                return CheckResult("error", text)
        return found.result(target, reloading.evidence)
