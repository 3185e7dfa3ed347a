"""The examination of one call: is what autograd returns the derivative of what the forward computes?

Used by the check for a whole target, again for each custom Function that a failing module goes through, and by the
library. A verdict of `fail` needs evidence that is stable: several random probes, at more than one point, beyond the
error estimate, and no sign that the difference is meant.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients import scenarios
from gradproof_probe.gradients.attribution import (
    ForwardTraces,
    InPlaceWrites,
    Place,
    backward_return,
    in_place_line,
    innermost,
    kept_line,
    statement,
)
from gradproof_probe.gradients.comparison import Comparison
from gradproof_probe.gradients.experiment import (
    BackwardError,
    Experiment,
    ForwardError,
    Output,
    Variable,
    differentiable,
    rms,
)
from gradproof_probe.gradients.functions import STEPLIKE, Recorder, speaks_of_design, submitted_functions
from gradproof_probe.gradients.labels import Label, said
from gradproof_probe.gradients.naming import name_cause
from gradproof_probe.gradients.naming.pairs import Evidence, GradientPair, Named
from gradproof_probe.gradients.own_backward import runs_own_code
from gradproof_probe.gradients.precision import COARSE, PrecisionTrace
from gradproof_probe.gradients.probing import (
    ROUNDING,
    Linearisation,
    OutsideError,
    Probe,
    UnstableError,
    linearise,
    probe,
    random_directions,
    ridders,
)
from gradproof_probe.gradients.situations import Situation
from gradproof_probe.gradients.structure import fill_inside, tangents
from gradproof_probe.harness.recipe import default_dtype
from gradproof_probe.harness.trial import DEFINITE_FAULTS, NO_DERIVATIVE
from gradproof_probe.importing import describe_error

Outcome = Literal["pass", "fail", "inconclusive", "error"]
PROBES: Final = 3  # three random pairs found 100 % of errors visible on ordinary input (checks facts 2.4)
BRIEF_PROBES: Final = 2
BASES: Final = 3  # points: as given, then moved by 1e-3 of the root mean square, twice
JITTER: Final = 1e-3
COORDINATES: Final = 64  # compared one by one when something is wrong; all of a variable that has no more

# A backward that works with `.backward()` alone (recomputing checkpoints) says so.
WANTS_BACKWARD: Final = re.compile(r"\.backward\(|torch\.autograd\.grad")

# Inputs that are constants of a loss by convention.
LABELS: Final = re.compile(r"target|label|(^|_)gt($|_)|ground_?truth|y_true|(^|_)true$", re.IGNORECASE)

Make = Callable[[torch.dtype | None], Experiment]


@dataclass(slots=True)
class Examination:
    verdict: Outcome
    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    place: Place | None = None
    worst: dict[str, Any] | None = None
    by_design: bool = False
    # A difference between autograd and differences was seen (at all probes); the cause may lie further inside.
    mismatch: bool = False
    drawn: bool = False
    precise: bool = True
    single: bool = False
    # The smallest situation in which it shows; None for the ordinary one.
    situation: Situation | None = None
    # The custom Function in which the fault is, where another target was examined.
    function: type | None = None
    # Why a difference is no fault; None where nothing says so.
    label: Label | None = None


class Examiner:
    """`deadline`: monotonic seconds after which no new step is begun. `function`: the Function under test, if one.

    `made_up`: nobody gave the inputs, so others are as good where these give nothing to compare. `briefly`: the same
    code was examined in another mode, so that it is probed less often and its backward not asked again.
    """

    def __init__(
        self,
        make: Make,
        *,
        source_root: Path,
        seed: int,
        deadline: float,
        function: type | None = None,
        made_up: bool = False,
        briefly: bool = False,
    ) -> None:
        self._made_up = made_up
        self._briefly = briefly
        self._make = make
        self._root = source_root
        self._seed = seed
        self._deadline = deadline
        self._function = function
        self._generator = torch.Generator().manual_seed(seed + 7)
        self._evidence: dict[str, Any] = {}
        self._rounding = ROUNDING[torch.float64]
        self._single = False
        self._random: set[str] = set()
        self._jumps: list[str] = []
        # How directions are kept inside the domain, from none to the most careful; see `_probe`.
        self._care = 0

    def examine(self) -> Examination:
        try:
            return self._examine()
        except ForwardError as error:
            return self._raised(error.cause, "forward_raises", "the forward")
        except BackwardError as error:
            return self._raised(error.cause, "backward_raises", "the backward")
        except OutsideError as error:
            return self._result(
                "inconclusive", "domain", f"differences leave the domain of the function whatever the step: {error}"
            )
        except UnstableError as error:
            return self._result("inconclusive", "unstable", str(error))
        except _GradientNotFiniteError as error:
            return self._result(
                "fail",
                "nan_gradient",
                f"the outputs are finite, but the gradient for {error} isn't",
                {"variables": error.names},
            )

    def _examine(self) -> Examination:
        experiment = self._promoted()
        with default_dtype(torch.float32 if self._single else torch.float64):
            problem = self._precondition(experiment)
            if problem is not None:
                return problem
            side = None if self._briefly else scenarios.side_effects(experiment, self._generator)
            if side is not None:
                return self._result("fail", side.cause, side.text, side.numbers)
            probes, line = self._probes(experiment)
            if line is None:
                return self._nothing_to_compare(experiment)
            judged = [item.judgement for item in probes]
            self._note(probes, experiment)
            if "mismatch" in judged:
                return self._mismatch(experiment, line)
            if judged.count("agree") < max(1, len(judged) // 2):
                return self._undecided(probes)
            return self._agreed(experiment, probes)

    # -- preparation

    def _promoted(self) -> Experiment:
        """In float64; in the given dtypes where the code can't be promoted."""
        try:
            with default_dtype(torch.float64):
                experiment = self._make(torch.float64)
                experiment.run()
        except ForwardError as error:
            if DEFINITE_FAULTS.search(str(error.cause)):
                raise
            first = error
        except RuntimeError as error:
            first = ForwardError(error)
        else:
            return experiment
        experiment = self._make(None)
        try:
            experiment.run()
        except ForwardError:
            raise first from None
        self._single = True
        self._rounding = ROUNDING[torch.float32]
        self._evidence["precision"] = f"float32: in float64 it raises {describe_error(first.cause, 200)}"
        return experiment

    def _precondition(self, experiment: Experiment) -> Examination | None:
        outputs = experiment.run()
        if not differentiable(outputs):
            return self._result(
                "inconclusive", "no_differentiable_output", "no output depends differentiably on an input"
            )
        where = _not_finite(outputs)
        if where is not None:
            outputs = (self._inside(experiment) if self._made_up else None) or []
            if not outputs:
                return self._result("inconclusive", "not_finite", f"{where} isn't finite at these inputs")
            self._evidence["inputs"] = f"between 0.1 and 0.9: {where} isn't finite at the given ones"
        again = experiment.run()
        if [o.value.shape for o in outputs] != [o.value.shape for o in again] or not all(
            torch.equal(a.value, b.value) for a, b in zip(outputs, again, strict=True)
        ):
            spread = max(
                (
                    float((a.value - b.value).detach().abs().max())
                    for a, b in zip(outputs, again, strict=False)
                    if a.value.shape == b.value.shape and a.value.numel()
                ),
                default=math.inf,
            )
            return self._result(
                "inconclusive",
                "nondeterministic",
                "two evaluations with the same inputs, state and seeds differ",
                {"spread": spread},
            )
        with PrecisionTrace(self._root) as trace:
            experiment.run()
        if trace.narrow.dtype is not None and not self._single:
            self._rounding = COARSE[trace.narrow.dtype]
            self._evidence["computes_in"] = (
                f"{trace.narrow.dtype} inside ({trace.narrow.operation}){said(trace.narrow.place)}"
            )
        self._jumps = [f"{name}{said(place)}" for name, place in trace.narrow.steps.items() if place is not None]
        self._random = trace.narrow.random
        if self._random:
            self._evidence["random"] = sorted(self._random)
        return None

    @staticmethod
    def _inside(experiment: Experiment) -> list[Output] | None:
        """The outputs at inputs from inside of nearly every domain, which stay; None if they aren't finite either."""
        given = [variable.base for variable in experiment.variables]
        fill_inside(experiment, experiment.seed)
        with contextlib.suppress(ForwardError):
            outputs = experiment.run()
            if differentiable(outputs) and _not_finite(outputs) is None:
                return outputs
        for variable, base in zip(experiment.variables, given, strict=True):
            variable.base = base
        experiment.put_back()
        return None

    # -- probing

    def _probes(self, experiment: Experiment) -> tuple[list[Probe], Linearisation | None]:
        probes: list[Probe] = []
        line: Linearisation | None = None
        for number in range(BRIEF_PROBES if self._briefly else PROBES + 2):
            if probes and time.monotonic() > self._deadline:
                self._evidence["stopped"] = "the time limit was near"
                break
            line = self._linearise(experiment)
            self._no_gradient(experiment, line)
            live = {i for i, gradient in enumerate(line.gradients) if gradient is not None}
            if not live:
                return [], None
            if any(not bool(torch.isfinite(g).all()) for g in line.gradients if g is not None):
                raise _GradientNotFiniteError(
                    [
                        v.name
                        for v, g in zip(experiment.variables, line.gradients, strict=True)
                        if g is not None and not bool(torch.isfinite(g).all())
                    ]
                )
            only = self._share(experiment, live, number)
            if only is None:
                break
            found = self._probe(experiment, line, only)
            probes.append(found)
            if found.judgement == "mismatch":
                return probes, line
            if found.judgement == "kink" and number + 1 < PROBES:
                experiment.rebase(self._generator, JITTER)
                self._evidence["kinks"] = self._evidence.get("kinks", 0) + 1
        return probes, line

    def _probe(self, experiment: Experiment, line: Linearisation, only: set[int]) -> Probe:
        """Along a random direction. Where the function refuses values beside the given ones: along one that stays in
        the set that the values seem to lie in (an interval, unit vectors, …), then with the smallest step alone."""
        while True:
            directions = random_directions(experiment, self._generator, only)
            if self._care:
                directions, kept = tangents([variable.base for variable in experiment.variables], directions)
                self._evidence["moved_inside"] = kept
            if self._care > 1:
                line.steps = line.steps[-1:]
            try:
                return probe(line, directions)
            except OutsideError:
                if self._care > 1:
                    raise
                self._care += 1

    def _share(self, experiment: Experiment, live: set[int], number: int) -> set[int] | None:
        """All variables at once, then the inputs and the parameters by themselves: large ones can hide small ones."""
        if number < PROBES:
            return live
        kind = "input" if number == PROBES else "parameter"
        some = {i for i in live if experiment.variables[i].kind == kind}
        return some if some and some != live else None

    def _linearise(self, experiment: Experiment) -> Linearisation:
        """Inputs that torch has no derivative for become constants."""
        while True:
            try:
                return linearise(experiment, self._generator, rounding=self._rounding, single=self._single)
            except BackwardError as error:
                if self._hold_labels(experiment, error):
                    continue
                candidates = [v for v in experiment.variables if v.kind == "input"]
                if not NO_DERIVATIVE.search(str(error.cause)) or not candidates or len(experiment.variables) < 2:
                    raise
                experiment.drop(candidates[-1])
                self._evidence.setdefault("held_constant", []).append(candidates[-1].name)

    def _hold_labels(self, experiment: Experiment, error: BackwardError) -> bool:
        """What raises may do so only because labels require grad, which nobody asks of them: hold them constant."""
        labels = [item for item in experiment.variables if item.kind == "input" and LABELS.search(item.name)]
        if not labels or len(labels) == len(experiment.variables):
            return False
        for item in labels:
            experiment.drop(item)
        names = [item.name for item in labels]
        self._evidence.setdefault("held_constant", []).extend(names)
        self._evidence["raises_with_labels"] = (
            f"if {' and '.join(names)} requires grad, backward raises {describe_error(error.cause, 200)}"
        )
        return True

    def _no_gradient(self, experiment: Experiment, line: Linearisation) -> None:
        names = [v.name for v, g in zip(experiment.variables, line.gradients, strict=True) if g is None]
        if names:
            self._evidence["no_gradient_for"] = names[:20]

    def _note(self, probes: Sequence[Probe], experiment: Experiment) -> None:
        self._evidence["probes"] = [
            {
                "judgement": item.judgement,
                "analytic": item.analytic,
                "numeric": item.numeric,
                "error_estimate": item.error,
            }
            for item in probes
        ]
        self._evidence["evaluations"] = experiment.evaluations
        self._evidence["variables"] = len(experiment.variables)
        self._evidence["elements"] = experiment.size

    # -- verdicts

    def _agreed(self, experiment: Experiment, probes: Sequence[Probe]) -> Examination:
        if all(item.scale == 0 for item in probes):
            return self._result("inconclusive", "vacuous", "every gradient is zero here: nothing was tested")
        side = self._asked_backward(experiment)
        if side is not None:
            return side
        error = max(
            (item.difference / max(item.scale, 1e-300) for item in probes if item.judgement == "agree"), default=0.0
        )
        return self._result(
            "pass",
            "agrees",
            f"autograd agrees with differences along {len(probes)} random directions, relative error {error:.1e}"
            + (f"; at inputs {self._evidence['inputs']}" if "inputs" in self._evidence else ""),
            {"relative_error": error},
        )

    def _asked_backward(self, experiment: Experiment) -> Examination | None:
        """What backward makes of other incoming gradients; None where nothing is wrong with it."""
        if self._briefly or not runs_own_code(experiment):
            return None
        side = scenarios.layouts(experiment, self._generator, rounding=self._rounding)
        if side is not None:
            return self._result("fail", side.cause, side.text, side.numbers)
        side = scenarios.linearity(experiment, self._generator, rounding=self._rounding)
        return None if side is None else self._not_linear(side, experiment)

    def _undecided(self, probes: Sequence[Probe]) -> Examination:
        if all(item.scale == 0 for item in probes):
            return self._result("inconclusive", "vacuous", "every gradient is zero here: nothing was tested")
        if any(item.judgement == "kink" for item in probes):
            return self._result(
                "inconclusive",
                "kinks",
                f"one-sided derivatives differ at every point tried: a corner or a jump{self._where_it_jumps()}",
            )
        return self._result(
            "inconclusive",
            "imprecise",
            "the differences are too imprecise here to say anything about the gradient" + self._where_it_jumps(),
        )

    def _where_it_jumps(self) -> str:
        if not self._jumps:
            return ""
        self._evidence["may_jump"] = self._jumps[:10]
        return f"; its values may jump because of {self._jumps[0]}"

    def _nothing_to_compare(self, experiment: Experiment) -> Examination:
        names = ", ".join(variable.name for variable in experiment.variables[:5])
        return self._result("inconclusive", "no_gradient", f"no gradient is returned for any of {names or 'no inputs'}")

    def _not_linear(self, side: scenarios.Side, experiment: Experiment) -> Examination:
        """A backward is linear in grad_output; what isn't is wrong, unless it exists to change gradients."""
        word = speaks_of_design(self._function) if self._function is not None else None
        if self._identity(experiment) or word is not None or side.cause != "ignores_grad_output":
            found = self._result(
                "inconclusive",
                "gradient_transform",
                f"{side.text}; {'the forward is the identity' if word is None else f'its source speaks of {word!r}'}"
                if self._identity(experiment) or word is not None
                else side.text,
                side.numbers,
            )
            found.by_design = True
            return found
        return self._result("fail", side.cause, side.text, side.numbers)

    def _mismatch(self, experiment: Experiment, line: Linearisation) -> Examination:
        """Seen once: look at it again at other points and directions before any verdict."""
        if self._random:
            self._evidence["note"] = "draws random numbers; reseeded before each evaluation"
        confirmed, tried = 0, 0
        kept = [variable.base.clone() for variable in experiment.variables]
        live = {i for i, gradient in enumerate(line.gradients) if gradient is not None}
        judgements: list[str] = []
        for base in range(BASES):
            if base:
                experiment.rebase(self._generator, JITTER)
            again = self._linearise(experiment)
            found = self._probe(experiment, again, live)
            judgements.append(found.judgement)
            tried += 1
            confirmed += found.judgement == "mismatch"
        for variable, value in zip(experiment.variables, kept, strict=True):
            variable.base = value
        experiment.put_back()
        self._evidence["repeats"] = judgements
        if confirmed < tried - 1 or confirmed == 0:
            return self._result(
                "inconclusive",
                "unstable",
                "autograd and differences disagree at some points and agree at others close by",
            )
        linear = scenarios.linearity(experiment, self._generator, rounding=self._rounding)
        comparisons, pairs = self._compare(experiment, line)
        named = name_cause(Evidence(pairs, tuple(line.cotangents), ()))
        worst = max(
            (item for item in comparisons if item.indices),
            key=lambda item: max(abs(a - n) for a, n in zip(item.analytic, item.numeric, strict=True)),
            default=None,
        )
        result = self._weigh(experiment, comparisons, named, linear)
        result.mismatch = True
        result.worst = worst.worst() if worst is not None else None
        result.drawn = bool(self._random)
        result.precise = not self._single and self._rounding < 1e-9
        return result

    def _compare(
        self, experiment: Experiment, line: Linearisation
    ) -> tuple[list[Comparison], tuple[GradientPair, ...]]:
        """Analytic and numeric values coordinate by coordinate, few enough to stay within the time."""
        found: list[Comparison] = []
        pairs: list[GradientPair] = []
        phi_step = max(line.steps[0], 1e-2) if line.rounding > 1e-9 else 1e-3
        for index, (variable, gradient) in enumerate(zip(experiment.variables, line.gradients, strict=True)):
            if gradient is None or variable.base.is_complex() or variable.size == 0:
                continue
            indices = self._coordinates(variable)
            flat = gradient.reshape(-1)
            comparison = Comparison(
                variable.name,
                tuple(variable.base.shape),
                [],
                [],
                [],
                [],
                variable.kind,
                variable.ordinal,
            )
            for coordinate in indices:
                if time.monotonic() > self._deadline and found:
                    break
                size = rms(variable.base)
                direction = torch.zeros_like(variable.base)
                direction.view(-1)[coordinate] = size
                directions: list[torch.Tensor | None] = [None] * len(experiment.variables)
                directions[index] = direction
                best = self._along(line, directions, phi_step)
                experiment.put_back()
                if best is None:
                    continue
                comparison.indices.append(coordinate)
                comparison.analytic.append(float(flat[coordinate]))
                comparison.numeric.append(best[0] / size)
                comparison.error.append(best[1] / size)
            found.append(comparison)
            pairs.append(comparison.pair(variable.base, gradient))
        return found, tuple(pairs)

    @staticmethod
    def _along(
        line: Linearisation, directions: Sequence[torch.Tensor | None], step: float
    ) -> tuple[float, float] | None:
        """The better of two estimates along one axis; None where both leave the domain."""
        phi = line.phi(directions)
        found = []
        for size in (step, line.steps[-1]):
            try:
                found.append(ridders(phi, size, line.rounding))
            except OutsideError:
                continue
        return min(found, key=lambda item: item[1]) if found else None

    def _coordinates(self, variable: Variable) -> list[int]:
        if variable.size <= COORDINATES:
            return list(range(variable.size))
        picked = torch.randperm(variable.size, generator=self._generator)[: COORDINATES // 2]
        return sorted(int(item) for item in picked)

    def _weigh(
        self, experiment: Experiment, comparisons: list[Comparison], named: Named, linear: scenarios.Side | None
    ) -> Examination:
        """Is the difference meant? Only then isn't it a fault."""
        numbers = dict(named.numbers)
        constant = self._locally_constant(comparisons)
        if linear is not None and linear.cause == "ignores_grad_output" and not self._identity(experiment):
            return self._result("fail", linear.cause, linear.text, {**numbers, **linear.numbers})
        word = speaks_of_design(self._function) if self._function is not None else None
        step_word = speaks_of_design(self._function, STEPLIKE) if self._function is not None else None
        reason = None
        if constant == "all":
            reason = "the output is locally constant: a straight-through or surrogate gradient"
        elif constant == "some" and (word or step_word or self._function is None):
            reason = (
                f"it differs only where the output is locally constant, and its source speaks of {word or step_word!r}"
            )
        elif self._identity(experiment):
            reason = "the forward is the identity: the Function exists to change the gradient"
        elif word is not None and self._function is not None:
            reason = f"its source speaks of {word!r}"
        elif linear is not None and linear.cause != "ignores_grad_output":
            reason = linear.text
        if reason is not None:
            found = self._result(
                "inconclusive", _label(constant, named), f"{named.text}, by design it seems: {reason}", numbers
            )
            found.by_design = True
            return found
        if constant == "some":
            return self._result(
                "fail", "gradient_where_constant", "a gradient is returned where the output doesn't change", numbers
            )
        return self._result("fail", named.cause, f"{named.text}; {named.hint}" if named.hint else named.text, numbers)

    def _locally_constant(self, comparisons: Sequence[Comparison]) -> Literal["all", "some", "none"]:
        """Whether, where the values differ, the numeric one is zero."""
        wrong = [(item, position) for item in comparisons for position in item.bad()]
        if not wrong:
            return "none"
        zero = [
            abs(item.numeric[position]) <= 1e-9 * item.scale + 10 * item.error[position] for item, position in wrong
        ]
        if not all(zero):
            return "none"
        scale = max(item.scale for item in comparisons)
        moving = any(abs(n) > 1e-6 * scale for item in comparisons for n in item.numeric)
        return "some" if moving else "all"

    def _identity(self, experiment: Experiment) -> bool:
        """Whether the Function gives back its first tensor unchanged."""
        if self._function is None:
            return False
        outputs = experiment.run()
        inputs = [variable for variable in experiment.variables if variable.kind == "input"]
        return any(
            output.value.shape == variable.base.shape and torch.equal(output.value.detach(), variable.base)
            for output in outputs
            for variable in inputs
        )

    # -- what was raised

    def _raised(self, error: BaseException, cause: str, what: str) -> Examination:
        if isinstance(error, MemoryError) or "not enough memory" in str(error) or "can't allocate memory" in str(error):
            return self._result("error", "out_of_memory", f"{what} raised {describe_error(error)}")
        place = innermost(error.__traceback__, self._root)
        definite = DEFINITE_FAULTS.search(str(error)) is not None
        if (cause == "backward_raises" and place is None) or definite:
            place = self._trace(error) or place
        if "save_for_backward" in str(error):
            place = self._saving() or place
        named = re.search(r"[Ff]unction (\w+)Backward returned an", str(error))
        if named is not None:
            # The engine complains after backward has returned: its name is all that tells where.
            owners = [item for item in submitted_functions(self._root) if item.__name__ == named[1]]
            place = (backward_return(owners[0], self._root) if len(owners) == 1 else None) or place
        # The harness tries other shapes first: where every one ends so, the Function is wrong for all of them.
        definite = definite or "returned an invalid gradient" in str(error)
        verdict: Outcome = "fail" if definite or (cause == "backward_raises" and place is not None) else "error"
        if NO_DERIVATIVE.search(str(error)) or WANTS_BACKWARD.search(str(error)):
            verdict = "inconclusive"
        found = self._result(verdict, cause, f"{what} raises {describe_error(error)}")
        found.place = place
        return found

    def _saving(self) -> Place | None:
        """torch complains about what was saved only after forward has returned: no frame tells the line."""
        recorder = Recorder(self._root)
        functions = [self._function] if self._function is not None else submitted_functions(self._root)
        try:
            with recorder.watching(functions):
                self._make(torch.float64).run()
        except (ForwardError, RuntimeError):
            pass
        last = recorder.calls[-1].function if recorder.calls else None
        return statement(last, "save_for_backward", self._root) if last is not None else None

    def _trace(self, error: BaseException) -> Place | None:
        """Run it again with torch remembering where nodes were made and tensors written to."""
        own = innermost(error.__traceback__, self._root)
        traces, writes = ForwardTraces(self._root), InPlaceWrites(self._root)
        try:
            with default_dtype(torch.float64), traces.open(), writes:
                experiment = self._make(torch.float64)
                linearise(experiment, self._generator, rounding=self._rounding, single=False)
        except (ForwardError, BackwardError) as again:
            message = str(again.cause)
            deeper = innermost(again.cause.__traceback__, self._root)
            return writes.blame(message) or deeper or traces.place() or own
        except Exception:
            return own
        return own

    def _result(self, verdict: Outcome, cause: str, text: str, numbers: dict[str, Any] | None = None) -> Examination:
        return Examination(verdict, cause, text, numbers or {}, dict(self._evidence), single=self._single)


class _GradientNotFiniteError(Exception):
    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names[:5]))
        self.names = names


def _not_finite(outputs: Sequence[Output]) -> str | None:
    """The name of the first output with a NaN or an infinity."""
    for output in outputs:
        if not bool(torch.isfinite(output.value).all()):
            return output.path or "the output"
    return None


def _label(constant: str, named: Named) -> str:
    return "straight_through" if constant != "none" else named.cause


def placed(found: Examination, function: type, source_root: Path) -> Examination:
    """A Function's fault with the line that its cause points at; the line that returns its gradients, if none does."""
    if found.verdict != "fail":
        return found
    place = None
    if found.cause in ("grad_output_mutated", "saved_tensor_mutated"):
        place = in_place_line(function, source_root)
    elif found.cause in ("stale_saved_value", "wrong_second_order"):
        place = kept_line(function, source_root)
    found.place = place or found.place or backward_return(function, source_root)
    return found
