"""The gradients that each step of an optimizer has to follow, and which backward passes they are the sum of.

Parameters are put back after each step: then all gradients of a run, and of other runs, are those of the same point.
Nothing here judges.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradproof_probe.gradients.attribution import Place, calling_line

_MOST_NUMBERS: Final = 20_000_000  # of all gradients that one run may keep
_DEPTH: Final = 2


class TooMuchError(Exception):
    """The gradients of this run are too large to be kept one by one."""


@dataclass(frozen=True, slots=True)
class Backward:
    """`before`: the gradients that were there already. `gave`: what it added. Both for all known parameters.

    `point`: a checksum of the parameters, to know whether they were moved between two of them.
    """

    place: Place | None
    before: torch.Tensor
    gave: torch.Tensor
    point: float


@dataclass(frozen=True, slots=True)
class Step:
    """`gradient`: of all known parameters, those of other optimizers zero. `since`: numbers of the backward passes
    since the step before of the same optimizer that gave it something. `rate`: the learning rate."""

    place: Place | None
    gradient: torch.Tensor
    mask: torch.Tensor
    since: tuple[int, ...]
    rate: float = 1.0


@dataclass(slots=True)
class Recorded:
    """`clears`: for each call of `zero_grad`, how many backward passes there were by then, and its line.

    `inside_step`: an optimizer asked for a backward pass itself, by a closure.
    """

    backwards: list[Backward] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    clears: list[tuple[int, Place | None]] = field(default_factory=list)
    inside_step: bool = False
    error: BaseException | None = None


class StepGradients:
    """`holders`: modules, optimizers, and objects that have them as attributes."""

    def __init__(self, source_root: Path, holders: list[Any]) -> None:
        self._root = source_root
        self._parameters: dict[int, torch.Tensor] = {}
        for parameter in parameters_of(holders):
            self._parameters[id(parameter)] = parameter
        self._numbers = 0
        self._last: dict[int, int] = {}
        self._kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}  # by optimizers that are stepping
        self.recorded = Recorded()

    def run(self, calls: list[Callable[[], Any]]) -> Recorded:
        """Make the calls, one after the other. Without any optimizer the end of the calls counts as a step."""
        with self._watching():
            try:
                with torch.enable_grad():
                    for call in calls:
                        call()
                if not self.recorded.steps and self.recorded.backwards:
                    self._note_step(0, list(self._parameters.values()), None)
            except Exception as error:
                self.recorded.error = error
        return self.recorded

    @contextmanager
    def _watching(self) -> Iterator[None]:
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            before = self._vector(lambda parameter: parameter.grad)
            result = original(*args, **kwargs)
            after = self._vector(lambda parameter: parameter.grad)
            point = sum(float(parameter.detach().sum()) for parameter in self._parameters.values())
            self.recorded.backwards.append(Backward(calling_line(self._root), before, after - before, point))
            self.recorded.inside_step |= bool(self._kept)
            return result

        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.autograd, "backward", backward))
            for owner in (torch.optim.Optimizer, torch.nn.Module):
                stack.enter_context(patch.object(owner, "zero_grad", self._clear(vars(owner)["zero_grad"])))
            for hook in (
                register_optimizer_step_pre_hook(self._stepping),
                register_optimizer_step_post_hook(self._stepped),
            ):
                stack.callback(hook.remove)
            yield

    def _clear(self, original: Callable[..., Any]) -> Callable[..., Any]:
        plain = inspect.unwrap(original)

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self.recorded.clears.append((len(self.recorded.backwards), calling_line(self._root)))
            return plain(owner, *args, **kwargs)

        return zero_grad

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        rate = float(rate) if isinstance(rate, int | float | torch.Tensor) and rate else 1.0
        self._note_step(id(optimizer), parameters, calling_line(self._root), rate)
        self._kept[id(optimizer)] = [(parameter, parameter.detach().clone()) for parameter in parameters]

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        for parameter, value in self._kept.pop(id(optimizer), []):
            parameter.data.copy_(value)

    def _note_step(self, key: int, parameters: list[torch.Tensor], place: Place | None, rate: float = 1.0) -> None:
        own = {id(parameter) for parameter in parameters}
        mask = self._vector(lambda p: torch.ones_like(p) if id(p) in own else None) != 0
        begin = self._last.get(key, 0)
        self._last[key] = len(self.recorded.backwards)
        since = tuple(
            number
            for number in range(begin, len(self.recorded.backwards))
            if bool(self.recorded.backwards[number].gave[mask].any())
        )
        gradient = self._vector(lambda p: p.grad if id(p) in own else None)
        self.recorded.steps.append(Step(place, gradient, mask, since, rate))

    def _vector(self, of: Callable[[torch.Tensor], torch.Tensor | None]) -> torch.Tensor:
        pieces = []
        for parameter in self._parameters.values():
            value = of(parameter)
            dense = torch.zeros(parameter.shape) if value is None else value.detach()
            dense = dense if dense.layout == torch.strided else dense.to_dense()
            pieces.append(dense.reshape(-1).to(torch.float64))
        found = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)
        self._numbers += found.numel()
        if self._numbers > _MOST_NUMBERS:
            raise TooMuchError("the gradients of one run are too large to be kept one by one")
        return found


def parameters_of(holders: list[Any]) -> list[torch.Tensor]:
    """The parameters of modules and optimizers, and of those that other objects have as attributes."""
    found: dict[int, torch.Tensor] = {}
    for holder in held_by(holders):
        if isinstance(holder, torch.nn.Module):
            own: list[torch.Tensor] = list(holder.parameters())
        else:
            own = [parameter for group in holder.param_groups for parameter in group["params"]]
        found |= {id(parameter): parameter for parameter in own if parameter.requires_grad}
    return list(found.values())


def held_by(values: list[Any]) -> list[Any]:
    """The modules and optimizers among values and their attributes, each once."""
    found: dict[int, Any] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            found[id(value)] = value
        elif depth < _DEPTH and not isinstance(value, torch.Tensor | type):
            if isinstance(value, list | tuple):
                items = list(value)[:50]
            else:
                items = (
                    list(value.values()) if isinstance(value, dict) else list(getattr(value, "__dict__", {}).values())
                )
            for item in items:
                look(item, depth + 1)

    for value in values:
        look(value, 0)
    return list(found.values())
