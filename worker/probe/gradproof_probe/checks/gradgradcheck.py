"""Is the backward of each custom Function differentiated rightly? The check over one target."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.checks.gradcheck import argument_names, constructor_raised, experiment_maker, repro
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.gradients.examination import Examination, placed
from gradproof_probe.gradients.whole_calls import FunctionCall, recorded_calls
from gradproof_probe.harness.recipe import ExpressionError, build, default_dtype


class Gradgradcheck(Check):
    name: ClassVar[str] = "gradgradcheck"
    cost: ClassVar[float] = 60.0
    adapts: ClassVar[bool] = True
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares the second derivative that differentiating a custom backward gives with the right one.",
        what_it_does=(
            "Each custom `autograd.Function` of the target is called with float64 inputs, its gradient taken with "
            "`create_graph=True`, and that gradient differentiated again with random weights. The same is done with "
            "autograd through the forward; where the two differ, or where the forward can't be seen through, finite "
            "differences of the first-order gradient along random directions decide."
        ),
        how_it_decides=(
            "`fail` needs two random directions along which differences contradict the second derivative beyond ten "
            "times their error estimate: the silent fault of a backward that uses an intermediate which forward "
            "computed without a graph, and that higher-order optimisers, gradient penalties and Hessians then get "
            "wrong. `skipped` where the target calls no custom Function, or where backward says that it can't be "
            "differentiated (`once_differentiable`): that is loud, and no fault. `inconclusive` where the first-order "
            "gradient is wrong already, or differences are too imprecise."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        target = context.resolved.target
        try:
            calls = self._calls(context)
        except ExpressionError as error:
            return constructor_raised(context, error)
        if not calls:
            return CheckResult("skipped", "it calls no custom autograd.Function: its derivatives are torch's own")
        examined: list[tuple[FunctionCall, Examination]] = []
        for call in calls:
            found = call.examine("second_order", thorough=False)
            examined.append((call, found))
            if found.cause == "wrong_second_order":
                if target.kind != "autograd_function":
                    found.function = call.function
                return _failed(context, call, found)
        decisive = examined[0][1]
        for _, found in examined:
            if found.verdict != "pass":
                decisive = found
        names = ", ".join(call.function.__qualname__ for call, _ in examined)
        place = Place(target.path, target.line)
        if all(found.evidence.get("second_order") == "not supported" for _, found in examined):
            reason = str(decisive.evidence.get("second_order_reason") or "its backward can't be differentiated")
            return CheckResult("skipped", f"{names}: {reason}", evidence=dict(decisive.evidence))
        if decisive.verdict == "fail":
            text = f"the first-order gradient is wrong already: {decisive.text}"
            return CheckResult(
                "inconclusive", text, diagnosis=Diagnosis("first_order", text), path=place.path, line=place.line
            )
        if decisive.verdict != "pass":
            return CheckResult(
                "error" if decisive.verdict == "error" else "inconclusive",
                decisive.text,
                diagnosis=Diagnosis(decisive.cause, decisive.text, decisive.numbers),
                path=place.path,
                line=place.line,
                evidence=dict(decisive.evidence),
            )
        return CheckResult("pass", f"{names}: the second derivative is right", evidence=dict(decisive.evidence))

    @staticmethod
    def _calls(context: CheckContext) -> list[FunctionCall]:
        resolved = context.resolved
        value: Any = resolved.value

        def of(function: Any, args: list[Any]) -> FunctionCall:
            return FunctionCall(
                function, args, source_root=context.source_root, seed=context.seed, deadline=context.deadline
            )

        if resolved.target.kind == "autograd_function":
            with default_dtype(torch.float64):
                built = build(resolved, context.recipe, seed=context.seed)
            return [
                FunctionCall(
                    value,
                    built.args,
                    source_root=context.source_root,
                    seed=context.seed,
                    deadline=context.deadline,
                    names=argument_names(context),
                )
            ]
        make = experiment_maker(context)
        make(torch.float64)  # an expression that raises is said before anything else
        return [of(item.function, item.args) for item in recorded_calls(make, context.source_root)]


def _failed(context: CheckContext, call: FunctionCall, found: Examination) -> CheckResult:
    target = context.resolved.target
    place = placed(found, call.function, context.source_root).place or Place(target.path, target.line)
    return CheckResult(
        verdict="fail",
        summary=found.text,
        diagnosis=Diagnosis(found.cause, found.text, found.numbers),
        path=place.path,
        line=place.line,
        evidence={**found.evidence, "function": call.function.__qualname__},
        repro=repro(context, found),
    )
