"""Is there an input that happens at which values or gradients are not finite? The method is in `nan_search`."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.checks.gradcheck import argument_names
from gradproof_probe.harness.recipe import ExpressionError, build
from gradproof_probe.importing import describe_error
from gradproof_probe.nan_search import Fault, NanReport, search
from gradproof_probe.nan_search.repro import nan_repro
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.ordinary import ordinary_values

_SHOWN_FAULTS: Final = 8
# Of a slow call: the joint constructions have been tried by then, and those of the first input.
_FEWEST_TRIED: Final = 20


class NanGradient(Check):
    name: ClassVar[str] = "nan_gradient"
    cost: ClassVar[float] = 100.0
    adapts: ClassVar[bool] = True
    documentation: ClassVar[Documentation] = Documentation(
        summary="Searches for inputs that happen in practice at which a value or a gradient is NaN or infinite.",
        what_it_does=(
            "Starts from the ordinary inputs and tries what data sets and training bring: rows of zeros, equal rows, "
            "identical pairs, constant and one-hot rows, identity matrices, masks that leave nothing, labels all the "
            "same, saturated and large values, a batch of one. Then the operands of singular operations (division, "
            "roots, logarithms, powers, inverse functions, exponentials) are driven to where these are singular, by "
            "moving the inputs along the operand's gradient; the operands that static findings name come first. A "
            "call that gives something not finite is run again, watched operation by operation, forward and backward: "
            "the first operation that made it out of finite operands is named with its line. In half precision too "
            "where the inputs are half or a finding asks for it."
        ),
        how_it_decides=(
            "`fail` needs an input of ordinary kind, and one of these: float64 gives a finite result that fits; a "
            "gradient of 0 became NaN on its way (0 times infinity behind a `where`); the function has bounded "
            "difference quotients or a limit there; the singular operand was computed or clamped inside, so no caller "
            "can know that it must stay away; or a static finding named the operation. The logarithm of an argument "
            "at 0 is the caller's business and no fault, nor is an infinity that the code writes down itself, a value "
            "that is beyond the largest number, and what torch defines as NaN (the mean of nothing, a loss whose "
            "labels are all ignored). Made-up inputs stay in the sets that the ordinary ones lie in: probabilities, "
            "distributions, unit vectors, zeros and ones; but where we fell back to such values because ordinary ones"
            " were not finite, a suspicion is tried outside of them too. What a docstring says is not finite, or the "
            "code warns of, is no fault either. A NaN that sizes and constants alone give, whatever the inputs, is "
            "`fail` where the harness is declared and `inconclusive` where sizes are ours. A value that has to be "
            "tuned to the last bit never fails: where a "
            "finding named the operation it is `inconclusive`. `pass` means that everything tried was finite but for "
            "these; the evidence says how much was tried, and how near each suspected operand came to its singular "
            "set."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.recipe.reason == "no differentiable output":
            return CheckResult(
                "skipped", "there is no gradient to look at: no output depends differentiably on an input"
            )
        try:
            built = build(context.resolved, context.recipe, seed=context.seed)
        except ExpressionError as error:
            return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")
        report = search(
            built.call,
            built.args,
            built.kwargs,
            module=built.instance,
            hypotheses=context.hypotheses,
            source_root=context.source_root,
            names=argument_names(context),
            declared=context.recipe.source != "synthesised",
            fell_back=context.recipe.fell_back,
            seed=context.seed,
            deadline=context.deadline,
        )
        return _result(context, report)


def _result(context: CheckContext, report: NanReport) -> CheckResult:
    evidence: dict[str, Any] = {"tried": report.tried, "singular_operations": report.operations}
    if report.hypotheses:
        evidence["hypotheses"] = report.hypotheses
        fixable = {item["fingerprint"] for item in context.hypotheses if item.get("fix")}
        if any(item["outcome"] == "confirmed" and item["fingerprint"] in fixable for item in report.hypotheses):
            bench = Bench(context.resolved, context.recipe, context.source_root, context.seed, context.deadline)
            evidence["ordinary"] = ordinary_values(bench)
    if report.outcome == "raises":
        return CheckResult("error", f"the forward raises {report.error}", evidence=evidence)
    if report.outcome == "no gradient":
        return CheckResult(
            "skipped", "there is no gradient to look at: no output depends on an input", evidence=evidence
        )
    failing = [fault for fault in report.faults if fault.verdict == "fail"]
    others = [fault for fault in report.faults if fault.verdict != "fail"]
    if others:
        evidence["without_blame"] = [_described(fault) for fault in others[:_SHOWN_FAULTS]]
    if failing:
        return _failed(context, failing, evidence)
    tuned = next((fault for fault in report.faults if fault.verdict == "tuned" and fault.asked), None)
    if tuned is not None:
        evidence |= _described(tuned)
        return _placed(context, "inconclusive", tuned, evidence)
    constant = next((fault for fault in report.faults if fault.ground == "constant"), None)
    if constant is not None:
        evidence |= _described(constant)
        # Sizes of examples are made smaller as well.
        return _placed(context, "fail" if context.recipe.source == "declared" else "inconclusive", constant, evidence)
    if not report.complete and report.tried < _FEWEST_TRIED:
        return CheckResult(
            "inconclusive", f"time ran out after {report.tried} inputs, all of them finite", evidence=evidence
        )
    if not report.complete:
        evidence["time_ran_out"] = True
    exceptions = f", but for {len(others)} where nobody is to blame" if others else ""
    return CheckResult(
        "pass", f"values and gradients are finite at all {report.tried} inputs tried{exceptions}", evidence=evidence
    )


def _failed(context: CheckContext, failing: list[Fault], evidence: dict[str, Any]) -> CheckResult:
    evidence |= _described(failing[0])
    if len(failing) > 1:
        evidence["also"] = [_described(fault) for fault in failing[1:_SHOWN_FAULTS]]
    return _placed(context, "fail", failing[0], evidence)


def _placed(context: CheckContext, verdict: Any, fault: Fault, evidence: dict[str, Any]) -> CheckResult:
    target = context.resolved.target
    birth = fault.birth
    cause = "nan_gradient" if birth.phase == "backward" else "nan_output"
    if fault.ground == "constant":
        cause = "nan_constant"
    numbers = {"operation": birth.operation, "phase": birth.phase, "naturalness": fault.construction.naturalness}
    return CheckResult(
        verdict,
        fault.text,
        diagnosis=Diagnosis(cause, f"{fault.text}. Remedy: {fault.remedy}.", numbers | {"ground": fault.ground}),
        path=birth.place.path if birth.place is not None else target.path,
        line=birth.place.line if birth.place is not None else target.line,
        evidence=evidence,
        repro=nan_repro(target, context.recipe, fault, seed=context.seed) if verdict == "fail" else None,
    )


def _described(fault: Fault) -> dict[str, Any]:
    birth, construction = fault.birth, fault.construction
    return {
        "birth": {
            "operation": birth.operation.lstrip("_"),
            "path": birth.place.path if birth.place is not None else None,
            "line": birth.place.line if birth.place is not None else None,
            "phase": birth.phase,
            "value": birth.kind,
        },
        "input": construction.description,
        "construction": [f"{edit.slot}: {edit.expression}" for edit in construction.edits],
        "naturalness": construction.naturalness,
        "precision": fault.precision,
        "gradient_of": list(fault.gradient_of),
        "ground": fault.ground,
    }
