"""Find a recipe for a target: the declared one, or by trying small values and learning from what is raised.

Runs in a child that may be killed. Everything is decided by a fixed seed, so that the same source gives the same
recipe. What runs is not thereby how the author calls it: the grade and the provenance say how it was come by.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from gradproof_probe.harness.constructor_repair import constructor_repairs
from gradproof_probe.harness.constructors import constructor_candidates, is_too_large, parameters_of
from gradproof_probe.harness.initial import starting_arguments
from gradproof_probe.harness.recipe import Built, ExpressionError, Grade, Recipe, caller, construct, make_inputs
from gradproof_probe.harness.repair import Arguments, repairs
from gradproof_probe.harness.shapes import LayerHint, SourceHint, layer_hints, source_hints
from gradproof_probe.harness.trial import DEFINITE_FAULTS, Trial, TrialTimeoutError, attempt, time_limit
from gradproof_probe.harness.validation import validate
from gradproof_probe.importing import NotRunnableError, Resolved, describe_error, on_pypi
from gradproof_probe.missing_modules import MissingDependencyError
from gradproof_probe.request import Declared

TRIALS: Final = 160  # harness facts: successes have a median of 31 trials, and none came after 150
CONSTRUCTIONS: Final = 40
TRIAL_S: Final = 4.0
# How good a trial that isn't `ok` is, if nothing better is found.
FALLBACKS: Final = ("backward", "not_finite", "no_gradient")


@dataclass(slots=True)
class Found:
    """A recipe that ran, with the trial that it ended in."""

    recipe: Recipe
    trial: Trial


@dataclass(slots=True)
class Search:
    resolved: Resolved
    seed: int
    deadline: float
    fallbacks: dict[str, Found] = field(default_factory=dict)
    constructor_error: BaseException | None = None
    input_error: BaseException | None = None
    furthest: int = 0
    slow: bool = False
    constructed: bool = False

    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline


def find_recipe(
    resolved: Resolved,
    declared: Declared | None,
    *,
    seed: int,
    deadline: float,
    found: Callable[[Recipe], None] = lambda _recipe: None,
) -> Recipe:
    """The recipe, graded. `deadline` in monotonic seconds. Raises `NotRunnableError` with one of the stable reasons.

    `found` is told the recipe before it is tried with other sizes, which a target may not survive.
    """
    recipe = _runnable(resolved, declared, seed, deadline)
    found(recipe)
    return validate(resolved, recipe, seed=seed, deadline=deadline)


def _runnable(resolved: Resolved, declared: Declared | None, seed: int, deadline: float) -> Recipe:
    search = Search(resolved, seed, deadline)
    if declared is not None:
        return _declared(search, declared)
    found = _module(search) if resolved.target.kind == "module" else _callable(search, None, "")
    for stage in FALLBACKS:
        found = found or search.fallbacks.get(stage)
    if found is not None and found.trial.stage == "no_gradient":
        return _without_gradient(search, found)
    if found is not None:
        return found.recipe
    raise _unsolved(search)


def _without_gradient(search: Search, found: Found) -> Recipe:
    if search.resolved.target.kind == "module":
        # Still a harness: its outputs can be compared between compilers and devices.
        return replace(found.recipe, reason="no differentiable output")
    raise NotRunnableError(
        "no differentiable output",
        f"called with ({', '.join(found.recipe.inputs)}), no output depends differentiably on an input",
    )


def _unsolved(search: Search) -> NotRunnableError:
    if search.slow and search.input_error is None:
        return NotRunnableError("timed out", f"every call tried took longer than {TRIAL_S:g} s")
    if search.constructed:
        error = search.input_error
        if isinstance(error, NotImplementedError) and _raised_by_source(error, search.resolved):
            return NotRunnableError("abstract", describe_error(error))
        said = describe_error(error) if error is not None else "nothing was raised, but nothing ran through"
        return _dependency(error) or NotRunnableError("inputs unsolved", f"last try: {said}")
    error = search.constructor_error
    said = describe_error(error) if error is not None else "no constructor could be tried"
    return _dependency(error) or NotRunnableError("constructor unsolved", f"last try: {said}")


def _raised_by_source(error: BaseException, resolved: Resolved) -> bool:
    """torch raises NotImplementedError too, for sizes that it doesn't know."""
    traceback, last = error.__traceback__, ""
    while traceback is not None:
        last, traceback = traceback.tb_frame.f_code.co_filename, traceback.tb_next
    return last == getattr(resolved.module, "__file__", None) or "site-packages/torch/" not in last


def _dependency(error: BaseException | None) -> NotRunnableError | None:
    if isinstance(error, MissingDependencyError):
        return NotRunnableError(
            "missing dependency",
            f"{error.name}{on_pypi(error.name or '')} is not installed, and {error.used} is needed",
        )
    if isinstance(error, ModuleNotFoundError):
        return NotRunnableError("missing dependency", f"No module named {error.name!r}, imported when it is used")
    return None


def _declared(search: Search, declared: Declared) -> Recipe:
    recipe = Recipe("declared", "A", declared.constructor, declared.inputs, declared.provenance, found_by="declared")
    try:
        built = _build(search, recipe)
    except ExpressionError as error:
        if error.part == "constructor" and not DEFINITE_FAULTS.search(str(error.cause)):
            raise NotRunnableError("constructor unsolved", f"declared in {declared.provenance}: {error}") from error
        if error.part != "constructor":
            raise NotRunnableError("inputs unsolved", f"declared in {declared.provenance}: {error}") from error
        return recipe
    trial = attempt(built, seed=search.seed, seconds=max(1.0, search.deadline - time.monotonic()))
    if trial.stage in ("forward", "too_slow"):
        assert trial.error is not None
        said = describe_error(trial.error)
        raise NotRunnableError("inputs unsolved", f"declared in {declared.provenance}: the call raised {said}")
    if trial.stage == "no_gradient":
        return replace(recipe, reason="no differentiable output")
    return recipe


def _build(search: Search, recipe: Recipe) -> Built:
    instance = construct(search.resolved, recipe.constructor, seed=search.seed)
    args, kwargs = make_inputs(search.resolved, recipe.inputs, seed=search.seed)
    return Built(caller(search.resolved, instance), args, kwargs, instance)


def _module(search: Search) -> Found | None:
    """Constructors in order; the first with which inputs are found wins."""
    resolved = search.resolved
    name = resolved.target.qualname
    parameters = [p for p in parameters_of(resolved.value.__init__) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    queue = list(constructor_candidates(resolved.value, name))
    seen = {expression for expression, _ in queue}
    large: list[tuple[str, torch.nn.Module, str]] = []
    count = 0
    while queue and count < CONSTRUCTIONS and not search.out_of_time():
        expression, provenance = queue.pop(0)
        count += 1
        try:
            with time_limit(TRIAL_S):
                instance = construct(resolved, expression, seed=search.seed)
        except TrialTimeoutError:
            search.slow = True
            continue
        except ExpressionError as error:
            if isinstance(error.cause, TrialTimeoutError):
                search.slow = True
                continue
            if DEFINITE_FAULTS.search(str(error.cause)):
                return Found(
                    Recipe("synthesised", "C", expression, (), provenance, found_by="defaults"),
                    Trial("fault", error.cause),
                )
            search.constructor_error = error.cause
            for changed, why in constructor_repairs(error.cause, expression, parameters, name):
                if changed not in seen:
                    seen.add(changed)
                    queue.insert(0, (changed, f"{provenance}; {why}"))
            continue
        assert instance is not None
        search.constructed = True
        if is_too_large(instance):
            large.append((expression, instance, provenance))
            continue
        found = _callable(search, instance, provenance, expression)
        if found is not None:
            return found
    for expression, instance, provenance in large[:1]:
        if not search.out_of_time() and (found := _callable(search, instance, provenance, expression)) is not None:
            return found
    return None


@dataclass(slots=True)
class _Routes:
    """The two routes to the first input's shape: what the layers say, what the source says."""

    layers: list[LayerHint]
    source: dict[str, SourceHint]

    def grade(self, arguments: Arguments) -> Grade:
        first = next((argument for argument in arguments if argument.is_tensor), None)
        if first is None:
            return "C"
        by_source = self.source.get(first.name)
        by_layer = any(first.shape in hint.shapes for hint in self.layers)
        return "B" if by_layer and by_source is not None and by_source.rank == len(first.shape) else "C"


def _callable(
    search: Search, instance: torch.nn.Module | None, provenance: str, constructor: str | None = None
) -> Found | None:
    """Best-first over arguments: of what failed, the trial that came furthest is repaired first."""
    search.constructed = True
    resolved = search.resolved
    function = _function(resolved, instance)
    routes = _Routes(layer_hints(instance) if instance is not None else [], source_hints(function))
    call = caller(resolved, instance)
    heap: list[tuple[tuple[int, ...], int, Arguments, str]] = []
    seen: set[tuple[str, ...]] = set()
    counter = 0

    def offer(arguments: Arguments, why: str, priority: tuple[int, ...]) -> None:
        nonlocal counter
        key = tuple(argument.render() for argument in arguments)
        if key not in seen:
            seen.add(key)
            counter += 1
            heapq.heappush(heap, (priority, counter, arguments, why))

    for arguments, why in starting_arguments(resolved, function, instance, routes.layers, routes.source):
        offer(arguments, why, (0,))
    trials = 0
    while heap and trials < TRIALS and not search.out_of_time():
        priority, _, arguments, why = heapq.heappop(heap)
        trials += 1
        inputs = tuple(argument.render() for argument in arguments)
        try:
            args, kwargs = make_inputs(resolved, inputs, seed=search.seed)
        except ExpressionError:
            continue
        trial = attempt(Built(call, args, kwargs, instance), seed=search.seed, seconds=TRIAL_S)
        recipe = Recipe(
            "synthesised", routes.grade(arguments), constructor, inputs, "; ".join(filter(None, (provenance, why)))
        )
        if _blames_a_guess(trial, arguments):
            trial = replace(trial, stage="forward")
        if trial.stage in ("ok", "fault"):
            return Found(recipe, trial)
        if trial.stage == "too_slow":
            search.slow = True
        elif trial.stage in FALLBACKS:
            search.fallbacks.setdefault(trial.stage, Found(recipe, trial))
            if trial.stage == "no_gradient" and trials > 24:
                break
        if trial.error is not None and trial.stage == "forward":
            if search.input_error is None or trial.progress >= search.furthest:
                search.input_error, search.furthest = trial.error, trial.progress
            depth = priority[1] + 1 if len(priority) > 1 else 1
            if depth <= 6:
                message = f"{type(trial.error).__name__}: {trial.error}"
                for changed, because in _limited(repairs(message, arguments)):
                    offer(changed, f"{why}; {because}" if why else because, (-trial.progress, depth))
    return None


def _blames_a_guess(trial: Trial, arguments: Arguments) -> bool:
    """Whether a number that was saved for backward can be one that we gave where the author gives a tensor."""
    return (
        trial.stage == "fault"
        and "save_for_backward can only save" in str(trial.error)
        and any(argument.guessed and argument.kind == "literal" for argument in arguments)
    )


def _limited(changes: Iterator[tuple[Arguments, str]], most: int = 14) -> Iterator[tuple[Arguments, str]]:
    for _, change in zip(range(most), changes, strict=False):
        yield change


def _function(resolved: Resolved, instance: torch.nn.Module | None) -> Callable[..., Any]:
    if instance is not None:
        return type(instance).forward
    if resolved.target.kind == "autograd_function":
        forward: Callable[..., Any] = resolved.value.forward
        return forward
    value: Callable[..., Any] = resolved.value
    return value
