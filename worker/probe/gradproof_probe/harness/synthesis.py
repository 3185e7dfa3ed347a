"""Find a recipe for a target: the declared one, or by trying small values and learning from what is raised.

Runs in a child that may be killed. Everything is decided by a fixed seed, so that the same source gives the same
recipe. What runs is not thereby how the author calls it: the grade and the provenance say how it was come by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from gradproof_probe.harness.call_search import FALLBACKS, TRIAL_S, CallSearch, Found, Search, Start
from gradproof_probe.harness.constructors import Candidate, Constructors, is_too_large
from gradproof_probe.harness.lightening import lightened
from gradproof_probe.harness.recipe import Built, ExpressionError, Recipe, caller, construct, make_inputs
from gradproof_probe.harness.refusals import needs_files, refusal
from gradproof_probe.harness.training_calls import ranks_recipe, training_reason, training_recipe
from gradproof_probe.harness.trial import DEFINITE_FAULTS, Trial, TrialTimeoutError, attempt, time_limit
from gradproof_probe.harness.validation import validate
from gradproof_probe.harness.wanted_files import is_plainest, wants_file
from gradproof_probe.importing import NotRunnableError, Resolved, describe_error
from gradproof_probe.request import Declared, Mined

CONSTRUCTIONS: Final = 40
CallWith = Callable[[Search, torch.nn.Module, Candidate], Found | None]


def find_recipe(
    resolved: Resolved,
    declared: Declared | None,
    *,
    seed: int,
    deadline: float,
    mined: Sequence[Mined] = (),
    suspected: bool = False,
    found: Callable[[Recipe], None] = lambda _recipe: None,
) -> Recipe:
    """The recipe, graded. `deadline` in monotonic seconds. Raises `NotRunnableError` with one of the stable reasons.

    `suspected`: reading the source says that the gradient is cut, so that a call without one is worth having.
    `found` is told the recipe before it is tried with other sizes, which a target may not survive.
    """
    training = training_recipe(resolved, declared, seed=seed, deadline=deadline)
    if training is not None:
        return training
    search = Search(resolved, seed, deadline, suspected=suspected)
    try:
        recipe = _runnable(search, declared, mined)
    except NotRunnableError as error:
        among_ranks = ranks_recipe(resolved, declared)
        if among_ranks is not None:
            return among_ranks
        reason = training_reason(resolved, error) if declared is None else None
        if reason is None:
            raise
        raise reason from error
    recipe = lightened(resolved, recipe, seed=seed, deadline=deadline)
    found(recipe)
    return validate(resolved, recipe, seed=seed, deadline=deadline, routes=search.routes)


def _runnable(search: Search, declared: Declared | None, mined: Sequence[Mined]) -> Recipe:
    if declared is not None:
        try:
            return _declared(search, declared)
        except NotRunnableError:
            if not _lacks_a_part(search.resolved, declared):
                raise
    else:
        for captured in mined:
            recipe = _mined(search, captured)
            if recipe is not None:
                return recipe
    found = _searched(search, declared)
    for stage in FALLBACKS:
        found = found or search.fallbacks.get(stage)
    if found is not None and found.trial.stage == "no_gradient":
        return _without_gradient(search, found)
    if found is not None:
        search.routes = found.routes
        return found.recipe
    raise _unsolved(search)


def _lacks_a_part(resolved: Resolved, declared: Declared) -> bool:
    """Whether the constructor or the inputs are left for us to find."""
    return not declared.inputs or (resolved.target.kind == "module" and declared.constructor is None)


def _searched(search: Search, declared: Declared | None) -> Found | None:
    """What nobody declared is looked for; what was declared of it stays as it is.

    Raises `NotRunnableError` where the declared part can't be evaluated.
    """
    if search.resolved.target.kind != "module":
        return CallSearch(search, None, Start()).run()
    if declared is None:
        return _module(search, _with_inputs)
    try:
        if declared.constructor is None:
            make_inputs(search.resolved, declared.inputs, seed=search.seed)
            return _module(search, partial(_with_declared_inputs, declared))
        instance = construct(search.resolved, declared.constructor, seed=search.seed)
    except ExpressionError as error:
        what = "constructor" if error.part == "constructor" else "inputs"
        raise NotRunnableError(f"{what} unsolved", f"declared in {declared.provenance}: {error}") from error
    assert instance is not None
    search.constructed = True
    said = f"constructor declared in {declared.provenance}"
    return CallSearch(search, instance, Start(declared.constructor, said, "declared")).run()


def _without_gradient(search: Search, found: Found) -> Recipe:
    if search.resolved.target.kind == "module" or search.suspected:
        # Still a harness: outputs can be compared between compilers and devices, and what cuts the gradient be watched.
        return replace(found.recipe, reason="no differentiable output")
    raise NotRunnableError(
        "no differentiable output",
        f"called with ({', '.join(found.recipe.inputs)}), no output depends differentiably on an input",
    )


def _unsolved(search: Search) -> NotRunnableError:
    late = search.constructed and time.monotonic() > search.deadline
    if (search.slow or late) and search.input_error is None:
        return NotRunnableError("timed out", f"every call tried took longer than {TRIAL_S:g} s")
    if search.constructed:
        error, refused, reason = search.input_error, search.refused, "inputs unsolved"
        said = describe_error(error) if error is not None else "nothing was raised, but nothing ran through"
    else:
        error = refused = search.constructor_error
        reason = "constructor unsolved"
        said = describe_error(error) if error is not None else "no constructor could be tried"
    return (
        refusal(refused, search.resolved)
        or needs_files(error, None if search.constructed else search.wanted_file)
        or NotRunnableError(reason, f"last try: {said}")
    )


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


def _mined(search: Search, captured: Mined) -> Recipe | None:
    """The recipe of a recorded call, if it runs here and now."""
    recipe = Recipe(
        "mined", "A", captured.constructor, captured.inputs, captured.provenance, found_by=captured.found_by
    )
    try:
        with time_limit(TRIAL_S):
            built = _build(search, recipe)
    except (ExpressionError, TrialTimeoutError) as error:
        search.constructor_error = error.cause if isinstance(error, ExpressionError) else error
        return None
    trial = attempt(built, seed=search.seed, seconds=TRIAL_S)
    if trial.stage in ("ok", "fault"):
        return recipe
    if trial.stage in FALLBACKS:
        search.fallbacks.setdefault(trial.stage, Found(recipe, trial))
    return None


def _build(search: Search, recipe: Recipe) -> Built:
    instance = construct(search.resolved, recipe.constructor, seed=search.seed)
    args, kwargs = make_inputs(search.resolved, recipe.inputs, seed=search.seed)
    return Built(caller(search.resolved, instance), args, kwargs, instance)


def _module(search: Search, call: CallWith) -> Found | None:
    """Constructors in order; the first with which the module can be called wins."""
    resolved = search.resolved
    constructors = Constructors.of(resolved)
    large: list[tuple[Candidate, torch.nn.Module]] = []
    count = 0
    while count < CONSTRUCTIONS and not search.is_used_up():
        candidate = constructors.take()
        if candidate is None:
            break
        count += 1
        try:
            with time_limit(TRIAL_S):
                instance = construct(resolved, candidate.expression, seed=search.seed)
        except TrialTimeoutError:
            search.slow = True
            continue
        except ExpressionError as error:
            if isinstance(error.cause, TrialTimeoutError):
                search.slow = True
                continue
            if DEFINITE_FAULTS.search(str(error.cause)):
                recipe = Recipe("synthesised", "C", candidate.expression, (), candidate.provenance)
                return Found(replace(recipe, found_by=candidate.found_by), Trial("fault", error.cause))
            if not isinstance(search.constructor_error, ImportError):  # what is tried after it is worse
                search.constructor_error = error.cause
            if wants_file(error.cause) and is_plainest(candidate.expression, resolved.value):
                search.wanted_file = error.cause
            constructors.failed(candidate, error.cause)
            continue
        assert instance is not None
        search.constructed = True
        if is_too_large(instance):
            large.append((candidate, instance))
            continue
        found = call(search, instance, candidate)
        if found is not None:
            return found
        if search.misused is not None:
            constructors.misused(candidate, search.misused)
            search.misused = None
        unfinished = search.fallbacks.get("not_finite")
        if unfinished is not None and unfinished.recipe.constructor == candidate.expression:
            constructors.not_finite(candidate)
    for candidate, instance in large[:1]:
        if not search.is_used_up() and (found := call(search, instance, candidate)) is not None:
            return found
    return None


def _with_inputs(search: Search, instance: torch.nn.Module, candidate: Candidate) -> Found | None:
    return CallSearch(search, instance, Start(candidate.expression, candidate.provenance, candidate.found_by)).run()


def _with_declared_inputs(
    declared: Declared, search: Search, instance: torch.nn.Module, candidate: Candidate
) -> Found | None:
    said = f"{candidate.provenance}; inputs declared in {declared.provenance}"
    recipe = Recipe("synthesised", "C", candidate.expression, declared.inputs, said, found_by=candidate.found_by)
    args, kwargs = make_inputs(search.resolved, declared.inputs, seed=search.seed)
    built = Built(caller(search.resolved, instance), args, kwargs, instance)
    trial = attempt(built, seed=search.seed, seconds=TRIAL_S)
    if trial.stage in ("ok", "fault"):
        return Found(recipe, trial)
    search.input_error = trial.error or search.input_error
    if trial.stage in FALLBACKS:
        search.fallbacks.setdefault(trial.stage, Found(recipe, trial))
    return None
