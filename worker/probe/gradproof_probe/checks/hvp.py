"""Is a Hessian-vector product of the whole target right? The method is in `training.curvature`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.checks.gradcheck import experiment_maker
from gradproof_probe.gradients.attribution import Place, backward_return
from gradproof_probe.gradients.breaks import HOOK, Breaks, Freeze
from gradproof_probe.gradients.experiment import BackwardError, Experiment, ForwardError
from gradproof_probe.gradients.functions import Recorder, submitted_functions
from gradproof_probe.gradients.labels import said
from gradproof_probe.gradients.precision import PrecisionTrace
from gradproof_probe.gradients.probing import ROUNDING, UnstableError, linearise, probe, random_directions
from gradproof_probe.gradients.whole_calls import FunctionCall, first_calls
from gradproof_probe.harness.recipe import ExpressionError, default_dtype
from gradproof_probe.importing import describe_error
from gradproof_probe.training.curvature import NotTwiceError, Product, compare

PAIRS: Final = 2


class HessianVectorProduct(Check):
    name: ClassVar[str] = "hvp"
    cost: ClassVar[float] = 18.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares Hessian-vector products by reverse over reverse with differences of the gradient.",
        what_it_does=(
            "Module, parameters and inputs are promoted to float64. The gradient of the outputs, with random weights, "
            "is taken with `create_graph=True` and differentiated again along random vectors; the same number is found "
            "by differences of the gradient (Ridders' extrapolation with an error estimate); where they don't agree, "
            "again with independent vectors. Before each evaluation the state is put back and generators are reseeded. "
            "Where they differ, the "
            "custom Functions of the call are examined one by one, as `gradgradcheck` does, to name the one."
        ),
        how_it_decides=(
            "`fail` when both pairs of vectors contradict beyond ten times the error estimate, a third one with other "
            "parameters and inputs too, the first-order gradient agrees with differences, and nothing that the code "
            "cuts (`detach`, `item()`, `no_grad`) or hooks explains it. `skipped` where the gradient can't be "
            "differentiated and autograd says so (`once_differentiable`, an operation of torch without a second "
            "derivative: it is named), where the first-order gradient is not the derivative (straight-through, stopped "
            "gradients: then there is no Hessian), or where the function is linear and there is nothing to compare. "
            "`inconclusive` at corners, where the second derivative isn't finite (the first may be), and where "
            "differences are too imprecise."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.resolved.target.kind == "autograd_function":
            return CheckResult("skipped", "gradgradcheck examines custom Functions")
        if context.recipe.reason == "no differentiable output":
            return CheckResult("skipped", "no output depends differentiably on an input")
        with warnings.catch_warnings(), default_dtype(torch.float64):
            warnings.simplefilter("ignore")
            try:
                return _Examination(context).result()
            except ExpressionError as error:
                return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")
            except NotTwiceError as error:
                return CheckResult("skipped", f"its gradient can't be differentiated: {error}")
            except ForwardError as error:
                return CheckResult("skipped", f"it doesn't run in float64: {describe_error(error.cause, 300)}")
            except BackwardError as error:
                return CheckResult("skipped", f"the backward raises {describe_error(error.cause, 300)}")
            except UnstableError as error:
                return CheckResult("inconclusive", f"differences can't be taken: {error}")


class _Examination:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._evidence: dict[str, Any] = {}

    def result(self) -> CheckResult:
        experiment = self._experiment(self._context.seed)
        products: list[Product] = []
        for number in range(PAIRS):
            products.append(compare(experiment, number))
            if products[-1].outcome == "agrees" or time.monotonic() > self._context.deadline:
                break
        self._evidence["products"] = [
            {"outcome": item.outcome, "analytic": item.analytic, "numeric": item.numeric, "error_estimate": item.error}
            for item in products
        ]
        outcomes = {item.outcome for item in products}
        if outcomes == {"flat"}:
            return CheckResult(
                "skipped", "its gradient does not change with anything: the function is linear", evidence=self._evidence
            )
        if outcomes <= {"agrees", "flat"}:
            shown = next(item for item in products if item.outcome == "agrees")
            return CheckResult(
                "pass",
                "a Hessian-vector product agrees with differences of the gradient "
                f"({shown.analytic:.9g} and {shown.numeric:.9g})",
                evidence=self._evidence,
            )
        if outcomes == {"disagrees"} and len(products) == PAIRS:
            return self._disagreement(experiment, products)
        if "not finite" in outcomes:
            return self._open("not_finite", "the second derivative isn't finite at these inputs")
        cause = "kinks" if "kink" in outcomes else "imprecise"
        return self._open(
            cause, "the gradient has a corner here" if cause == "kinks" else "differences are too imprecise"
        )

    def _experiment(self, seed: int) -> Experiment:
        return experiment_maker(replace(self._context, seed=seed))(torch.float64)

    def _disagreement(self, experiment: Experiment, products: list[Product]) -> CheckResult:
        first = self._first_order(experiment)
        if first:
            return CheckResult("skipped", f"there is no Hessian: {first}", evidence=self._evidence)
        watched = self._watched(experiment)
        if watched is not None:
            return watched
        if time.monotonic() > self._context.deadline:
            return self._open("time_over", "the products differ, and the time was over before it was shown again")
        again = compare(self._experiment(self._context.seed + 1009), 0)
        if again.outcome != "disagrees":
            return self._open("seen_once", "with other parameters and inputs the products agree")
        worst = products[0]
        numbers: dict[str, Any] = {"analytic": worst.analytic, "numeric": worst.numeric, "error_estimate": worst.error}
        text = (
            f"the gradient is right, but differentiating it gives a wrong Hessian-vector product: {worst.analytic:.9g} "
            f"by reverse over reverse, {worst.numeric:.9g} by differences of the gradient"
        )
        if worst.without:
            text += f" (nothing comes back to {', '.join(worst.without[:3])})"
        function, place = self._blamed(experiment)
        if function is not None:
            text += f"; the backward of {function.__qualname__} is the one that is differentiated wrongly"
            numbers["function"] = function.__qualname__
        target = self._context.resolved.target
        place = place or Place(target.path, target.line)
        return CheckResult(
            "fail",
            text,
            diagnosis=Diagnosis("wrong_second_order", text, numbers),
            path=place.path,
            line=place.line,
            evidence=self._evidence,
        )

    def _first_order(self, experiment: Experiment) -> str:
        """Why the gradient is not the derivative of what the forward computes; empty if it is."""
        try:
            generator = torch.Generator().manual_seed(self._context.seed + 7)
            line = linearise(experiment, generator, rounding=ROUNDING[torch.float64], single=False)
            seen = probe(line, random_directions(experiment, generator))
        except (ForwardError, BackwardError, UnstableError) as error:
            return f"the gradient can't be compared with differences: {error}"
        if seen.judgement == "agree":
            return ""
        return (
            f"the gradient itself is not the derivative ({seen.analytic:.6g} by autograd, {seen.numeric:.6g} by "
            f"differences: {seen.judgement}), which gradcheck explains"
        )

    def _watched(self, experiment: Experiment) -> CheckResult | None:
        """What the code cuts, hooks or rounds on purpose explains the difference."""
        breaks, trace = Breaks(self._context.source_root), PrecisionTrace(self._context.source_root)
        with breaks.watching(), trace:
            experiment.run()
        hook = next((item for item in breaks.found if item.what == HOOK), None)
        if hook is not None:
            return self._open("gradient_hook", f"a hook may change gradients on purpose{said(hook.place)}", hook.place)
        if trace.narrow.dtype is not None:
            name = str(trace.narrow.dtype).removeprefix("torch.")
            return self._open("low_precision", f"it computes in {name} inside", trace.narrow.place)
        cuts = [item for item in breaks.found if item.what != HOOK]
        if not cuts:
            return None
        frozen = Freeze()
        inside = Breaks(self._context.source_root, frozen)

        @contextmanager
        def watching() -> Iterator[None]:
            with inside.watching():
                yield

        try:
            held = compare(experiment, 0, inside=watching, frozen=frozen)
        except (ForwardError, BackwardError, UnstableError, NotTwiceError):
            held = Product("unclear")
        if held.outcome == "disagrees":
            return None
        first = next((item for item in cuts if item.place is not None), cuts[0])
        text = f"{first.what}{said(first.place)} takes a value for a constant, and the differences do not"
        return self._open("stop_gradient", text, first.place)

    def _blamed(self, experiment: Experiment) -> tuple[type | None, Place | None]:
        """The custom Function of this call whose own second derivative is wrong; the only one, if none can be told."""
        recorder = Recorder(self._context.source_root)
        functions = submitted_functions(self._context.source_root)
        with recorder.watching(functions):
            experiment.run()
        calls = first_calls(recorder)
        for call in calls:
            if time.monotonic() > self._context.deadline:
                break
            found = FunctionCall(
                call.function,
                call.args,
                source_root=self._context.source_root,
                seed=self._context.seed,
                deadline=self._context.deadline,
            ).examine("second_order", thorough=False)
            if found.cause == "wrong_second_order" or found.evidence.get("second_order") == "not supported":
                return call.function, found.place or backward_return(call.function, self._context.source_root)
        if len(calls) == 1:
            return calls[0].function, backward_return(calls[0].function, self._context.source_root)
        return None, None

    def _open(self, cause: str, text: str, place: Place | None = None) -> CheckResult:
        target = self._context.resolved.target
        return CheckResult(
            "inconclusive",
            text,
            diagnosis=Diagnosis(cause, text),
            path=place.path if place is not None else target.path,
            line=place.line if place is not None else target.line,
            evidence=self._evidence,
        )
