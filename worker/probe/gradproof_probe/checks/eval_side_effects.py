"""Does a call in evaluation mode leave everything as it was? And a call of a function, which has no mode?

The calls themselves are in `training.side_effects` and `training.function_effects`.
"""

from __future__ import annotations

import warnings
from typing import ClassVar

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.training.function_effects import FunctionEffects
from gradproof_probe.training.instances import Instances, input_names
from gradproof_probe.training.side_effects import Evaluation


class EvalSideEffects(Check):
    name: ClassVar[str] = "eval_side_effects"
    cost: ClassVar[float] = 2.0
    documentation: ClassVar[Documentation] = Documentation(
        summary=(
            "Calls a target three times, a module in evaluation mode, and compares all that should have stayed as it "
            "was."
        ),
        what_it_does=(
            "Two calls with the same input and other random numbers, one with another input. Before and after, it "
            "compares outputs, parameters, buffers, plain attributes, the inputs themselves, training flags, the "
            "random generators, grad mode, default dtype and precision settings. Each operation that draws random "
            "numbers or writes to an input is noted with its line. Of a function, the names of its file and its "
            "default arguments are compared as well; where a call changes any, calls are repeated with these put back."
        ),
        how_it_decides=(
            "`fail` for dropout that is on in evaluation mode (called without `training=self.training`, a layer that "
            "`eval()` does not reach, attention with `dropout_p`, hand-written drop paths), for parameters and running "
            "statistics that every call moves, for a submodule that is put into training mode, for arguments that are "
            "written to, for a global generator that the call seeds, and for process-wide settings that it leaves "
            "changed. Sampling, dropout that is switched on by a literal True or by name (Monte Carlo dropout), and "
            "states that advance from call to call are `inconclusive`, with what they are. Caches and tables made by "
            "the first call, arguments that are caches or outputs by name, and `inplace=True` are by design. A "
            "function fails for arguments that it writes to beside returning another result, unless its name, its "
            "comments or its callers make that their affair, for a default argument or a constant of the file that "
            "each call changes so that its results change, and for a cache that gives later inputs what belongs to "
            "earlier ones."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        target = context.resolved.target
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                names = input_names(context.resolved.value)
                instances = Instances(context)
                calls: Evaluation | FunctionEffects = FunctionEffects(context, instances, input_names=names)
                if target.kind == "module":
                    calls = Evaluation(instances, seed=context.seed, input_names=names)
                found = calls.run()
            except ExpressionError as error:
                return CheckResult("error", f"the target can't be built: {describe_error(error.cause, 300)}")
            except Exception as error:
                mode = "in evaluation mode the" if target.kind == "module" else "the"
                return CheckResult("error", f"{mode} call raises {describe_error(error, 300)}")
        return found.result(target, calls.evidence)
