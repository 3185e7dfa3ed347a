"""Best-first search for the arguments of one callable: what was read, then repairs of the trials that came furthest.

The instance is built already; a recipe's constructor is only carried along. What decides is fixed by a seed.
"""

from __future__ import annotations

import heapq
import inspect
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import torch

from gradproof_probe.harness.arguments import Argument, Arguments, Values, each_leaf, leaves
from gradproof_probe.harness.conditions import solve
from gradproof_probe.harness.constructor_repair import kept_argument
from gradproof_probe.harness.constructors import parameters_of
from gradproof_probe.harness.demanded import Reading, candidates, read_call
from gradproof_probe.harness.evidence import Evidence
from gradproof_probe.harness.fixed_sizes import FixedSizes
from gradproof_probe.harness.frame_repair import frame_changes
from gradproof_probe.harness.guards import guard_changes
from gradproof_probe.harness.initial import given_parameters, starting_arguments
from gradproof_probe.harness.raised_conditions import guards
from gradproof_probe.harness.recipe import (
    FALLBACK_VALUES,
    Built,
    ExpressionError,
    Recipe,
    caller,
    make_inputs,
    names_of,
)
from gradproof_probe.harness.refusals import refusal
from gradproof_probe.harness.scene import Scene
from gradproof_probe.harness.shapes import layer_hints, saved_names, source_hints
from gradproof_probe.harness.stand_ins import is_about_stand_in
from gradproof_probe.harness.trial import Trial, attempt
from gradproof_probe.importing import Resolved
from gradproof_probe.protocol import FOUND_BY

TRIALS: Final = 160  # harness facts: successes have a median of 31 trials, and none came after 150
ALL_TRIALS: Final = 400  # of all constructors together
STALE: Final = 60  # trials after the one that came furthest: then nothing more comes of it
REPAIRS: Final = 14  # of one failed trial
DEPTH: Final = 6  # repairs of repairs
TRIAL_S: Final = 4.0
# How good a trial that isn't `ok` is, if nothing better is found.
FALLBACKS: Final = ("backward", "not_finite", "no_gradient")
# What is tried where values aren't finite: logarithms, roots, divergences and norms have one of these domains.
OTHER_VALUES: Final[tuple[Values, ...]] = ("unit", "positive", "simplex", "direction")
NO_GRADIENT_TRIALS: Final = 24
_ARGUMENTS_REFUSED: Final = re.compile(r"takes .*arguments? .*given|takes .*but|must be .*, not|missing \d+ required")
MISUSED_TRIALS: Final = 12  # where the fault lies in what the instance was built with


@dataclass(slots=True)
class Found:
    """A recipe that ran, with the trial that it ended in."""

    recipe: Recipe
    trial: Trial
    routes: tuple[Evidence, ...] = ()
    """What the search met that speaks for the arguments: demands of the source, and sizes that errors asked for."""


@dataclass(slots=True)
class Search:
    """What is known so far about a target, over all the constructors that were tried."""

    resolved: Resolved
    seed: int
    deadline: float
    suspected: bool = False
    fallbacks: dict[str, Found] = field(default_factory=dict)
    constructor_error: BaseException | None = None
    wanted_file: BaseException | None = None
    """A file or a download that isn't there, which a constructor without anything optional asked for."""
    input_error: BaseException | None = None
    furthest: int = -1
    refused: BaseException | None = None
    """What no other argument would help against, if that was met."""
    misused: BaseException | None = None
    """What no input mends: a layer that we gave the constructor, or another argument that the instance keeps."""
    slow: bool = False
    constructed: bool = False
    routes: tuple[Evidence, ...] = ()
    trials: int = 0

    def is_used_up(self) -> bool:
        return time.monotonic() > self.deadline or self.trials >= ALL_TRIALS


@dataclass(frozen=True, slots=True)
class Start:
    """Where the search of one callable begins: how the instance was built, and by which step."""

    constructor: str | None = None
    provenance: str = ""
    found_by: str = "defaults"


@dataclass(frozen=True, slots=True)
class _Try:
    arguments: Arguments
    why: str
    found_by: str
    depth: int = 0
    start: Arguments = ()
    """What it was before it was repaired."""

    settled: str = ""
    """Of a step that was taken at once: why, without the steps before it."""

    reached: int = -1
    """Of such a step: how far the call came before it; one that comes less far leads nowhere."""


def called_function(resolved: Resolved, instance: torch.nn.Module | None) -> Callable[..., Any]:
    if instance is not None:
        return type(instance).forward
    if resolved.target.kind == "autograd_function":
        forward: Callable[..., Any] = resolved.value.forward
        return forward
    value: Callable[..., Any] = resolved.value
    return value


def costlier(one: str, other: str) -> str:
    """The step that comes later in `FOUND_BY`: it decides what a harness is counted under."""
    return max(one, other, key=FOUND_BY.index)


class CallSearch:
    """The search over the arguments of one callable."""

    def __init__(self, search: Search, instance: torch.nn.Module | None, start: Start) -> None:
        self.search, self.instance, self.start = search, instance, start
        self.resolved = search.resolved
        self.function = called_function(self.resolved, instance)
        self.call = caller(self.resolved, instance)
        self.heap: list[tuple[tuple[int, int], int, _Try]] = []
        self.seen: set[tuple[str, ...]] = set()
        self.trials = 0
        self.best = -1
        self.best_at = 0
        self.reading = Reading([])
        self.fixed_sizes = FixedSizes()
        self._spares: dict[str, Argument] | None = None

    def run(self) -> Found | None:
        """The first that runs forward and backward; what ran otherwise is kept in the search's fallbacks."""
        self.search.constructed = True
        starts = self._starts()
        following: _Try | None = next(starts, None)
        while self.trials < TRIALS and not self.search.is_used_up():
            # Every third trial is a new start, so that the repairs of a wrong one can't use up all.
            if following is not None and (not self.heap or self.trials % 3 == 0):
                current, following = following, next(starts, None)
            elif self.heap:
                current = heapq.heappop(self.heap)[2]
            else:
                break
            found = self._try(current)
            if found is not None:
                return found
            if following is None and self.trials - self.best_at > STALE:
                break
            hopeless = self.search.refused is not None or "no_gradient" in self.search.fallbacks
            if hopeless and self.trials > NO_GRADIENT_TRIALS:
                break
            if self.search.misused is not None and self.trials > MISUSED_TRIALS:
                break
        return None

    # --- Where to start -------------------------------------------------------------------------------------------

    def _starts(self) -> Iterator[_Try]:
        kind = self.resolved.target.kind
        parameters = given_parameters(self.function, kind)
        reading = self.reading = self._read(parameters)
        for arguments, why in candidates(reading, is_module=self.instance is not None):
            if self._is_new(arguments):
                yield _Try(arguments, why, reading.found_by)
        hints = layer_hints(self.instance) if self.instance is not None else []
        source = source_hints(self.function)
        for arguments, why in starting_arguments(self.resolved, self.function, self.instance, hints, source):
            if self._is_new(arguments):
                by = "layers" if "from" in why or "layer" in why else "source" if "unpacked" in why else "names"
                yield _Try(arguments, why, by)

    def _read(self, parameters: list[inspect.Parameter]) -> Reading:
        is_class = self.resolved.target.kind == "autograd_function"
        own = self.resolved.value if isinstance(self.resolved.value, type) else None
        return read_call(
            self.function,
            own,
            self.instance,
            parameters,
            names_of(self.resolved),
            is_function_class=is_class and _has_context(self.resolved.value),
            saved=saved_names(self.resolved.value) if is_class else frozenset(),
        )

    def _is_new(self, arguments: Arguments) -> bool:
        key = tuple(argument.render() for argument in arguments)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def _spare(self, name: str) -> Argument | None:
        """An argument for a parameter that has a default, by keyword."""
        if self._spares is None:
            self._spares = {}
            if self.resolved.target.kind != "autograd_function":
                self._spares = self._optional_arguments()
        return self._spares.get(name)

    def _optional_arguments(self) -> dict[str, Argument]:
        every = parameters_of(self.function) if self.instance is not None else _parameters(self.function)
        plain = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        reading = self._read(plain)
        arguments, _ = next(candidates(reading, is_module=self.instance is not None))
        return {
            parameter.name: replace(argument, keyword=parameter.kind is not parameter.POSITIONAL_ONLY)
            for parameter, argument in zip(plain, arguments, strict=True)
        }

    def _routes(self, current: _Try) -> Iterator[Evidence]:
        """What spoke for the arguments that ran."""
        given = {argument.name: argument for argument in current.arguments if argument.is_tensor}
        for slot in self.reading.slots:
            argument, rank = given.get(slot.argument.name), slot.demanded_rank
            if argument is None or rank != len(argument.shape):
                continue
            demanded = sorted(slot.demanded_sizes.items())
            sizes = tuple((index, size) for index, size in demanded if argument.shape[index] == size)
            yield Evidence("source", argument.name, ranks=(rank,), sizes=sizes, said="read through its calls")
        before = {argument.name: argument for argument in current.start if argument.is_tensor}
        for name, argument in given.items():
            old = before.get(name)
            if old is None or old.shape == argument.shape or current.found_by not in ("repair", "guards"):
                continue
            if len(old.shape) != len(argument.shape):
                yield Evidence("demand", name, ranks=(len(argument.shape),), said="axes that an error asked for")
                continue
            changed = tuple(
                (index, size)
                for index, (was, size) in enumerate(zip(old.shape, argument.shape, strict=True))
                if was != size
            )
            yield Evidence("demand", name, sizes=changed, said="sizes that an error asked for")

    # --- One trial ------------------------------------------------------------------------------------------------

    def _try(self, current: _Try) -> Found | None:
        self.trials += 1
        search = self.search
        search.trials += 1
        inputs = tuple(argument.render() for argument in current.arguments)
        try:
            args, kwargs = make_inputs(self.resolved, inputs, seed=search.seed)
        except ExpressionError as refused:
            self._offer_made_otherwise(current, refused.cause)
            return None
        trial = attempt(Built(self.call, args, kwargs, self.instance), seed=search.seed, seconds=TRIAL_S)
        recipe = Recipe(
            "synthesised",
            "C",
            self.start.constructor,
            inputs,
            "; ".join(filter(None, (self.start.provenance, current.why))),
            found_by=costlier(self.start.found_by, current.found_by),
        )
        if _blames_a_guess(trial, current.arguments):
            trial = replace(trial, stage="forward")
        if trial.stage in ("ok", "fault"):
            return Found(recipe, trial, tuple(self._routes(current)))
        if trial.progress > self.best:
            self.best, self.best_at = trial.progress, self.trials
        if trial.stage == "too_slow":
            search.slow = True
        elif trial.stage in FALLBACKS:
            search.fallbacks.setdefault(trial.stage, Found(recipe, trial))
            self._offer_others(current, trial)
        elif trial.error is not None:
            self._offer_repairs(current, trial)
        return None

    def _push(
        self, arguments: Arguments, current: _Try, why: str, found_by: str, progress: int, *, at_once: bool = False
    ) -> None:
        """`at_once`: a step of a search of its own, which counts as no repair and goes before all that came as far."""
        if not self._is_new(arguments):
            return
        settled = (current.settled or current.why) if at_once else ""
        made = _Try(
            arguments,
            "; ".join(filter(None, (settled or current.why, why))),
            costlier(current.found_by, found_by),
            current.depth + (not at_once),
            current.start or current.arguments,
            settled,
            progress if at_once else -1,
        )
        heapq.heappush(self.heap, ((-progress, -1 if at_once else made.depth), len(self.seen), made))

    def _offer_repairs(self, current: _Try, trial: Trial) -> None:
        search, error = self.search, trial.error
        assert error is not None
        if search.input_error is None or trial.progress >= search.furthest:
            search.input_error, search.furthest = error, trial.progress
        if search.refused is None and refusal(error, self.resolved) is not None:
            search.refused = error
        if is_about_stand_in(error, self.start.constructor) or (self.instance is not None and _is_about_kept(error)):
            search.misused = error
        steps = self.fixed_sizes.changes(str(error)[:4000], current.arguments)
        for changed, why in steps if trial.progress >= current.reached else ():
            self._push(changed, current, why, "repair", trial.progress, at_once=True)
        if current.depth >= DEPTH:
            return
        scene = Scene(error, current.arguments, trial.args, trial.kwargs)
        guarded = guard_changes(scene, self._spare)
        framed = frame_changes(scene, self._spare)
        try:
            for changed, why in islice(guarded, REPAIRS):
                self._push(changed, current, why, "guards", trial.progress)
            for changed, why in islice(framed, REPAIRS):
                self._push(changed, current, why, "repair", trial.progress)
        except Exception:
            # Live objects of the submitted code may behave in any way when they are looked at.
            return

    def _offer_made_otherwise(self, current: _Try, error: BaseException) -> None:
        """The class of an argument refused what it was given: only its message helps, nothing was called yet."""
        scene = Scene(error, current.arguments)
        for changed, why in islice(frame_changes(scene, self._spare) if current.depth < DEPTH else (), REPAIRS):
            self._push(changed, current, why, "repair", 0)

    def _offer_others(self, current: _Try, trial: Trial) -> None:
        """It ran, but values are not finite or have no gradient: other values, other kinds, more arguments."""
        if current.depth >= 2:
            return
        listed = leaves(current.arguments)
        if trial.stage == "not_finite":
            # Finite outputs with a gradient that isn't are a finding: other values would hide it.
            for values in OTHER_VALUES if not trial.finite else ():
                why = f"{FALLBACK_VALUES}{values}"
                self._push(_all_with(current.arguments, values), current, why, "values", trial.progress)
            return
        if trial.stage != "no_gradient":
            return
        if any(leaf.kind == "int" for leaf in listed):
            changed = each_leaf(
                current.arguments, lambda leaf: replace(leaf, kind="float") if leaf.kind == "int" else leaf
            )
            self._push(changed, current, "floating point instead of integers", "repair", trial.progress)
        given = {argument.name for argument in current.arguments}
        self._spare("")
        for name, extra in (self._spares or {}).items():
            wanted = extra.kind == "float" or (
                extra.kind == "literal" and name.startswith(("return_loss", "return_grad"))
            )
            if name not in given and wanted:
                more = replace(extra, text="True") if extra.kind == "literal" else extra
                self._push((*current.arguments, more), current, f"with {name}", "repair", trial.progress)


def _all_with(arguments: Arguments, values: Values) -> Arguments:
    return each_leaf(arguments, lambda leaf: replace(leaf, values=values) if leaf.kind == "float" else leaf)


def _has_context(function: type) -> bool:
    return getattr(function, "setup_context", None) is torch.autograd.Function.setup_context


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _is_about_kept(error: BaseException) -> bool:
    """Whether a guard asks another value of something that the instance keeps, and of no input."""
    try:
        for guard in islice(guards(error), 8):
            answers = list(islice(solve(guard.condition, guard.names), 4))
            if answers and all(kept_argument(change) is not None for answer in answers for change in answer):
                return True
    except Exception:  # live objects of the submitted code may behave in any way when they are looked at
        return False
    return False


def _blames_a_guess(trial: Trial, arguments: Arguments) -> bool:
    """Whether a fault of the backward is ours: a number was saved that the author gives as a tensor, a tensor is
    called, or a function of ours is called with other arguments than it takes.
    """
    if trial.stage not in ("fault", "backward"):
        return False
    if "save_for_backward can only save" in str(trial.error):
        return any(argument.guessed and argument.kind == "literal" for argument in arguments)
    if not isinstance(trial.error, TypeError):
        return False
    if "'Tensor' object is not callable" in str(trial.error):
        return True
    calls_wrongly = _ARGUMENTS_REFUSED.search(str(trial.error)) is not None
    return calls_wrongly and any(callable(value) for value in [*trial.args, *trial.kwargs.values()])
