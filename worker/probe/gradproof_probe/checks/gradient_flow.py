"""Does a gradient reach every parameter that decides the output? The running is in `training`."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.checks.gradcheck import experiment_maker
from gradproof_probe.gradients.attribution import Place, innermost
from gradproof_probe.gradients.experiment import BackwardError, Experiment, ForwardError, Variable
from gradproof_probe.gradients.functions import BY_DESIGN, speaks_of_design
from gradproof_probe.gradients.idioms import idiom
from gradproof_probe.gradients.probing import ROUNDING, UnstableError, linearise, probe, random_directions
from gradproof_probe.harness.recipe import ExpressionError, default_dtype
from gradproof_probe.importing import describe_error
from gradproof_probe.training.flow import Run, alone, live_outputs, moving_step, one_run
from gradproof_probe.training.hooks import Hooks
from gradproof_probe.training.scale import gradient_scale
from gradproof_probe.training.stops import Death, Stop, connected, deaths, find_stop

SEEDS: Final = 3
MOST_EXAMINED: Final = 6  # parameters without gradient that are followed, one of each module
_SHOWN: Final = 12
_DIRECTIONS: Final = 2
# Modules that follow another one, or that a caller keeps as they are.
_FOLLOWERS: Final = re.compile(
    r"teacher|target|(^|[_.])ema([_.]|$)|momentum|shadow|frozen|fixed|pretrained|reference|old_|_old|"
    r"(key|_k)($|[._])|slow|average|swa",
    re.IGNORECASE,
)
# What such a target returns is made of gradients that nobody differentiates.
_EXPLAINS: Final = re.compile(
    r"cam|salien|attribut|expla|guid|attack|advers|perturb|influence|sampl|langevin|generat|infer|predict|deploy",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Lost:
    """One parameter without gradient, and what became of it.

    `label`: why it is no fault; `open`: that may be so, but nothing says that it is meant.
    """

    name: str
    cause: str
    text: str
    place: Place | None = None
    label: str | None = None
    open: bool = False
    numbers: dict[str, Any] = field(default_factory=dict)

    def to_evidence(self) -> dict[str, Any]:
        where = None if self.place is None else f"{self.place.path}:{self.place.line}"
        return {"parameter": self.name, "cause": self.cause, "text": self.text, "place": where, "label": self.label}


class GradientFlow(Check):
    name: ClassVar[str] = "gradient_flow"
    cost: ClassVar[float] = 6.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Looks for parameters that decide the output but get no gradient, and names where the graph stops.",
        what_it_does=(
            "The module is built three times, each with other parameters, inputs and random weights of its outputs, "
            "and differentiated in train mode. A parameter whose gradient is missing or exactly zero each time is "
            "moved, in small and large steps, to see whether an output follows. Then it is followed, alone requiring "
            "grad: an operation into which a connected value goes and out of which an unconnected one comes (`detach`, "
            "`.data`, `item()`, NumPy, `no_grad`, a comparison, `argmax`, a conversion to whole numbers, "
            "`torch.tensor`, `autograd.grad` without `create_graph`, a list that a custom Function returns) is the "
            "stop if the output stays when the operation gives what it gave before. Where a way back exists, the node "
            "at which the gradient becomes zero is named. Hooks that write into the gradient they are shown are given "
            "a copy, and those that raise are named. How large gradients are, layer by layer and for float16, is in "
            "`evidence.scale`, with advice."
        ),
        how_it_decides=(
            "`fail` when a parameter that requires grad moves a differentiable output and never gets a gradient, in "
            "all three builds; when a gradient is exactly zero while differences are not; when it passes an operation "
            "whose derivative is zero everywhere (`round`, `sign`); when a hook raises, or spoils the gradient of "
            "another branch. `pass`, with a note in the evidence, for parameters that took no part in this call, that "
            "are multiplied by zeros or saturated at the start, and for what is meant: parameters with "
            "`requires_grad=False`, modules that are called under `no_grad` (frozen, teachers, moving averages), "
            "straight-through idioms, sampled values, and what the source calls stopped. A gradient is never a fault "
            "for its mere size. `inconclusive` where a caller detaches the whole output of a module and nothing says "
            "that it is meant, where no output of the call can be differentiated, or no parameter took part. `skipped` "
            "for what has no parameters to train."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.resolved.target.kind != "module":
            return CheckResult("skipped", "it has no parameters: only modules are trained")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what is tried here on purpose
            try:
                return _Examination(context).result()
            except ExpressionError as error:
                return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")
            except ForwardError as error:
                return CheckResult("error", f"the forward raises {describe_error(error.cause, 300)}")


class _Examination:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._root = context.source_root
        self._precision: torch.dtype | None = torch.float64
        self._evidence: dict[str, Any] = {}

    def result(self) -> CheckResult:
        hooks = Hooks(self._root)
        try:
            with hooks.watching():
                runs = [self._run(self._context.seed)]
        except BackwardError as error:
            return self._backward_raised(error, hooks)
        if not runs[0].gradients and runs[0].differentiable:
            return CheckResult("skipped", "it has no parameters that require grad")
        if not any(variable.kind == "parameter" for variable in runs[0].experiment.variables):
            return CheckResult("skipped", "it has no parameters that require grad")
        if hooks.writes:
            spoilt = self._spoilt_by_hook(runs[0], hooks)
            if spoilt is not None:
                return spoilt
        for number in range(1, SEEDS):
            if time.monotonic() > self._context.deadline:
                break
            try:
                runs.append(self._run(self._context.seed + 1009 * number))
            except BackwardError as error:
                return self._backward_raised(error, hooks)
        self._evidence["seeds"] = len(runs)
        with default_dtype(self._precision or torch.get_default_dtype()):
            return self._judged(runs)

    def _run(self, seed: int) -> Run:
        """In float64, or as it is where that can't be run. Raises `ForwardError`, `BackwardError`."""
        precision = self._precision
        with default_dtype(precision or torch.get_default_dtype()):
            try:
                return one_run(self._make, seed, precision)
            except (ForwardError, BackwardError):
                if precision is None:
                    raise
        self._precision = None
        return one_run(self._make, seed, None)

    def _make(self, seed: int, precision: torch.dtype | None) -> Experiment:
        return experiment_maker(replace(self._context, seed=seed))(precision)

    def _judged(self, runs: Sequence[Run]) -> CheckResult:
        if not runs[0].differentiable:
            return self._without_graph(runs[0])
        names = list(runs[0].gradients)
        lost = [name for name in names if all(run.fate(name) != "flows" for run in runs)]
        self._evidence["parameters"] = len(names)
        scale = gradient_scale(runs)
        if scale:
            self._evidence["scale"] = scale
        if not lost:
            return self._passed(f"a gradient reaches all {len(names)} parameters{_advice(scale)}")
        followed = self._followed(runs, lost)
        self._evidence["without_gradient"] = lost[:_SHOWN]
        self._evidence["followed"] = [item.to_evidence() for item in followed]
        faults = [item for item in followed if item.cause in _FAULTS and item.label is None]
        if faults:
            return self._failed(faults[0], lost)
        cut = [item for item in followed if item.cause in _FAULTS]
        unsaid = next((item for item in cut if item.open), None)
        if unsaid is not None:
            return self._open("stop_gradient", f"{unsaid.text}; {unsaid.label}", unsaid.place)
        if len(lost) == len(names):
            why = f": {followed[0].text}" if followed else ""
            return self._open("nothing_took_part", f"no parameter gets a gradient in this call{why}")
        meant = f"; {cut[0].text}: {cut[0].label}" if cut else ""
        return self._passed(
            f"a gradient reaches {len(names) - len(lost)} of {len(names)} parameters; the others do not decide the "
            f"output here, or are cut on purpose ({', '.join(lost[:3])}){meant}{_advice(scale)}"
        )

    def _followed(self, runs: Sequence[Run], lost: Sequence[str]) -> list[_Lost]:
        """One parameter of each module, in the order of the first run."""
        found: list[_Lost] = []
        owners: set[str] = set()
        for name in lost:
            owner = name.rpartition(".")[0]
            if owner in owners and owner:
                continue
            owners.add(owner)
            if len(found) >= MOST_EXAMINED or time.monotonic() > self._context.deadline:
                self._evidence["not_followed"] = True
                break
            first = self._follow(runs[0].experiment, name)
            if first.cause in _FAULTS and first.label is None and len(runs) > 1:
                again = self._follow(runs[1].experiment, name)
                if again.cause != first.cause:
                    first.label = f"with other numbers it is {again.cause.replace('_', ' ')}"
            found.append(first)
        return found

    def _follow(self, experiment: Experiment, name: str) -> _Lost:
        variable = next(item for item in experiment.variables if item.name == name)
        experiment.put_back()
        paths = [item.path for item in live_outputs(experiment)]
        step = moving_step(experiment, variable, paths)
        if step is None:
            return _Lost(name, "unused", f"{name} gets no gradient, and no output follows it in this call")
        with alone(experiment, variable):
            leads_there = connected(experiment)
            dead = deaths(experiment, self._root) if leads_there else []
            stop = None if leads_there else find_stop(experiment, variable, step, self._root)
        if leads_there:
            return self._on_the_way_back(experiment, variable, step, dead)
        return self._stopped(name, step, stop)

    def _on_the_way_back(self, experiment: Experiment, variable: Variable, step: float, dead: Sequence[Death]) -> _Lost:
        """The graph leads to the parameter, and what comes back is nothing."""
        name = variable.name
        numeric = _slope(experiment, variable, self._precision)
        where = next((item for item in dead if item.function is not None), None) or next(iter(dead), None)
        if numeric is None and dead and all(item.is_step for item in dead):
            text = f"{name} only goes through {dead[0].node.partition('Backward')[0].lower()}, whose derivative is zero"
            return self._labelled(_Lost(name, "zero_derivative", f"{text} everywhere", dead[0].place), None)
        if numeric is None:
            return _Lost(name, "dead", f"{name} has a gradient of zero, which is right at these values")
        text = f"the output follows {name} (its derivative is {numeric:.3g} along a random direction), but its gradient"
        numbers = {"numeric": numeric, "step": step}
        if where is not None and where.function is not None:
            function = where.function
            lost = _Lost(
                name, "missing_gradient", f"{text} ends in the backward of {function.__qualname__}", where.place
            )
            lost.numbers = numbers
            word = speaks_of_design(function)
            return self._labelled(lost, f"its source speaks of {word!r}" if word else None)
        with alone(experiment, variable):
            stop = find_stop(experiment, variable, step, self._root)
        if stop is None or not stop.confirmed:
            return _Lost(name, "zero_gradient", f"{text} is exactly zero", label="where it is lost was not found")
        where_at = f" at {stop.place.path}:{stop.place.line}" if stop.place is not None else " in a library's code"
        lost = _Lost(
            name, "zero_gradient", f"{text} is exactly zero: its way is cut by {stop.words}{where_at}", stop.place
        )
        lost.numbers = {"operation": stop.what, **numbers}
        return self._labelled(lost, self._meant(name, replace(stop, inside=True)))

    def _stopped(self, name: str, step: float, stop: Stop | None) -> _Lost:
        if stop is None:
            text = f"the output follows {name}, which gets no gradient; where the graph stops was not found"
            return _Lost(name, "detached", text, label="the place was not found")
        where = f" at {stop.place.path}:{stop.place.line}" if stop.place is not None else " in a library's code"
        text = f"the output follows {name}, but the graph stops at {stop.words}{where}: it gets no gradient"
        lost = _Lost(name, "detached", text, stop.place, numbers={"operation": stop.what, "step": step})
        self._labelled(lost, self._meant(name, stop))
        if lost.label is None and stop.explicit and not stop.inside:
            lost.label = "its caller cuts the whole output of its module, and nothing says whether that is meant"
            lost.open = True
        return lost

    def _meant(self, name: str, stop: Stop) -> str | None:
        """Why a stop is no fault, if it is none."""
        if stop.sampled:
            return "a sampled value has no gradient: estimators of its expectation go another way"
        if _FOLLOWERS.search(name):
            return f"it is called {name!r}: it follows another module, or is kept as it is"
        if stop.what == "no_grad" and not stop.inside:
            return "its module is called in a block without gradient: it is frozen here"
        if stop.place is None:
            return "the graph stops in a library's code"
        if stop.what == "grad" and _EXPLAINS.search(self._context.resolved.target.name):
            return "gradients are what it returns"
        if not stop.confirmed:
            return "other operations cut it as well, or none that was seen"
        return None

    def _labelled(self, lost: _Lost, label: str | None) -> _Lost:
        lost.label = label or self._by_the_source(lost)
        return lost

    def _by_the_source(self, lost: _Lost) -> str | None:
        read = idiom(lost.place, self._root)
        if read is not None and not read.endswith("has no useful derivative"):
            return read
        target: Any = self._context.resolved.value
        word = BY_DESIGN.search(target.__name__)
        return f"the target's name speaks of {word[0].strip('_')!r}" if word else None

    def _without_graph(self, run: Run) -> CheckResult:
        """No output can be differentiated, though there are parameters: often for inference alone."""
        text = "no output of the call can be differentiated"
        experiment = run.experiment
        values = [item.path for item in experiment.run()]
        place: Place | None = None
        for variable in [item for item in experiment.variables if item.kind == "parameter"][:MOST_EXAMINED]:
            if not values or time.monotonic() > self._context.deadline:
                break
            step = moving_step(experiment, variable, values)
            if step is None:
                continue
            with alone(experiment, variable):
                stop = find_stop(experiment, variable, step, self._root)
            if stop is not None:
                place = stop.place
                text += f", though it follows {variable.name}: the graph stops at {stop.words}"
                break
        return self._open("no_differentiable_output", f"{text}; it may be for inference alone", place)

    def _spoilt_by_hook(self, run: Run, hooks: Hooks) -> CheckResult | None:
        with Hooks(self._root, copies=True).watching():
            meant = self._run(self._context.seed)
        worst, size = "", 0.0
        for name, gradient in run.gradients.items():
            other = meant.gradients.get(name)
            if gradient is not None and other is not None:
                off = float((gradient - other).abs().max()) / max(float(other.abs().max()), 1e-30)
                worst, size = (name, off) if off > size else (worst, size)
        self._evidence["hooks_that_write"] = [f"{place.path}:{place.line}" for place in hooks.writes[:_SHOWN]]
        if size <= 1e-6:
            return None
        text = (
            "a hook writes into the gradient it is shown, which goes to another branch as well: the gradient of "
            f"{worst} is off by {size:.2g} of its size; return a new tensor instead"
        )
        return self._fail("hook_writes_gradient", text, hooks.writes[0], {"relative_error": size})

    def _backward_raised(self, error: BackwardError, hooks: Hooks) -> CheckResult:
        words = describe_error(error.cause, 300)
        if hooks.raising:
            place, cause = hooks.raising[0]
            text = f"a hook on a gradient raises in the backward pass: {describe_error(cause, 200)}"
            return self._fail("hook_raises", text, place, {})
        own = innermost(error.cause.__traceback__, self._root)
        return self._open("backward_raises", f"the backward raises {words}", own)

    def _failed(self, fault: _Lost, lost: Sequence[str]) -> CheckResult:
        others = [name for name in lost if name != fault.name]
        more = f" (nor do {len(others)} more parameters)" if others else ""
        numbers = {"parameter": fault.name, "without_gradient": len(lost), **fault.numbers}
        return self._fail(fault.cause, fault.text + more, fault.place, numbers)

    def _fail(self, cause: str, text: str, place: Place | None, numbers: dict[str, Any]) -> CheckResult:
        target = self._context.resolved.target
        return CheckResult(
            "fail",
            text,
            diagnosis=Diagnosis(cause, text, numbers),
            path=place.path if place is not None else target.path,
            line=place.line if place is not None else target.line,
            evidence=self._evidence,
        )

    def _passed(self, text: str) -> CheckResult:
        return CheckResult("pass", text, evidence=self._evidence)

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


_FAULTS: Final = frozenset({"detached", "missing_gradient", "zero_gradient", "zero_derivative"})


def _slope(experiment: Experiment, variable: Variable, precision: torch.dtype | None) -> float | None:
    """The derivative along one parameter by differences where it isn't the zero that autograd gives; else None."""
    single = precision is None
    rounding = ROUNDING[torch.float32 if single else torch.float64]
    index = experiment.variables.index(variable)
    found = None
    try:
        for number in range(_DIRECTIONS):
            generator = torch.Generator().manual_seed(experiment.seed + 41 + number)
            line = linearise(experiment, generator, rounding=rounding, single=single)
            seen = probe(line, random_directions(experiment, generator, {index}))
            if seen.judgement != "mismatch":
                return None
            found = seen.numeric
    except (ForwardError, BackwardError, UnstableError, RuntimeError):
        return None
    return found


def _advice(scale: dict[str, Any]) -> str:
    return f". Advice: {'; '.join(scale['advice'])}" if scale.get("advice") else ""
