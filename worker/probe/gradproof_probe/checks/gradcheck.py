"""Does autograd return the derivative? The check over one target; the method is in `gradproof_probe.gradients`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.gradients.attribution import Place, innermost
from gradproof_probe.gradients.basis import right_for_the_space
from gradproof_probe.gradients.callers import passes_through_callers
from gradproof_probe.gradients.examination import Examination, Examiner, Make, placed
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.gradients.explanation import Explainer, labelled, signature
from gradproof_probe.gradients.situations import ORDINARY
from gradproof_probe.gradients.steps import kept_graph
from gradproof_probe.gradients.whole_calls import FunctionCall, inner_fault
from gradproof_probe.harness.constructors import parameters_of
from gradproof_probe.harness.recipe import ExpressionError, Recipe, build, default_dtype
from gradproof_probe.harness.synthesis import find_recipe
from gradproof_probe.harness.trial import DEFINITE_FAULTS
from gradproof_probe.importing import Resolved, describe_error
from gradproof_probe.repro import gradient_repro, situation_repro


class Gradcheck(Check):
    name: ClassVar[str] = "gradcheck"
    cost: ClassVar[float] = 40.0
    adapts: ClassVar[bool] = True
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares the gradient that autograd returns with the derivative of what the forward computes.",
        what_it_does=(
            "Module, parameters and floating inputs are promoted to float64. For random directions `u` over all inputs "
            "and parameters and random weights `v` over all outputs, `v·f(x + t u)` is differentiated numerically "
            "(Ridders' extrapolation with an error estimate) and compared with the product of autograd's gradient and "
            "`u`. Before each evaluation the module's state is put back and every generator reseeded.\n\n"
            "A custom `autograd.Function` is examined further: its gradient is compared, coordinate by coordinate, "
            "with autograd through its own forward (finite differences say whether that may be trusted), for the "
            "inputs as they are and in some sixty situations more: incoming gradients of other memory layouts and "
            "values, each output alone, each input alone requiring grad, other layouts, values, sizes and ranks of "
            "inputs, the same tensor twice, calls that are repeated, interleaved, or walked twice, tensors written to "
            "in between, float32, half precision and autocast. Constants and conditions in the source of forward and "
            "backward add inputs on both sides of each; lines of backward that nothing executed are reported. A module "
            "that computes something else in eval mode is examined in that mode too."
        ),
        how_it_decides=(
            "`fail` needs a difference that finite differences confirm at the worst coordinate, beyond ten times their "
            "error estimate, away from corners, and no sign that it is meant (straight-through, surrogate, reversal, "
            "scaling, `detach`); or an error raised by its own backward, or a backward that writes to what it was "
            "given. What made the difference is then taken away piece by piece, so that the smallest situation in "
            "which it shows is named, with the cause (a factor, a sign, a missing term, a stale value, …) and the line "
            "of backward. `inconclusive` says what stood in the way: corners, rounding, randomness, or a zero gradient "
            "that left nothing to compare. `pass` says in how many situations the gradient was right.\n\n"
            "A module or function whose gradient differs is a fault only if code of its own computes gradients "
            "and nothing explains the difference. Tried, each by a run that differs in one thing: what `detach`, "
            "`no_grad`, `.data` or `item()` cut is held at its value (then differences have to agree, and the "
            "line is named); parameters and inputs are compared byte for byte around forward; two calls with "
            "other values may not return the same memory; `.backward()` is compared with `autograd.grad`; "
            "directions stay inside the interval, the symmetric matrices, unit vectors or simplices that the "
            "inputs are; steps from 1e-3 to 1e-7 tell jumps, corners and rounding from a derivative; the public "
            "callers of a Function are asked; and it has to show again with other numbers. `evidence.by_design` "
            "has the label, the line, what was seen and read, and whether the source says that it is meant."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.recipe.reason == "no differentiable output":
            return CheckResult("skipped", "there is no gradient to check: no output depends differentiably on an input")
        try:
            found = self._examine(context)
        except ExpressionError as error:
            return constructor_raised(context, error)
        return _result(context, found)

    def _examine(self, context: CheckContext) -> Examination:
        resolved = context.resolved
        if resolved.target.kind == "autograd_function":
            # In float64, as the script that shows a fault builds them: random numbers differ between types.
            with default_dtype(torch.float64):
                built = build(resolved, context.recipe, seed=context.seed)
            found = FunctionCall(
                resolved.value,
                built.args,
                source_root=context.source_root,
                seed=context.seed,
                deadline=context.deadline,
                names=argument_names(context),
                picture=True,
            ).examine("first_order")
            found = placed(found, resolved.value, context.source_root)
            return self._as_its_callers_see_it(context, found, built.args)
        make = experiment_maker(context)
        found = self._whole(context)
        if found.verdict == "pass" and time.monotonic() < context.deadline and depends_on_mode(make):
            evaluating = self._whole(context, evaluating=True)
            if evaluating.verdict == "fail":
                text = f"in eval mode, unlike in train mode, {evaluating.text}"
                return replace(evaluating, text=text, evidence={**evaluating.evidence, "mode": "eval"})
            found.evidence["modes"] = ["train", f"eval: {evaluating.verdict}"]
        return found

    @staticmethod
    def _as_its_callers_see_it(context: CheckContext, found: Examination, args: list[Any]) -> Examination:
        """A Function that is wrong at inputs that were made up for it, and right through what the package offers.

        Or right for all that depends on the space alone of which it gives one basis.
        """
        if found.verdict != "fail" or not found.mismatch:
            return found
        chosen = right_for_the_space(
            context.resolved.value,
            args,
            source_root=context.source_root,
            seed=context.seed,
            deadline=context.deadline,
        )
        if chosen is not None:
            return labelled(found, chosen)
        if context.recipe.source != "synthesised":
            return found

        def inputs(resolved: Resolved, seconds: float) -> Recipe:
            return find_recipe(
                resolved, None, seed=context.seed, deadline=min(context.deadline, time.monotonic() + seconds)
            )

        label = passes_through_callers(
            context.resolved.value,
            found,
            source_root=context.source_root,
            seed=context.seed,
            deadline=context.deadline,
            find_inputs=inputs,
        )
        return found if label is None else labelled(found, label)

    def _whole(self, context: CheckContext, *, evaluating: bool = False) -> Examination:
        """A module or a function in one mode."""
        make = experiment_maker(context, evaluating=evaluating)
        made_up = context.recipe.source == "synthesised"
        found = Examiner(
            make,
            source_root=context.source_root,
            seed=context.seed,
            deadline=context.deadline,
            made_up=made_up,
            briefly=evaluating,
        ).examine()
        if found.verdict in ("pass", "inconclusive"):
            fault = self._deeper(context, make)
            if fault is not None:
                return replace(fault, evidence={**found.evidence, **fault.evidence})
        return Explainer(
            make,
            source_root=context.source_root,
            seed=context.seed,
            deadline=context.deadline,
            redraw=lambda seed: experiment_maker(replace(context, seed=seed), evaluating=evaluating),
            guessed=made_up,
        ).explain(found)

    @staticmethod
    def _deeper(context: CheckContext, make: Make) -> Examination | None:
        """What one ordinary call can't show: a second step, and what custom Functions inside do in other situations."""
        if context.resolved.target.kind == "module":
            kept = kept_graph(make, source_root=context.source_root)
            if kept is not None:
                return kept
        return inner_fault(make, source_root=context.source_root, seed=context.seed, deadline=context.deadline)


def depends_on_mode(make: Make) -> bool:
    """Whether train and eval mode may compute different things: dropout, batch statistics, or code that asks."""
    with default_dtype(torch.float64):
        module = make(torch.float64).instance
    if module is None:
        return False
    return any(_asks_for_mode(item) for item in module.modules())


def _asks_for_mode(module: torch.nn.Module) -> bool:
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0  # most READMEs say `dropout = 0.`
    names = getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
    return isinstance(module, torch.nn.modules.batchnorm._NormBase) or "training" in names


def experiment_maker(context: CheckContext, *, evaluating: bool = False) -> Make:
    """Builds the target and its inputs anew, in the precision asked for; `evaluating`: in eval mode."""
    names = argument_names(context)

    def make(precision: torch.dtype | None) -> Experiment:
        with default_dtype(precision or torch.get_default_dtype()):
            built = build(context.resolved, context.recipe, seed=context.seed)
        if evaluating and built.instance is not None:
            built.instance.eval()
        return Experiment(
            built.call,
            built.args,
            built.kwargs,
            built.instance,
            seed=context.seed,
            precision=precision,
            argument_names=names,
        )

    return make


def argument_names(context: CheckContext) -> list[str]:
    """The names of the positional arguments of the target's call."""
    value: Any = context.resolved.value
    kind = context.resolved.target.kind
    function = value if kind == "function" else value.forward
    parameters = parameters_of(function) if kind == "module" else signature(function)
    if kind == "autograd_function" and parameters and parameters[0].name in ("ctx", "context", "self", "_", "cls"):
        parameters = parameters[1:]
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]


def constructor_raised(context: CheckContext, error: ExpressionError) -> CheckResult:
    """The result where the target can't even be built: a fault if its own code breaks a rule of autograd."""
    fault = DEFINITE_FAULTS.search(str(error.cause)) is not None
    place = innermost(error.cause.__traceback__, context.source_root) or Place(
        context.resolved.target.path, context.resolved.target.line
    )
    text = f"the {error.part} raises {describe_error(error.cause)}"
    found = Examination("fail", "constructor_raises", text)
    return CheckResult(
        "fail" if fault else "error",
        text,
        diagnosis=Diagnosis("constructor_raises", text) if fault else None,
        path=place.path,
        line=place.line,
        repro=repro(context, found) if fault else None,
    )


def repro(context: CheckContext, found: Examination) -> str | None:
    """The script that shows it: in its situation for a custom Function, of the whole target otherwise."""
    target, recipe = context.resolved.target, context.recipe
    if found.evidence.get("mode") == "eval":
        recipe = replace(recipe, constructor=f"({recipe.constructor or target.qualname + '()'}).eval()")
    if target.kind == "autograd_function" or found.function is not None:
        script = situation_repro(
            target,
            recipe,
            seed=context.seed,
            summary=found.text,
            situation=found.situation or ORDINARY,
            cause=found.cause,
            worst=found.worst,
            second_order=found.cause == "wrong_second_order",
            single=found.single,
            inside=found.function,
        )
        if script is not None:
            return script
    return gradient_repro(
        target,
        recipe,
        seed=context.seed,
        cause=found.cause,
        summary=found.text,
        worst=found.worst,
        numbers=found.numbers,
        single=found.single,
    )


def _result(context: CheckContext, found: Examination) -> CheckResult:
    target = context.resolved.target
    place = found.place or Place(target.path, target.line)
    evidence = dict(found.evidence)
    if found.worst is not None:
        evidence["worst"] = found.worst
    diagnosed = found.verdict in ("fail", "inconclusive")
    return CheckResult(
        verdict=found.verdict,
        summary=found.text,
        diagnosis=Diagnosis(found.cause, found.text, found.numbers) if diagnosed else None,
        path=place.path if found.verdict != "pass" else None,
        line=place.line if found.verdict != "pass" else None,
        evidence=evidence,
        # A script would give the inputs of the recipe, at which nothing can be compared.
        repro=repro(context, found) if found.verdict == "fail" and "inputs" not in evidence else None,
    )
