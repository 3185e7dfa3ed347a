"""Training steps with activation checkpoints as they are, called directly, or with one of their conditions mended.

Every checkpoint of torch ends in one of two internal functions; these are exchanged while a run lasts, so that it does
not matter under which name submitted code has `checkpoint`. Gradients are made by `backward()`: the reentrant kind
refuses `autograd.grad`. This module runs and notes; it must not judge.
"""

from __future__ import annotations

import inspect
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.utils.checkpoint as torch_checkpoint

from gradproof_probe.gradients.attribution import Place, calling_line
from gradproof_probe.harness.recipe import Built, Recipe, build, default_dtype
from gradproof_probe.harness.trial import NO_DERIVATIVE
from gradproof_probe.importing import Resolved
from gradproof_probe.seeding import reseed
from gradproof_probe.training.plain_state import Attribute, leaves
from gradproof_probe.training.rewinding import Moment, moment, moved, rewound
from gradproof_probe.trees import tensors, transform

# Every way into a checkpoint of torch 2.4 to 2.13.
_REENTRANT: Final = "CheckpointFunction"
_NOT_REENTRANT: Final = "_checkpoint_without_reentrant_generator"
_MOST_SEGMENTS: Final = 400


@dataclass(frozen=True, slots=True)
class Way:
    """How checkpoints are run. Without `recompute` their functions are called directly.

    The others mend one condition of a recomputation each: torch's random state is put back although the call says not
    to, Python's and NumPy's is put back as well, modules are as they were when forward came there, it runs to its end.
    `twice` has a direct run go through each segment a second time, from the same state, results thrown away.
    """

    recompute: bool = True
    torch_random: bool = False
    python_random: bool = False
    state: bool = False
    to_the_end: bool = False
    twice: bool = False


@dataclass(slots=True)
class Segment:
    """One call of a checkpoint. `moved`: what modules held otherwise when the recomputation began."""

    place: Place | None
    reentrant: bool
    preserves: bool
    takes_gradient: bool
    takes_floats: bool
    runs: int = 0
    moved: list[Attribute] = field(default_factory=list)


@dataclass(slots=True)
class Steps:
    """What the steps left. Names are `step 1: output…`, `… gradient of`, `… buffer`; `kept` are plain attributes."""

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    phase: str = "forward"
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One target with its harness. `flags`: attributes of its modules that are set, to turn checkpoints on."""

    resolved: Resolved
    recipe: Recipe
    source_root: Path
    flags: tuple[tuple[str, str], ...] = ()


class Watch:
    """Something that looks on while segments run. `around` surrounds the whole call, `segment` one segment."""

    def around(self, modules: Sequence[torch.nn.Module]) -> Any:  # noqa: ARG002
        return nullcontext()

    def segment(self, number: int, *, again: bool) -> Any:  # noqa: ARG002
        return nullcontext()


def train(
    subject: Subject,
    way: Way,
    *,
    seed: int,
    steps: int = 2,
    gradients_of_inputs: bool = True,
    dtype: torch.dtype | None = None,
    backward: bool = True,
    watch: Watch | None = None,
) -> Steps:
    """Build anew and go through the steps, in train mode, with the same inputs and without an optimizer.

    Raises `ExpressionError` if the target can't be built; what its call raises is part of what is seen.
    """
    built = build(subject.resolved, subject.recipe, seed=seed)
    seen = Steps()
    with default_dtype(dtype or torch.get_default_dtype()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of much that is tried here on purpose
        modules = _prepared(built, dtype, subject.flags)
        calls = _Calls(way, subject.source_root, modules, seen.segments, watch or Watch())
        try:
            with calls.interposed():
                for number in range(1, steps + 1):
                    _step(
                        seen,
                        built,
                        modules,
                        f"step {number}: ",
                        seed + number,
                        gradients_of_inputs=gradients_of_inputs,
                        dtype=dtype,
                        backward=backward,
                        watch=watch or Watch(),
                    )
        except Exception as error:
            seen.error = error
    return seen


def modules_of(built: Built) -> list[torch.nn.Module]:
    """The module that is called, and those that a function is given."""
    given = [value for value in [*built.args, *built.kwargs.values()] if isinstance(value, torch.nn.Module)]
    return [*([] if built.instance is None else [built.instance]), *given]


def _prepared(built: Built, dtype: torch.dtype | None, flags: tuple[tuple[str, str], ...]) -> list[torch.nn.Module]:
    modules = modules_of(built)
    for module in modules:
        module.train()
        if dtype is not None:
            module.to(dtype)
    if built.instance is not None:
        for owner, name in flags:
            setattr(built.instance.get_submodule(owner), name, True)
    return modules


def _step(
    seen: Steps,
    built: Built,
    modules: Sequence[torch.nn.Module],
    prefix: str,
    seed: int,
    *,
    gradients_of_inputs: bool,
    dtype: torch.dtype | None,
    backward: bool,
    watch: Watch,
) -> None:
    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.detach().clone()
        if value.is_floating_point() and dtype is not None:
            value = value.to(dtype)
        differentiable = value.is_floating_point() or value.is_complex()
        return value.requires_grad_() if differentiable and gradients_of_inputs else value

    leaves_in = [transform(value, leaf) for value in built.args]
    named = {name: transform(value, leaf) for name, value in built.kwargs.items()}
    # Clones, so that a forward that writes to its input doesn't meet a leaf.
    args = [transform(value, torch.Tensor.clone) for value in leaves_in]
    kwargs = {name: transform(value, torch.Tensor.clone) for name, value in named.items()}
    wanted = [(f"input{path}", value) for path, value in tensors([leaves_in, named]) if value.requires_grad]
    for number, module in enumerate(modules):
        which = f"module {number}: " if number else ""
        wanted += [(which + name, value) for name, value in module.named_parameters() if value.requires_grad]
        for value in module.parameters():
            value.grad = None
    seen.wanted = [name for name, _ in wanted]
    seen.phase = "forward"
    reseed(seed)
    with watch.around(modules):
        result = built.call(*args, **kwargs)
    outputs = [value for _, value in tensors(result)]
    for path, value in tensors(result):
        seen.values[f"{prefix}output{path}"] = value.detach().clone()
    if backward:
        seen.phase = "backward"
        _backward(outputs, seed)
        for name, value in wanted:
            if value.grad is not None:
                dense = value.grad if value.grad.layout == torch.strided else value.grad.to_dense()
                seen.values[f"{prefix}gradient of {name}"] = dense.detach().clone()
    for path, value in tensors([args, kwargs]):
        seen.values[f"{prefix}input{path} after"] = value.detach().clone()
    for number, module in enumerate(modules):
        which = f"module {number}: " if number else ""
        for name, value in module.named_buffers():
            seen.values[f"{prefix}buffer {which}{name}"] = value.detach().clone()
        for attribute, told in leaves(module).items():
            seen.kept[f"{prefix}attribute {which}{attribute}"] = told


def _backward(outputs: Sequence[torch.Tensor], seed: int) -> None:
    live = [value for value in outputs if value.requires_grad and (value.is_floating_point() or value.is_complex())]
    if not live:
        return
    generator = torch.Generator().manual_seed(seed + 11)
    cotangents = [
        torch.randn(o.shape, generator=generator, dtype=torch.complex128 if o.is_complex() else torch.float64)
        .to(o.dtype)
        .to(o.device)
        for o in live
    ]
    reseed(seed + 1000)
    try:
        torch.autograd.backward(live, cotangents)
    except RuntimeError as error:
        if not NO_DERIVATIVE.search(str(error)):
            raise


class _Calls:
    """Stands where torch's own two functions stood, and notes every segment."""

    def __init__(
        self, way: Way, source_root: Path, modules: Sequence[torch.nn.Module], segments: list[Segment], watch: Watch
    ) -> None:
        self._way = way
        self._root = source_root
        self._modules = modules
        self._segments = segments
        self._watch = watch
        self._function = getattr(torch_checkpoint, _REENTRANT)
        self._generator = getattr(torch_checkpoint, _NOT_REENTRANT)
        # How many options stand between the first two and the function's own arguments depends on torch's version.
        parameters = inspect.signature(self._generator).parameters.values()
        self._options = sum(item.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for item in parameters) - 2

    @contextmanager
    def interposed(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(
                patch.object(torch_checkpoint, _REENTRANT, types.SimpleNamespace(apply=self._reentrant))
            )
            stack.enter_context(patch.object(torch_checkpoint, _NOT_REENTRANT, self._not_reentrant))
            if self._way.to_the_end:
                stack.enter_context(torch_checkpoint.set_checkpoint_early_stop(False))
            yield

    def _reentrant(self, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:  # noqa: FBT001
        segment = self._noted(args, {}, reentrant=True, preserves=preserve)
        runs = _Runs(self._way, self._modules, segment, function)
        if self._way.recompute:
            return self._function.apply(runs, preserve or self._way.torch_random, *args)
        number = len(self._segments) - 1
        with self._watch.segment(number, again=False):
            result = function(*args)
        self._once_more(runs, number, args, {})
        return result

    def _not_reentrant(
        self,
        function: Callable[..., Any],
        preserve: bool = True,  # noqa: FBT001, FBT002
        *given: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        args = given[self._options :]
        segment = self._noted(args, kwargs, reentrant=False, preserves=preserve)
        runs = _Runs(self._way, self._modules, segment, function)
        if self._way.recompute:
            segment.runs = 1  # torch calls the function itself: it uses what it is given here for recomputing alone
            yield from self._generator(runs, preserve or self._way.torch_random, *given, **kwargs)
            return
        number = len(self._segments) - 1
        with self._watch.segment(number, again=False):
            yield
        self._once_more(runs, number, args, kwargs)

    def _once_more(self, runs: _Runs, number: int, args: Any, kwargs: Any) -> None:
        if self._way.twice:
            with self._watch.segment(number, again=True):
                runs.again(*args, **kwargs)

    def _noted(self, args: Any, kwargs: Any, *, reentrant: bool, preserves: bool) -> Segment:
        if len(self._segments) >= _MOST_SEGMENTS:
            raise TooManySegmentsError(f"more than {_MOST_SEGMENTS} checkpoints in one run")
        direct = [value for value in args if isinstance(value, torch.Tensor)]
        floats = [
            value for _, value in tensors([list(args), dict(kwargs)]) if value.is_floating_point() or value.is_complex()
        ]
        segment = Segment(
            calling_line(self._root),
            reentrant,
            preserves,
            any(value.requires_grad for value in direct),
            bool(floats),
        )
        self._segments.append(segment)
        return segment


class TooManySegmentsError(Exception):
    """A run that goes through so many checkpoints is not followed."""


class _Runs:
    """The function of one segment. The first run of a reentrant one is forward, each later run a recomputation."""

    def __init__(
        self, way: Way, modules: Sequence[torch.nn.Module], segment: Segment, function: Callable[..., Any]
    ) -> None:
        self._way = way
        self._modules = modules
        self._segment = segment
        self._function = function
        self._random = _random_states()
        self._moment: Moment | None = moment(modules) if way.state or way.twice else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._segment.runs += 1
        if self._segment.runs == 1:
            return self._function(*args, **kwargs)
        with ExitStack() as stack:
            if self._moment is not None:
                self._segment.moved = self._segment.moved or moved(self._moment, self._modules)
                stack.enter_context(rewound(self._moment))
            if self._way.python_random:
                stack.enter_context(_random_again(self._random[1:]))
            return self._function(*args, **kwargs)

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """The function once more as it was when forward came here, without a trace left."""
        assert self._moment is not None
        with rewound(self._moment), _random_again(self._random):
            return self._function(*args, **kwargs)


def _random_states() -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    return (torch.random.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state())


@contextmanager
def _random_again(states: tuple[Any, ...]) -> Iterator[None]:
    """Generators as they stood; `states` ends with those of Python and NumPy, torch's may stand before them."""
    now = _random_states()
    _set_random((*[None] * (3 - len(states)), *states))
    try:
        yield
    finally:
        _set_random(now)


def _set_random(states: tuple[Any, ...]) -> None:
    if states[0] is not None:
        torch.random.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])
