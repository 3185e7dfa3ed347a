"""Makes a recorded call smaller where it is so large that every check of it takes seconds.

An example's sizes have been divided by its author's scale, and some calls are large all the same: an image of 32 with
patches of 2 is 256 tokens, nine layers are nine times the graph. Sizes are halved and layers left out one after
another, and what still runs the same way is kept: as many outputs with as many axes, gradients for the same inputs and
parameters. What is counted is work, not time, so that the same source gives the same recipe. Only what was recorded is
made smaller: what a person declared stays as it is, and what was made up is small.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.harness.recipe import ExpressionError, Recipe, build
from gradproof_probe.harness.trial import Trial, TrialTimeoutError, attempt, time_limit
from gradproof_probe.importing import Resolved

# Elements of results and multiplications of matrices in one forward. 3e7 takes about 20 ms forward and backward in
# float64 on one core, and a target's checks together some 250 times that.
LIGHT: Final = 3e7
FEW: Final = 300  # operations: tracing takes torch.compile about 25 ms for each
WORTH: Final = 0.8  # of the work before: what saves less isn't kept
LIGHTENING_S: Final = 6.0
TRIALS: Final = 24
_TRIAL_S: Final = 3.0
_SMALLEST: Final = 8  # sizes below are heads, channels of an image, kernels
_LAYERS: Final = 2  # two show how one passes on to the next
_DEPTHS: Final = re.compile(r"depths?|layers?|blocks?|stages?|repeats?", re.IGNORECASE)
_COUNTED: Final = re.compile(r"dim|size|channel|width|head|feature|token|index|indices|idx", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Run:
    """What one call came to."""

    trial: Trial
    work: float
    operations: int

    @property
    def heavy(self) -> bool:
        return self.work > LIGHT or self.operations > FEW

    def same_way(self, other: _Run) -> bool:
        """Whether the other run shows the same outputs and the same gradients, of other sizes."""
        if other.trial.stage != self.trial.stage:
            return False
        return _form(self.trial) == _form(other.trial)


def _form(trial: Trial) -> tuple[list[tuple[str, int]], bool]:
    outputs = [(path, value.dim()) for path, value in trial.outputs]
    return outputs, any(value is None for value in trial.gradients)


class _Work(TorchDispatchMode):
    """Counts what the operations of a call compute."""

    def __init__(self) -> None:
        super().__init__()
        self.work = 0.0
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks; True would import torch._dynamo at the first operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self.work += item.numel() * (1 + _inner(func, args))
        return result


def _inner(func: Any, args: Any) -> float:
    """Multiplications for each element of the result, where the operation multiplies matrices or convolves."""
    name = func.overloadpacket.__name__
    tensors = [item for item in args if isinstance(item, torch.Tensor)]
    if name in ("mm", "bmm") and len(tensors) == 2:
        return float(tensors[0].shape[-1])
    if name in ("addmm", "baddbmm") and len(tensors) == 3:
        return float(tensors[1].shape[-1])
    if "convolution" in name and len(tensors) >= 2:
        return float(tensors[1][0].numel())
    if "attention" in name and len(tensors) >= 3:
        return 2.0 * tensors[1].shape[-2]
    return 0.0


def lightened(resolved: Resolved, recipe: Recipe, *, seed: int, deadline: float) -> Recipe:
    """The recipe, or a smaller one that runs the same way. `deadline` in monotonic seconds."""
    if recipe.source != "mined" or resolved.target.kind != "module" or recipe.reason is not None:
        return recipe
    search = _Lightening(resolved, seed, min(deadline, time.monotonic() + LIGHTENING_S))
    return search.of(recipe)


class _Lightening:
    def __init__(self, resolved: Resolved, seed: int, until: float) -> None:
        self._resolved = resolved
        self._seed = seed
        self._until = until
        self._trials = 0

    def of(self, recipe: Recipe) -> Recipe:
        first = self._run(recipe)
        if first is None or not first.heavy or first.trial.stage != "ok":
            return recipe
        best, lightest = recipe, first
        told: list[str] = []
        progress = True
        while progress and lightest.heavy:
            progress = False
            for changed, said in _smaller(best, layers=lightest.operations > FEW, sizes=lightest.work > LIGHT):
                if self._trials >= TRIALS or time.monotonic() > self._until:
                    return _named(best, told)
                found = self._run(changed)
                if found is not None and first.same_way(found) and _saves(found, lightest):
                    best, lightest, progress = changed, found, True
                    told.append(said)
                    break
        return _named(best, told)

    def _run(self, recipe: Recipe) -> _Run | None:
        """None where it can't be built or called."""
        self._trials += 1
        counted = _Work()
        try:
            with time_limit(_TRIAL_S):
                built = build(self._resolved, recipe, seed=self._seed)
        except (ExpressionError, TrialTimeoutError):
            return None
        call = built.call

        def counting(*args: Any, **kwargs: Any) -> Any:
            with counted:
                return call(*args, **kwargs)

        trial = attempt(replace(built, call=counting), seed=self._seed, seconds=_TRIAL_S)
        return _Run(trial, counted.work, counted.operations)


def _saves(found: _Run, before: _Run) -> bool:
    less_work = found.work <= WORTH * before.work and found.operations <= before.operations
    return less_work or (before.operations > FEW and found.operations <= WORTH * before.operations)


def _named(recipe: Recipe, told: list[str]) -> Recipe:
    if not told:
        return recipe
    said = f"made smaller, since it runs the same way: {', '.join(told)}"
    return replace(recipe, provenance="; ".join(filter(None, (recipe.provenance, said))))


def _smaller(recipe: Recipe, *, layers: bool, sizes: bool) -> Iterator[tuple[Recipe, str]]:
    """Fewer layers first, then every size halved, then one size after the other, the largest first."""
    if layers:
        yield from _with_fewer_layers(recipe)
    if not sizes:
        return
    present = sorted({node.value for tree in _trees(recipe) for node in _integers(tree)}, reverse=True)
    together = {size: _half(size) for size in present if size >= 2 * _SMALLEST}
    if len(together) > 1 and len({together.get(size, size) for size in present}) == len(present):
        yield _with_sizes(recipe, together), "sizes halved"
    for size in together:
        # No other size of the call: equal sizes would hide a transposition.
        half = next((value for value in (_half(size), _half(_half(size))) if value not in present), 0)
        if half >= _SMALLEST:
            yield _with_sizes(recipe, {size: half}), f"{half} for {size}"


def _half(size: int) -> int:
    """About half of it: even where it is even, odd where it is odd."""
    half = (size + 1) // 2
    return half + (size - half) % 2


def _with_fewer_layers(recipe: Recipe) -> Iterator[tuple[Recipe, str]]:
    if recipe.constructor is None:
        return
    tree = _parsed(recipe.constructor)
    for name in dict.fromkeys(item.arg for item in _depths(tree)):
        again = _parsed(recipe.constructor)
        said = []
        for keyword in _depths(again):
            if keyword.arg != name:
                continue
            for node in ast.walk(keyword.value):
                if isinstance(node, ast.Constant) and type(node.value) is int and node.value > _LAYERS:
                    said.append(f"{_LAYERS} for {node.value}")
                    node.value = _LAYERS
        yield replace(recipe, constructor=ast.unparse(again)), f"{name} {', '.join(dict.fromkeys(said))}"


def _depths(tree: ast.AST) -> Iterator[ast.keyword]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.keyword) or node.arg is None:
            continue
        constants = [item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)]
        counts = [value for value in constants if isinstance(value, int) and not isinstance(value, bool)]
        named = _DEPTHS.search(node.arg) and not _COUNTED.search(node.arg)
        if named and len(counts) == len(constants) and any(count > _LAYERS for count in counts):
            yield node


def _with_sizes(recipe: Recipe, sizes: Mapping[int, int]) -> Recipe:
    trees = _trees(recipe)
    for node in (node for tree in trees for node in _integers(tree)):
        node.value = sizes.get(node.value, node.value)
    texts = [ast.unparse(tree) for tree in trees]
    constructor = None if recipe.constructor is None else texts.pop(0)
    return replace(recipe, constructor=constructor, inputs=tuple(text[2:-1] for text in texts))


def _trees(recipe: Recipe) -> list[ast.AST]:
    """Of the constructor, if there is one, and of a call with each of the inputs: `name=value` is one as well."""
    constructors = [] if recipe.constructor is None else [_parsed(recipe.constructor)]
    return constructors + [_parsed(f"_({expression}\n)") for expression in recipe.inputs]


def _integers(tree: ast.AST) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= _SMALLEST:
            yield node


def _parsed(expression: str) -> ast.AST:
    """It has been evaluated before."""
    return ast.parse(expression, mode="eval").body
