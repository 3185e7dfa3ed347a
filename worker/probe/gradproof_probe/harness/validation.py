"""Decides what a recipe that ran is worth: it is tried with other sizes, and independent routes have to agree on it.

"It runs" is not "it is how the author calls it". So the grade says why a harness is believed:

A   The repository gives it: a declared target, or the arguments of a real call that was recorded while one of its own
    examples, docstrings, tests or `__main__` blocks ran.
B   Inferred, and agreed. Of the first tensor, and of each further floating tensor, at least two independent routes
    speak, at least one of them says how many axes it has, none contradicts what ran; and the harness holds: it runs
    with a batch of 3 instead of 2 or with another size of one more axis, its output changes with the input, some
    gradient isn't zero, all values are finite.
C   Guessed: it runs, and nothing more is known. What is missing stands in the provenance.

The routes (`evidence.Route`): the layers of the built module; the code of the call (axes taken apart, named or
indexed, einops patterns); its documentation (docstring, shape comments); its annotation (jaxtyping); the call by
another target of the repository in whose run it was recorded; a size that an error asked for; that no other number of
axes runs; that other numbers of axes run as well, where the code names none from the front. The last two are found
here, by running.

What is given (A) is shown as it was given. In what was inferred, equal sizes are made different wherever it still
runs, so that a transposition can't hide. This module must not look for a recipe that runs: that is `synthesis`.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from gradproof_probe.harness.any_rank import names_no_leading_axis
from gradproof_probe.harness.code import as_code
from gradproof_probe.harness.evidence import (
    ROUTE_WORDS,
    Evidence,
    called_function,
    called_parameters,
    read_evidence,
)
from gradproof_probe.harness.options import mode_options
from gradproof_probe.harness.recipe import (
    Built,
    ExpressionError,
    Grade,
    Recipe,
    Variant,
    caller,
    construct,
    make_inputs,
)
from gradproof_probe.harness.rewriting import Shape, WrittenTensor, with_shapes, written_tensors
from gradproof_probe.harness.trial import Trial, attempt
from gradproof_probe.importing import Resolved

TRIAL_S: Final = 2.0
# Seconds for all of it, a wall-clock limit for the slow ones: the median takes 20 trials of some 5 ms.
VALIDATION_S: Final = 6.0
VARIANTS: Final = 12
VARIANTS_S: Final = 3.0


def validate(
    resolved: Resolved, recipe: Recipe, *, seed: int, deadline: float, routes: Sequence[Evidence] = ()
) -> Recipe:
    """The recipe with its grade, the other values of its mode arguments, and its code.

    `routes` is what the search met beside what can be read: guards, sizes that an error demanded. `deadline` in
    monotonic seconds; where it comes too early, the grade is what is known by then.
    """
    until = min(deadline, time.monotonic() + VALIDATION_S)
    runs = _Runs(resolved, recipe, seed, until)
    trial = runs.run(recipe.inputs)
    if trial is None or trial.stage != "ok":
        if trial is not None and trial.stage == "not_finite":
            why = "not confirmed: a value or a gradient is not finite"
            recipe = replace(recipe, provenance="; ".join(filter(None, (recipe.provenance, why))))
        return replace(recipe, code=_code(resolved, recipe, seed, trial))
    if not _is_given(recipe):
        recipe, trial = _judged(runs, recipe, trial, routes)
    recipe = replace(recipe, variants=_variants(resolved, recipe, seed, deadline))
    return replace(recipe, code=_code(resolved, recipe, seed, trial))


def _is_given(recipe: Recipe) -> bool:
    """Whether the repository itself calls it so. In the run of a parent the parent's own arguments may be ours."""
    return recipe.source == "declared" or (recipe.source == "mined" and recipe.found_by != "parent")


def _code(resolved: Resolved, recipe: Recipe, seed: int, trial: Trial | None) -> str:
    outputs = [(path, value.is_complex()) for path, value in trial.outputs] if trial is not None else []
    names = frozenset(vars(resolved.module))
    leaves = list(_leaves(resolved, recipe, seed))
    return as_code(resolved.target, recipe, seed=seed, outputs=outputs, leaves=leaves, names=names)


def _leaves(resolved: Resolved, recipe: Recipe, seed: int) -> Iterator[int]:
    """The inputs that are floating tensors by themselves."""
    for position, expression in enumerate(recipe.inputs):
        try:
            args, kwargs = make_inputs(resolved, (expression,), seed=seed)
        except ExpressionError:
            return
        values = [*args, *kwargs.values()]
        if len(values) != 1 or not isinstance(values[0], torch.Tensor) or expression.lstrip().startswith("*"):
            continue
        if (values[0].is_floating_point() or values[0].is_complex()) and values[0].is_leaf:
            yield position


@dataclass(slots=True)
class _Runs:
    """Runs a recipe with other inputs; the module is built once."""

    resolved: Resolved
    recipe: Recipe
    seed: int
    until: float
    instance: torch.nn.Module | None = None

    def run(self, inputs: Sequence[str], *, shift: int = 0) -> Trial | None:
        """The trial, or None where the time is up or an expression raised. `shift` gives other values."""
        if time.monotonic() > self.until:
            return None
        try:
            if self.instance is None:
                self.instance = construct(self.resolved, self.recipe.constructor, seed=self.seed)
            args, kwargs = make_inputs(self.resolved, tuple(inputs), seed=self.seed + shift)
        except ExpressionError:
            return None
        built = Built(caller(self.resolved, self.instance), args, kwargs, self.instance)
        return attempt(built, seed=self.seed, seconds=max(0.1, min(TRIAL_S, self.until - time.monotonic())))

    def holds(self, inputs: Sequence[str]) -> bool:
        trial = self.run(inputs)
        return trial is not None and trial.stage == "ok"


@dataclass(slots=True)
class _Said:
    """What can be read about the inputs, by the parameter that each is given to."""

    evidence: list[Evidence]
    names: dict[int, str]
    counts_no_axis: bool

    @classmethod
    def of(cls, runs: _Runs, recipe: Recipe, routes: Sequence[Evidence]) -> _Said:
        function = called_function(runs.resolved, runs.instance)
        parameters = called_parameters(runs.resolved, function)
        return cls(
            [*read_evidence(runs.resolved, runs.instance, function, parameters), *routes],
            _names(recipe, parameters),
            names_no_leading_axis(function, runs.instance),
        )

    def of_tensor(self, tensor: WrittenTensor) -> list[Evidence]:
        name = self.names.get(tensor.position, "")
        return [item for item in self.evidence if item.argument == name]

    def still_allow(self, before: Sequence[WrittenTensor], after: Sequence[WrittenTensor]) -> bool:
        """Whether nothing is said against other sizes that wasn't said before."""
        return all(
            item.allows(new) or not item.allows(old)
            for old, new in zip(before, after, strict=True)
            for item in self.of_tensor(old)
        )


def _judged(runs: _Runs, recipe: Recipe, trial: Trial, routes: Sequence[Evidence]) -> tuple[Recipe, Trial]:
    said = _Said.of(runs, recipe, routes)
    flaws = list(_flaws(runs, recipe, trial))
    tensors = written_tensors(recipe.inputs)
    varied = list(_varied(runs, recipe.inputs, tensors)) if tensors else []
    if not tensors:
        flaws.append("no input is a tensor of a size that could be varied")
    elif not varied:
        flaws.append("it runs at these sizes only")
    inputs = _told_apart(runs, recipe.inputs, said) if tensors else recipe.inputs
    if inputs != recipe.inputs:
        recipe, trial = replace(recipe, inputs=inputs), runs.run(inputs) or trial
    grade: Grade = "C"
    why = f"not confirmed: {'; '.join(flaws)}"
    if not flaws:
        grade, why = _grade(runs, recipe, said)
    if grade == "B":
        why = f"{why}; {varied[0]}"
    return replace(recipe, grade=grade, provenance="; ".join(filter(None, (recipe.provenance, why)))), trial


# ------------------------------------------------------------------------------------------------------ does it hold


def _flaws(runs: _Runs, recipe: Recipe, trial: Trial) -> Iterator[str]:
    if all(value is None or not bool(value.any()) for value in trial.gradients):
        yield "all gradients are zero"
    other = runs.run(recipe.inputs, shift=1)
    if other is not None and other.stage == "ok" and _same(trial, other) and _reads_random_tensors(recipe):
        yield "the output does not change with the input"
    if other is not None and other.stage == "not_finite":
        yield "other values of the same kind are not finite"


def _same(one: Trial, other: Trial) -> bool:
    return len(one.outputs) == len(other.outputs) and all(
        torch.equal(mine, theirs) for (_, mine), (_, theirs) in zip(one.outputs, other.outputs, strict=True)
    )


def _reads_random_tensors(recipe: Recipe) -> bool:
    return any("rand" in expression for expression in recipe.inputs)


def _varied(runs: _Runs, inputs: tuple[str, ...], tensors: Sequence[WrittenTensor]) -> Iterator[str]:
    """What could be changed: the batch, and one axis more."""
    first = tensors[0]
    for axis in range(len(first.shape)):
        size = first.shape[axis]
        for other in _others(size, batch=axis == 0):
            if any(runs.holds(with_shapes(inputs, shapes)) for shapes in _together(tensors, first, axis, other)):
                yield f"axis {axis + 1} of {size} also as {other}"
                break


def _others(size: int, *, batch: bool) -> list[int]:
    """Other sizes of an axis: for a batch one more; for others such as a divisor of the model's sizes lets through."""
    if batch:
        return [size + 1]
    return list(dict.fromkeys([size + 1, size * 2, size + max(1, size // 2)]))


def _together(
    tensors: Sequence[WrittenTensor], first: WrittenTensor, axis: int, size: int
) -> Iterator[dict[tuple[int, int], Shape]]:
    """Ways to change one axis: with the same axis of all tensors, as counted from either end, with all of its size,
    alone.
    """
    before = first.shape[axis]

    def same_axis(tensor: WrittenTensor) -> set[int]:
        return {axis} if axis < len(tensor.shape) and tensor.shape[axis] == before else set()

    def same_from_the_end(tensor: WrittenTensor) -> set[int]:
        own = axis - len(first.shape) + len(tensor.shape)
        return {own} if own >= 0 and tensor.shape[own] == before else set()

    def same_size(tensor: WrittenTensor) -> set[int]:
        return {index for index, value in enumerate(tensor.shape) if value == before}

    def alone(tensor: WrittenTensor) -> set[int]:
        return {axis} if tensor is first else set()

    seen: list[dict[tuple[int, int], Shape]] = []
    for way in (same_axis, same_from_the_end, same_size, alone):
        shapes = {
            (tensor.position, tensor.place): tuple(
                size if index in axes else value for index, value in enumerate(tensor.shape)
            )
            for tensor in tensors
            if (axes := way(tensor))
        }
        if shapes not in seen:
            seen.append(shapes)
            yield shapes


# ------------------------------------------------------------------------------------------- distinct sizes stay so


def _told_apart(runs: _Runs, inputs: tuple[str, ...], said: _Said) -> tuple[str, ...]:
    """The inputs with equal sizes made different wherever that still runs and nothing is said against it."""
    for axis in reversed(range(1, len(written_tensors(inputs)[0].shape))):
        shape = written_tensors(inputs)[0].shape
        if shape[axis] < 2 or shape[axis] not in shape[:axis]:
            continue
        changed = _other_axis(runs, inputs, axis, said)
        if changed is not None:
            inputs = changed
    return _other_lengths(runs, inputs, said)


def _other_axis(runs: _Runs, inputs: tuple[str, ...], axis: int, said: _Said) -> tuple[str, ...] | None:
    tensors = written_tensors(inputs)
    shape = tensors[0].shape
    size = shape[axis]
    for other in dict.fromkeys([size + 1, size + max(1, size // 4), size + max(1, size // 2), size * 2]):
        if other in shape:
            continue
        for shapes in _together(tensors, tensors[0], axis, other):
            changed = with_shapes(inputs, shapes)
            alters_once = all(new.count(other) <= 1 for new in shapes.values())
            if alters_once and said.still_allow(tensors, written_tensors(changed)) and runs.holds(changed):
                return changed
    return None


def _other_lengths(runs: _Runs, inputs: tuple[str, ...], said: _Said) -> tuple[str, ...]:
    """A further tensor as long as the first one, made longer by one: a memory beside a sequence."""
    tensors = written_tensors(inputs)
    first = tensors[0]
    for index, tensor in enumerate(tensors[1:], start=1):
        if not tensor.is_float or len(tensor.shape) < 3 or len(first.shape) != len(tensor.shape):
            continue
        current = written_tensors(inputs)
        axis = len(tensor.shape) - 2
        size = current[index].shape[axis]
        if size != current[0].shape[axis] or size < 2:
            continue
        alike = [item for item in current[index:] if item.shape == current[index].shape]
        for group in (alike, [current[index]]):
            shapes = {
                (item.position, item.place): (*item.shape[:axis], size + 1, *item.shape[axis + 1 :]) for item in group
            }
            changed = with_shapes(inputs, shapes)
            if said.still_allow(current, written_tensors(changed)) and runs.holds(changed):
                inputs = changed
                break
    return inputs


# ------------------------------------------------------------------------------------------------------- agreement


def _grade(runs: _Runs, recipe: Recipe, said: _Said) -> tuple[Grade, str]:
    """B with the routes that agree on the first tensor, or C with what is missing."""
    tensors = written_tensors(recipe.inputs)
    agreed: list[str] = []
    for number, tensor in enumerate(tensors):
        if number and (not tensor.is_float or tensor.place):
            continue
        name = said.names.get(tensor.position, "")
        heard = [*said.of_tensor(tensor), *_by_running(runs, recipe, tensors, tensor, said)]
        if recipe.found_by == "parent":
            heard.append(Evidence("parent", name, ranks=(len(tensor.shape),), said="recorded while another target ran"))
        against = [item for item in heard if item.sure and not item.allows(tensor)]
        if against:
            return "C", f"{ROUTE_WORDS[against[0].route]} ({against[0].said}) says otherwise of {name or 'an input'}"
        supporting = [item for item in heard if item.allows(tensor)]
        agreeing = {item.route for item in supporting}
        if len(agreeing) < 2 or not any(item.fixes_rank for item in supporting):
            missing = "nothing" if not agreeing else f"only {_listed(agreeing)}"
            return "C", f"guessed: {missing} speaks for the shape of {name or 'an input'}"
        if not number:
            agreed = [ROUTE_WORDS[route] for route in ROUTE_WORDS if route in agreeing]
    return "B", f"agreed by {' and '.join(agreed[:3])}"


def _listed(agreeing: Iterable[str]) -> str:
    return " and ".join(words for route, words in ROUTE_WORDS.items() if route in set(agreeing))


def _by_running(
    runs: _Runs, recipe: Recipe, tensors: Sequence[WrittenTensor], tensor: WrittenTensor, said: _Said
) -> list[Evidence]:
    """Whether one axis more and one less are refused, or run as well in code that counts none from the front."""
    name = said.names.get(tensor.position, "")
    rank = len(tensor.shape)
    others = [shape for shape in (tensor.shape[1:], (2, *tensor.shape)) if shape and rank]
    outcomes = []
    for shape in others:
        alike = {(item.position, item.place): shape for item in tensors if item.shape == tensor.shape}
        alone = {(tensor.position, tensor.place): shape}
        ways = [alike] if alike == alone else [alike, alone]
        outcomes.append(any(runs.holds(with_shapes(recipe.inputs, way)) for way in ways))
    if time.monotonic() > runs.until or not outcomes:
        return []
    if not any(outcomes):
        return [Evidence("refusal", name, ranks=(rank,), said=f"neither {rank - 1} nor {rank + 1} axes run")]
    if all(outcomes):
        found = [Evidence("free", name, ranks=tuple(range(rank + 2)), said="other numbers of axes run as well")]
        return (
            [*found, Evidence("source", name, said="it counts no axis from the front")]
            if said.counts_no_axis
            else found
        )
    return []


def _names(recipe: Recipe, parameters: Sequence[inspect.Parameter]) -> dict[int, str]:
    """The parameter that each input is given to."""
    names: dict[int, str] = {}
    for position, expression in enumerate(recipe.inputs):
        keyword = re.match(r"\s*([A-Za-z_]\w*)\s*=(?!=)", expression)
        if keyword:
            names[position] = keyword[1]
        elif position < len(parameters):
            names[position] = parameters[position].name
    return names


# -------------------------------------------------------------------------------------------------------- variants


def _variants(resolved: Resolved, recipe: Recipe, seed: int, deadline: float) -> tuple[Variant, ...]:
    """The other values of mode arguments that build and run, forward and backward."""
    until = min(deadline, time.monotonic() + VARIANTS_S)
    kept: list[Variant] = []
    for variant in mode_options(resolved, recipe.constructor, recipe.inputs):
        if len(kept) == VARIANTS or time.monotonic() > until:
            break
        changed = replace(recipe, constructor=variant.constructor, inputs=variant.inputs)
        if _Runs(resolved, changed, seed, until).holds(variant.inputs):
            kept.append(variant)
    return tuple(kept)
