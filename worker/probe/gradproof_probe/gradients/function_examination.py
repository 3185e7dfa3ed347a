"""The examination of one custom Function: the oracle, probes to judge it, then every situation of the battery.

For callables that go through custom Functions too. Cheap and telling things first: side effects, the ordinary
gradient, then what else a caller may do to it. A verdict of `fail` rests on a difference that finite differences
confirm; what is meant (straight-through, surrogate, reversal) is recognised and never fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients import battery
from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.gradients.coverage import LineCoverage
from gradproof_probe.gradients.design import meant
from gradproof_probe.gradients.effects import Watched
from gradproof_probe.gradients.examination import Examination, Outcome
from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.faults import Fault, locally_constant
from gradproof_probe.gradients.jacobians import jacobians
from gradproof_probe.gradients.judging import Judge, Tolerance, differs
from gradproof_probe.gradients.low_precision import dtype_fault, low
from gradproof_probe.gradients.naming import name_cause
from gradproof_probe.gradients.naming.lines import gradient_line
from gradproof_probe.gradients.naming.pairs import Evidence, GradientPair
from gradproof_probe.gradients.other_modes import ModeFault, batched_fault, forward_mode_fault
from gradproof_probe.gradients.precision import COARSE, PrecisionTrace
from gradproof_probe.gradients.probing import ROUNDING, UnstableError
from gradproof_probe.gradients.rounding import rounded_to
from gradproof_probe.gradients.second_order import SecondOrder, second_order_fault
from gradproof_probe.gradients.situations import COMPUTED, ORDINARY, Situation, Values
from gradproof_probe.gradients.subject import NotApplicableError, Pull, Subject, plain
from gradproof_probe.gradients.trials import Trials

PROBES: Final = 2  # where the oracle agrees as well; three without it (checks facts 2.3)
# Inputs of this size and below are no reason for an alarm: `norm.clamp(min=1e-12)` is never reached.
SMALLEST: Final = 1e-6
MANY: Final = 300_000  # elements beyond which it isn't made larger still

PullBack = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]
Scope = Literal["all", "first_order", "second_order"]


class NeedsOtherExaminationError(Exception):
    """The call raises, or gives nothing to compare: the general examination says it in full."""


class FunctionExaminer:
    """`function` is the class, or None for a callable that goes through custom Functions.

    `steered`: situations that the code's own conditions suggest. `declared`: the caller marked what requires grad, so
    that a gradient which is never returned is missing. `thorough`: other values, sizes, layouts of inputs and types are
    tried too. `picture`: both Jacobians of a small faulty case are worked out.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        function: type | None,
        source_root: Path,
        deadline: float,
        steered: Sequence[Situation] = (),
        declared: bool = False,
        thorough: bool = True,
        picture: bool = False,
    ) -> None:
        self._subject = subject
        self._function = function
        self._root = source_root
        self._deadline = deadline
        self._steered = steered
        self._declared = declared
        self._thorough = thorough
        self._picture = picture
        self._evidence: dict[str, Any] = {}
        single = subject.base_dtype != torch.float64
        self._single = single
        self._judge = Judge(subject, ROUNDING[torch.float32 if single else torch.float64])
        self._tolerance = Tolerance.of(subject.base_dtype)
        self._narrow: torch.dtype | None = None
        self._backward_draws = False
        self._oracle_holds = False
        self._coverage = LineCoverage([function.backward] if function is not None else [])  # type: ignore[attr-defined]

    def examine(self, scope: Scope = "all") -> Examination:
        """Raises `NeedsOtherExaminationError`."""
        try:
            with self._coverage.watching():
                found = self._examine(scope)
        except (ForwardError, BackwardError, UnstableError, NotApplicableError) as error:
            raise NeedsOtherExaminationError(str(error)) from error
        missing = self._coverage.missing()
        if missing and scope != "second_order":
            found.evidence["unexecuted_lines"] = list(missing)
            if found.verdict == "pass":
                lines = ", ".join(str(line) for line in missing[:6])
                found.text += f"; no situation executed line {lines} of backward"
        return found

    def _examine(self, scope: Scope) -> Examination:
        subject = self._subject
        ordinary, effect = self._ordinary_pull()
        if effect is not None:
            return effect
        reference = self._oracle(ordinary)
        self._oracle_holds = reference is not None
        problem = self._judge_ordinary(ordinary, reference)
        if problem is not None:
            return problem
        trials = Trials(
            subject,
            self._judge,
            self._tolerance,
            oracle=self._oracle_holds,
            ordinary=ordinary,
            deadline=self._deadline,
        )
        if scope != "second_order":
            fault = self._first_order(trials, ordinary)
            if fault is not None:
                return self._named(fault)
            if self._function is not None and self._thorough and not self._single:
                other = forward_mode_fault(self._function, subject, self._further()) or batched_fault(
                    self._function, subject
                )
                if other is not None:
                    return self._elsewhere(other)
        if scope != "first_order" and not self._single:
            second = second_order_fault(subject, self._judge, self._further(), oracle=self._oracle_holds)
            self._evidence["second_order"] = second.outcome
            if second.text and not second.fault:
                self._evidence["second_order_reason"] = second.text
            if second.fault:
                return self._elsewhere(second)
            if scope == "second_order" and second.outcome == "unclear":
                return self._result("inconclusive", "imprecise", second.text)
        return self._passed(trials)

    # -- the ordinary call

    def _ordinary_pull(self) -> tuple[Pull, Examination | None]:
        """The first pull, watching what is written to. Raises `NeedsOtherExaminationError`."""
        subject = self._subject
        watched = Watched(subject)
        if not any(output.requires_grad and output.numel() for output in watched.outputs):
            raise NeedsOtherExaminationError("no output depends differentiably on an input")
        if not all(bool(torch.isfinite(output).all()) for output in watched.outputs):
            raise NeedsOtherExaminationError("an output isn't finite at these inputs")
        effect = watched.after_forward() if self._function is not None else None
        if effect is not None:
            return watched.nothing(), self._result("fail", effect.cause, effect.text, effect.numbers)
        if not watched.repeats():
            raise NeedsOtherExaminationError("two evaluations with the same inputs and seeds differ")
        pull = watched.pull()
        self._backward_draws = watched.backward_draws
        effect = watched.after_backward(pull) or watched.overwritten(pull)
        if effect is not None:
            return pull, self._result("fail", effect.cause, effect.text, effect.numbers)
        if not any(gradient is not None for gradient in pull.gradients):
            raise NeedsOtherExaminationError("no gradient is returned for any input")
        return pull, None

    def _oracle(self, ordinary: Pull) -> list[torch.Tensor | None] | None:
        """What autograd through the forward says; None where it can't be had."""
        subject = self._subject
        if subject.seen_through is None:
            return None
        try:
            leaves = subject.leaves(subject.make(ORDINARY), None)
            given = [item.clone() if index in subject.positions else item for index, item in enumerate(leaves)]
            outputs = subject.forward(given, through=True)
            same = len(outputs) == len(ordinary.outputs) and all(
                a.shape == b.shape and torch.allclose(a.detach(), b.detach(), rtol=1e-6, atol=1e-9, equal_nan=True)
                for a, b in zip(outputs, ordinary.outputs, strict=True)
            )
            if not same:
                return None
            reference = subject.reference_pull(outputs, leaves, ordinary.cotangents, ORDINARY)
        except (ForwardError, BackwardError, NotApplicableError):
            return None
        return reference if any(item is not None for item in reference) else None

    def _judge_ordinary(self, ordinary: Pull, reference: list[torch.Tensor | None] | None) -> Examination | None:
        """None if the ordinary gradient is right. Finds out on the way whether the oracle holds."""
        gradients = ordinary.gradients
        not_finite = [
            name
            for name, gradient in zip(self._subject.names, gradients, strict=True)
            if gradient is not None and not bool(torch.isfinite(gradient).all())
        ]
        if not_finite:
            return self._not_finite(not_finite, reference)
        self._look_for_narrow()
        trials = self._trials(ordinary, oracle=reference is not None)
        silent = [index for index, gradient in enumerate(gradients) if gradient is None]
        if silent:
            self._evidence["no_gradient_for"] = [self._subject.names[index] for index in silent]
        if reference is not None:
            compared = [
                None if index in silent and not self._declared else item for index, item in enumerate(reference)
            ]
            only = differs(gradients, compared, self._tolerance)
            if only:
                ruled = self._judge.rule(ORDINARY, gradients, compared, ordinary.cotangents, only)
                if ruled.ruling == "wrong":
                    return self._ordinary_fault(Fault(ORDINARY, ordinary, compared, ruled))
                if ruled.ruling == "right":
                    self._subject.seen_through = None
                    self._oracle_holds = False
                elif ruled.ruling == "kink":
                    self._evidence["kinks"] = 1
            elif not only:
                precise = self._rounded(ordinary, reference)
                if precise is not None:
                    return precise
        return self._probe(ordinary, trials)

    def _probe(self, ordinary: Pull, trials: Trials) -> Examination | None:
        """Differences along random directions: they judge the oracle and the gradient alike."""
        probes = PROBES if self._oracle_holds else PROBES + 1
        agreed = [trials.along_directions(ORDINARY, ordinary, number) for number in range(probes)]
        self._evidence["probes"] = [
            {"judgement": "agree" if item else "weak" if item is None else "mismatch"} for item in agreed
        ]
        if all(gradient is None or not bool(gradient.any()) for gradient in ordinary.gradients) and not any(
            item is False for item in agreed
        ):
            return self._result("inconclusive", "vacuous", "every gradient is zero here: nothing was tested")
        if True not in agreed and False not in agreed:
            return None if self._right_beside(trials) else self._imprecise()
        if agreed.count(False) < max(1, len(agreed) // 2):
            return None
        reference: list[torch.Tensor | None] = [
            None if gradient is None else trials.sampled(ORDINARY, ordinary, index, gradient)
            for index, gradient in enumerate(ordinary.gradients)
        ]
        only = [index for index, item in enumerate(reference) if item is not None and bool(torch.isfinite(item).any())]
        if not only:
            return None
        ruled = self._judge.rule(ORDINARY, ordinary.gradients, reference, ordinary.cotangents, only)
        if ruled.ruling == "wrong":
            return self._ordinary_fault(Fault(ORDINARY, ordinary, reference, ruled))
        if ruled.ruling == "kink" and self._right_beside(trials):
            self._evidence["kinks"] = 1
            return None
        self._evidence["unsettled"] = ruled.ruling
        if ruled.ruling == "kink":
            return self._result("inconclusive", "kinks", "one-sided derivatives differ: a corner or a jump")
        return self._imprecise()

    def _imprecise(self) -> Examination:
        return self._result(
            "inconclusive",
            "imprecise",
            "the differences are too imprecise here to say anything about the gradient",
        )

    def _right_beside(self, trials: Trials) -> bool:
        """Whether differences agree a thousandth away from the corner that the inputs lie on."""
        beside = Situation(values=Values("jittered"))
        try:
            return trials.along_directions(beside, self._subject.pull(beside)) is True
        except (ForwardError, BackwardError, NotApplicableError, UnstableError):
            return False

    def _trials(self, ordinary: Pull, *, oracle: bool) -> Trials:
        return Trials(
            self._subject, self._judge, self._tolerance, oracle=oracle, ordinary=ordinary, deadline=self._deadline
        )

    def _look_for_narrow(self) -> None:
        """What rounds inside: a float32 forward in a float64 run has differences that only large steps can see."""
        with PrecisionTrace() as trace:
            self._subject.forward(
                self._subject.given(self._subject.leaves(self._subject.make(ORDINARY), None), ORDINARY)
            )
        self._narrow = trace.narrow.dtype
        if trace.narrow.random:
            self._evidence["random"] = sorted(trace.narrow.random)
        if self._narrow is not None and not self._single:
            self._judge.rounding = COARSE[self._narrow]
            self._tolerance = Tolerance(max(1e-7, 100 * COARSE[self._narrow]), 1e-5)
            self._evidence["computes_in"] = f"{self._narrow} inside ({trace.narrow.operation})"

    def _not_finite(self, names: list[str], reference: list[torch.Tensor | None] | None) -> Examination:
        text = f"the outputs are finite, but the gradient for {', '.join(names[:5])} isn't"
        if reference is not None and all(item is None or bool(torch.isfinite(item).all()) for item in reference):
            text += ", though autograd through the forward gives a finite one"
        return self._result("fail", "nan_gradient", text, {"variables": names})

    def _rounded(self, ordinary: Pull, reference: Sequence[torch.Tensor | None]) -> Examination | None:
        """A float64 gradient that carries no more digits than a narrower type, though forward computes in float64."""
        if self._single or self._narrow is not None:
            return None
        found = rounded_to(self._subject, ordinary, reference)
        if found is None:
            return None
        name, dtype, error = found
        fault = Fault(ORDINARY, ordinary, list(reference), None)
        return self._result(
            "fail",
            "rounded",
            f"the gradient for {name} is rounded to {dtype} although everything else is float64 (relative error "
            f"{error:.1e})",
            {"dtype": dtype, "relative_error": error},
            fault=fault,
        )

    # -- design

    def _ordinary_fault(self, fault: Fault) -> Examination:
        """A wrong gradient, unless it is meant."""
        wrong = differs(fault.pull.gradients, fault.reference, self._tolerance)
        constant = locally_constant(fault, wrong)
        reason = meant(fault, constant, self._function, self._subject)
        found = self._named(fault)
        if reason is not None:
            found.verdict = "inconclusive"
            found.by_design = True
            found.cause = "straight_through" if constant != "none" else "gradient_transform"
            found.text = f"{found.text}, by design it seems: {reason}"
            found.evidence["by_design"] = reason
        elif constant == "some":
            found.cause = "gradient_where_constant"
        else:
            self._not_a_formula(found, fault)
        return found

    def _not_a_formula(self, found: Examination, fault: Fault) -> None:
        """What no comparison of two gradients can tell: it isn't the same again, or not linear in grad_output."""
        if self._backward_draws and self._other_seed_differs(fault):
            found.cause = "random_backward"
            found.text = (
                f"backward draws random numbers of its own, and returns another gradient with each seed: {found.text}; "
                "keep what forward drew (save it, or its generator's state)"
            )
            return
        doubled = self._doubled(fault)
        if doubled is not None:
            cause, said = doubled
            found.cause = cause
            found.text = f"{said}: {found.text}"

    def _other_seed_differs(self, fault: Fault) -> bool:
        try:
            other = self._subject.pull(Situation(sequence="other_seed"))
        except (ForwardError, BackwardError, NotApplicableError):
            return False
        return bool(differs(other.gradients, fault.pull.gradients, self._tolerance))

    def _doubled(self, fault: Fault) -> tuple[str, str] | None:
        """A backward is linear: twice the incoming gradient gives twice the result."""
        once = fault.pull
        try:
            twice = self._subject.pull(ORDINARY, [2 * item for item in once.cotangents])
        except (ForwardError, BackwardError, NotApplicableError):
            return None
        if not differs(twice.gradients, [None if g is None else 2 * g for g in once.gradients], self._tolerance):
            return None
        if not differs(twice.gradients, once.gradients, self._tolerance):
            return "ignores_grad_output", "the gradient stays the same when the incoming gradient is twice as large"
        return "not_linear", "the gradient isn't linear in the incoming gradient"

    # -- everything else

    def _first_order(self, trials: Trials, ordinary: Pull) -> Fault | None:
        subject = self._subject
        inputs = [subject.args[position] for position in subject.positions]
        tensors = [item for item in subject.args if isinstance(item, torch.Tensor)]
        pulls = battery.pulls(ordinary.outputs)
        groups: list[Sequence[Situation]] = []
        if subject.random:
            groups.append([Situation(sequence="other_seed")])
        if self._thorough:
            groups += [
                battery.combined(pulls, battery.SEQUENCES, battery.layouts(inputs)),
                battery.subsets(len(inputs)),
                battery.written(subject.args),
                _every_rank([item for item in self._steered if not low(item)]),
                [Situation(dtype="complex128")] if subject.complex_too else [],
                battery.combined(battery.values(), battery.DENSE, battery.FLAGS),
                battery.others(tensors),
                battery.arguments(subject.args),
                battery.broadcasts(inputs, ordinary.outputs),
                battery.aliases(inputs) if all(item is not None for item in ordinary.gradients) else [],
                battery.sizes(tensors, inputs),
                battery.ranks(tensors, ordinary.outputs),
            ]
        else:
            groups += [
                battery.combined(pulls, battery.SEQUENCES),
                battery.DENSE,
                battery.subsets(len(inputs)),
                battery.written(subject.args),
            ]
        fault: Fault | None = None
        for situations in groups:
            few = subject.elements > MANY
            fault = trials.first_fault([item for item in situations if not (few and item.resize)])
            if fault is not None or trials.stopped:
                break
        else:
            if not self._single and self._thorough:
                types = [*battery.LOW_PRECISION, *(item for item in self._steered if low(item))]
                fault = dtype_fault(subject, trials, self._judge, deadline=self._deadline, situations=types)
        self._evidence["situations"] = trials.count.tried
        self._evidence["not_applicable"] = trials.count.not_applicable
        if trials.count.raised:
            self._evidence["raises"] = trials.count.raised[:10]
        if trials.count.unclear:
            self._evidence["unclear"] = trials.count.unclear[:10]
        if trials.stopped:
            self._evidence["stopped"] = "the time limit was near"
        return fault

    def _further(self) -> list[Situation]:
        """Where other derivatives than the first are looked at as well: other values, sizes and arguments."""
        subject = self._subject
        if not self._thorough or subject.elements > MANY:
            return []
        tensors = [item for item in subject.args if isinstance(item, torch.Tensor)]
        computed = [item for item in _every_rank(self._steered) if set(item.changed()) <= set(COMPUTED)]
        values = [item for item in battery.values() if item.values.kind in ("scaled", "negative", "some_zero")]
        sizes = [item for item in battery.sizes(tensors, ()) if all(0 < new <= old + 1 for old, new in item.resize)]
        return [*computed[:12], *battery.arguments(subject.args)[:2], *values[:2], *sizes[:1]]

    def _passed(self, trials: Trials) -> Examination:
        by = "autograd through the forward and with " if self._oracle_holds else ""
        tried = trials.count.tried - trials.count.not_applicable + 1
        text = f"the gradient agrees with {by}finite differences in {tried} situations"
        if trials.stopped:
            text += "; the time was over before the other situations were tried"
        return self._result("pass", "agrees", text)

    def _named(self, fault: Fault) -> Examination:
        """The fault with its cause, numbers, worst coordinate and line."""
        if fault.raised is not None:
            what = "grad_output_layout" if fault.situation.cotangent.layout != "contiguous" else "requires_grad_subset"
            return self._result(
                "fail",
                what,
                f"backward raises {fault.situation.describe()}: {type(fault.raised).__name__}: "
                f"{' '.join(str(fault.raised).split())[:300]}",
                fault=fault,
            )
        named = name_cause(self._pairs(fault))
        text = f"{named.text}; {named.hint}" if named.hint else named.text
        found = self._result("fail", named.cause, text, named.numbers, fault=fault)
        if named.hint:
            found.evidence["look_at"] = named.hint.removeprefix("look for ")
        if self._picture and (rows := jacobians(self._subject, fault)):
            found.evidence["jacobians"] = rows
        return found

    def _pairs(self, fault: Fault) -> Evidence:
        subject = self._subject
        pairs = []
        for index, leaf in enumerate(fault.pull.leaves):
            analytic, reference = fault.pull.gradients[index], fault.reference[index]
            if analytic is None and reference is None:
                continue
            value = leaf.detach()  # where one tensor stands for several inputs, not what was made for each
            wide = torch.complex128 if value.is_complex() else torch.float64
            pairs.append(
                GradientPair(
                    name=subject.names[index],
                    kind="input",
                    ordinal=index,
                    value=value.to(wide),
                    analytic=_filled(analytic, value).to(wide),
                    reference=_filled(reference, value).to(wide),
                    error=max(fault.ruled.error, 1e-14) if fault.ruled and math.isfinite(fault.ruled.error) else 1e-14,
                )
            )
        return Evidence(
            pairs=tuple(pairs),
            cotangents=tuple(item.detach() for item in fault.pull.cotangents),
            outputs=tuple(item.detach() for item in fault.pull.outputs),
            situation=fault.situation,
            pull_back=self._pulling_back(fault, [pair.ordinal for pair in pairs]),
        )

    def _pulling_back(self, fault: Fault, ordinals: Sequence[int]) -> PullBack | None:
        """What the right gradients would be for other cotangents, where the oracle is valid."""
        subject = self._subject
        if subject.seen_through is None or not self._oracle_holds:
            return None
        situation = plain(fault.situation)

        def pull_back(cotangents: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            made = subject.make(situation)
            found = subject.reference(situation, cotangents)
            return tuple(_filled(found[index], made[subject.positions[index]]) for index in ordinals)

        return pull_back

    # -- results

    def _result(
        self,
        verdict: Outcome,
        cause: str,
        text: str,
        numbers: dict[str, Any] | None = None,
        *,
        fault: Fault | None = None,
    ) -> Examination:
        found = Examination(verdict, cause, text, numbers or {}, dict(self._evidence), single=self._single)
        if fault is not None:
            if fault.situation != ORDINARY:
                found.evidence["situation"] = fault.situation.describe()
            found.situation = fault.situation
            found.worst = self._worst(fault)
            found.place = self._place(fault)
            found.mismatch = fault.situation == ORDINARY
        return found

    def _elsewhere(self, fault: SecondOrder | ModeFault) -> Examination:
        """A fault of another derivative than the first-order one."""
        found = self._result("fail", fault.cause, fault.text, fault.numbers)
        found.situation = fault.situation
        if fault.situation != ORDINARY:
            found.evidence["situation"] = fault.situation.describe()
        return found

    def _worst(self, fault: Fault) -> dict[str, Any] | None:
        ruled = fault.ruled
        if ruled is None:
            return None
        index = ruled.ordinal
        gradient = fault.pull.gradients[index]
        shape = (gradient if gradient is not None else fault.reference[index]).shape  # type: ignore[union-attr]
        where = [int(item) for item in torch.unravel_index(torch.tensor(ruled.coordinate), shape)] if shape else []
        return {
            "variable": self._subject.names[index],
            "kind": "input",
            "ordinal": index,
            "index": where,
            "analytic": _number(ruled.analytic),
            "numeric": ruled.numeric,
            "reference": _number(ruled.reference),
            "error_estimate": ruled.error,
        }

    def _place(self, fault: Fault) -> Place | None:
        if self._function is None or fault.ruled is None:
            return None
        found = gradient_line(self._function, self._subject.positions[fault.ruled.ordinal])
        if found is None:
            return None
        path = relative(found[0], self._root)
        return Place(path, found[1]) if path is not None else None


def _every_rank(situations: Sequence[Situation]) -> list[Situation]:
    """Those with a change of rank for the highest tensors, for all of them, and for the first alone.

    Left out: values so small that nobody gives them.
    """
    found: list[Situation] = []
    for item in situations:
        if item.values.kind in ("scaled", "around") and 0 < abs(item.values.number) < SMALLEST:
            continue
        found.append(item)
        if item.rank:
            found += [replace(item, rank_of="all"), replace(item, rank_of="first")]
    return found


def _number(value: complex) -> float:
    """The part that a report shows: complex gradients differ in one part, and that is the larger one here."""
    if isinstance(value, complex):
        return value.real if abs(value.real) >= abs(value.imag) else value.imag
    return float(value)


def _filled(gradient: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value) if gradient is None else gradient
