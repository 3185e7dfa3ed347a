"""How a training step is called so that it goes through several batches: with a loader of them, with one that it cuts
up itself, or once for each. Any of these can be run with other batches, and with another number of them in a step.

Everything is built anew for each run. Dropout and batch norm stay in eval mode: the one would make any two runs differ,
the other the samples of a batch depend on each other. This module must not judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gradproof_probe.harness.recipe import Built, Recipe, build
from gradproof_probe.importing import Resolved
from gradproof_probe.seeding import reseed
from gradproof_probe.training.accumulation import FACTOR, multiple
from gradproof_probe.training.accumulation_counts import Count, being, counts
from gradproof_probe.training.micro_batches import batches_in, is_batch, merged, paired_otherwise, part, size_of
from gradproof_probe.training.step_gradients import Recorded, Step, StepGradients, TooMuchError, held_by
from gradproof_probe.trees import transform

Kind = Literal["loader", "parts", "calls"]
Key = int | str
_PIECES: Final = 4
_CALLS: Final = 8
_MANY_CALLS: Final = 32


@dataclass(frozen=True, slots=True)
class Program:
    """`batches`: of a loader at `key`, or one for each call, by the keys of its arguments. `settings`: other numbers.

    `repeats`: how often a step is called that cuts up its batch itself.
    """

    resolved: Resolved
    recipe: Recipe
    source_root: Path
    seed: int
    kind: Kind
    key: Key | None = None
    batches: tuple[Any, ...] = ()
    settings: tuple[tuple[Count, int], ...] = ()
    repeats: int = 1

    def run(self, draw: int = 0) -> Recorded:
        built = self._built()
        with ExitStack() as stack:
            for count, value in self.settings:
                stack.enter_context(being(count, value, self.resolved.value, built))
            holders = [*built.args, *built.kwargs.values()]
            reseed(self.seed + 1 + draw)
            recorded = StepGradients(self.source_root, holders).run(list(self._calls(built)))
        if isinstance(recorded.error, TooMuchError):
            raise recorded.error
        return recorded

    def longer(self) -> Program | None:
        """With more batches, made of the same samples."""
        if self.kind == "parts":
            return replace(self, repeats=2)
        number = max(2 * len(self.batches), _CALLS)
        return replace(self, batches=_extended(self.batches, number)) if self.batches else None

    def with_count(self, count: Count, value: int) -> Program:
        return replace(self, settings=(*self.settings, (count, value)))

    def counts(self, nominal: int) -> list[Count]:
        """What may be the number of micro-batches in a step, the likeliest first."""
        return counts(self.resolved.value, self._built(), nominal)

    def single_values(self, count: Count) -> list[int]:
        """To what a number is set for one micro-batch a step: to one, or to the size of all samples."""
        values = [1]
        if self.kind == "parts":
            size = size_of(_data(self._built()))
            values += [] if size is None else [size]
        now = dict(self.settings).get(count, count.value)
        return [value for value in values if value != now]

    def together(self, recorded: Recorded) -> list[int] | None:
        """Which batch each backward pass is of; None if there isn't one for each."""
        number = len(recorded.backwards)
        if self.kind == "parts":
            return list(range(number))
        if not self.batches or number % len(self.batches):
            return None
        return [item % len(self.batches) for item in range(number)]

    def is_single(self, count: Count, value: int, recorded: Recorded) -> bool:
        """Whether each backward pass is a step of its own with this number, and the first still is what it was."""
        try:
            single = self._set(count, value).run()
        except (TypeError, ValueError, AttributeError):
            return False
        steps = [step for step in single.steps if step.since]
        if single.error is not None or not steps or any(len(step.since) > 1 for step in steps):
            return False
        if len(steps) != len(single.backwards) or len(steps) != len(single.steps):
            return False
        if self.kind == "parts":
            return len(steps) == 1 and len(recorded.steps) == 1
        if len(single.backwards) != len(recorded.backwards):
            return False
        return multiple(single.backwards[0].gave, recorded.backwards[0].gave) is not None

    def whole(
        self, recorded: Recorded, step: Step, count: tuple[Count, int], *, among_others: bool = False
    ) -> torch.Tensor | None:
        """The gradient for the samples of a step as one batch, in one step; `among_others` in a loader as long as it
        was: then a loss that depends on the number of batches is another.

        A learning rate that goes with the number of micro-batches divides as well as a loss does."""
        program = self._set(*count)
        if self.kind != "parts":
            belonging = self.together(recorded)
            assert belonging is not None
            try:
                batch = merged([self.batches[belonging[number]] for number in step.since])
            except (ValueError, RuntimeError):
                return None
            program = replace(program, batches=(batch,) * (len(self.batches) if among_others else 1))
        single = program.run()
        usable = single.error is None and single.steps and len(single.steps[0].since) == 1
        if not usable:
            return None
        # Schedules move it a little from step to step: only what goes with the number is meant for it.
        rate = single.steps[0].rate / recorded.steps[0].rate
        number = len(recorded.steps[0].since)
        return single.steps[0].gradient * (rate if abs(rate - number) <= FACTOR * number else 1.0)

    def sizes(self, recorded: Recorded, step: Step) -> list[int] | None:
        """How many samples each micro-batch of a step has, where they are batches of their own."""
        belonging = None if self.kind == "parts" else self.together(recorded)
        if belonging is None:
            return None
        sizes = [size_of(self.batches[belonging[number]]) for number in step.since]
        return [size for size in sizes if size is not None] if None not in sizes else None

    def _set(self, count: Count, value: int) -> Program:
        others = tuple(item for item in self.settings if item[0] != count)
        return replace(self, settings=(*others, (count, value)))

    def _built(self) -> Built:
        built = build(self.resolved, self.recipe, seed=self.seed)
        for holder in held_by([*built.args, *built.kwargs.values()]):
            if isinstance(holder, torch.nn.Module):
                _steady(holder)
        return built

    def _calls(self, built: Built) -> Iterator[Callable[[], Any]]:
        if self.kind == "loader":
            assert self.key is not None
            was_iterator = isinstance(_get(built, self.key), Iterator)
            listed = [_copy(batch) for batch in self.batches]
            given: list[dict[Key, Any]] = [{self.key: iter(listed) if was_iterator else listed}]
        elif self.kind == "calls":
            given = [_copy(batch) for batch in self.batches]
        else:
            given = [_copy(_data(built)) for _ in range(self.repeats)]
        for values in given:
            args, kwargs = list(built.args), dict(built.kwargs)
            for key, value in values.items():
                if isinstance(key, int):
                    args[key] = value
                else:
                    kwargs[key] = value
            yield partial(built.call, *args, **kwargs)


def program_of(resolved: Resolved, recipe: Recipe, source_root: Path, seed: int) -> Program:
    """How this target goes through several batches, found by running it with what it is given."""
    whole = Program(resolved, recipe, source_root, seed, "parts")
    built = whole._built()
    for key, value in _keyed(built):
        batches = batches_in(value)
        if batches is not None and not held_by([value]):
            return replace(whole, kind="loader", key=key, batches=tuple(_copy(batch) for batch in batches))
    data = _data(built)
    size = size_of(data)
    once = whole.run()
    if once.error is not None or len(once.backwards) != 1 or size is None:
        return whole
    pieces = min(_PIECES, size)
    cut = tuple(part(data, slice(n * size // pieces, (n + 1) * size // pieces), size) for n in range(pieces))
    for number in (_CALLS, _MANY_CALLS):
        calls = replace(whole, kind="calls", batches=_extended(cut, number))
        found = calls.run()
        if found.error is not None:
            calls = replace(calls, batches=_extended((data,), number))
            found = calls.run()
        if found.error is None and len(found.steps) > 1:
            return calls
    return calls


def _extended(batches: Sequence[Any], number: int) -> tuple[Any, ...]:
    return tuple(
        paired_otherwise(batches[item % len(batches)], item // len(batches)) if item >= len(batches) else batches[item]
        for item in range(number)
    )


def _steady(module: torch.nn.Module) -> None:
    for item in module.modules():
        if isinstance(item, torch.nn.modules.batchnorm._BatchNorm | torch.nn.modules.dropout._DropoutNd):
            item.eval()
            item.train = partial(_unchanged, item)
        elif isinstance(item, torch.nn.RNNBase | torch.nn.MultiheadAttention):
            item.dropout = 0.0


def _unchanged(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:  # noqa: ARG001, FBT001, FBT002
    return module


def _keyed(built: Built) -> list[tuple[Key, Any]]:
    return [*enumerate(built.args), *built.kwargs.items()]


def _get(built: Built, key: Key) -> Any:
    return built.args[key] if isinstance(key, int) else built.kwargs[key]


def _data(built: Built) -> dict[Key, Any]:
    """The arguments that are samples: those with the first axis of the first of them."""
    found = {key: value for key, value in _keyed(built) if is_batch(value) and not held_by([value])}
    sizes = [size_of(value) for value in found.values()]
    return {key: value for (key, value), size in zip(found.items(), sizes, strict=True) if size == sizes[0]}


def _copy(value: Any) -> Any:
    return transform(value, lambda tensor: tensor.detach().clone())
