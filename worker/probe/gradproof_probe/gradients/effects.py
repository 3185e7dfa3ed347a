"""What a Function writes to besides its results: its inputs, its outputs, the cotangent it is given.

Watched in the first call, before anything else: a Function that changes what it was given makes every later comparison
worthless, and is wrong whatever its formula is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.situations import ORDINARY
from gradproof_probe.gradients.subject import NotApplicableError, Pull, Subject
from gradproof_probe.seeding import state, unchanged


@dataclass(frozen=True, slots=True)
class Effect:
    cause: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


class Watched:
    """The first call of a subject, on clones of everything. Raises what `Subject.forward` raises."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._made = subject.make(ORDINARY)
        self._leaves = subject.leaves(self._made, None)
        self._given = [item.clone() if isinstance(item, torch.Tensor) else item for item in self._leaves]
        self.outputs = subject.forward(self._given)
        self._written = [
            index for index in subject.positions if not _equal(self._made[index], self._given[index].detach())
        ]
        subject.writes = bool(self._written)
        self._before = [output.detach().clone() for output in self.outputs]
        self._values = [self._given[index].detach().clone() for index in subject.positions]
        self._kept: list[torch.Tensor] = []
        self.backward_draws = False

    def after_forward(self) -> Effect | None:
        """Inputs that were written to, unless forward said so (`mark_dirty`)."""
        if not self._written or any(_is_output_of_function(self._given[index]) for index in self._written):
            return None
        name = self._name(self._written[0])
        return Effect(
            "input_mutated", f"forward writes to {name} without ctx.mark_dirty: autograd goes on with the old value"
        )

    def repeats(self) -> bool:
        """Whether a second evaluation gives the same outputs; notes whether random numbers are drawn."""
        subject = self._subject
        subject.reseed()
        seeded = state()
        again = subject.forward(subject.given(subject.leaves(self._made, None), ORDINARY))
        # Every forward is seeded first: the same state afterwards means that it drew nothing.
        subject.random = not unchanged(seeded)
        return len(again) == len(self.outputs) and all(
            a.shape == b.shape and torch.equal(a, b) for a, b in zip(self._before, again, strict=True)
        )

    def pull(self) -> Pull:
        """The backward of the first call."""
        subject = self._subject
        self._kept = [item.clone() for item in subject.cotangents(self.outputs, ORDINARY)]
        forward_draws, subject.random = subject.random, True
        subject.reseed()
        seeded = state()
        pull = subject.pull_from(self.outputs, self._leaves, ORDINARY)
        self.backward_draws = not unchanged(seeded)
        subject.random = forward_draws or self.backward_draws
        return pull

    def overwritten(self, pull: Pull) -> Effect | None:
        """Whether the gradients that were returned change when backward is called for others."""
        subject = self._subject
        before = [None if item is None else item.clone() for item in pull.gradients]
        other = subject.leaves(subject.other(self._made), None)
        try:
            subject.pull_from(subject.forward(subject.given(other, ORDINARY)), other, ORDINARY)
        except (ForwardError, BackwardError, NotApplicableError):
            return None
        for name, now, then in zip(subject.names, pull.gradients, before, strict=True):
            if now is not None and then is not None and not _equal(now, then):
                now.copy_(then)
                return Effect(
                    "state_outside_ctx",
                    f"the gradient returned for {name} is overwritten by the next backward: it lies in memory that is "
                    "used again; look for a buffer outside of ctx, and return memory of its own",
                )
        return None

    def nothing(self) -> Pull:
        """A pull without gradients: none was made."""
        return Pull([], self.outputs, [], [])

    def after_backward(self, pull: Pull) -> Effect | None:
        """What backward wrote to."""
        for number, (now, then) in enumerate(zip(pull.cotangents, self._kept, strict=True)):
            if not _equal(now, then):
                return Effect(
                    "grad_output_mutated",
                    f"backward writes to the gradient that it is given (output {number}): whoever else gets that "
                    "gradient sees the change; look for an in-place operation on it, and work on a copy",
                    {"change": float((now - then).abs().max())},
                )
        for position, then in zip(self._subject.positions, self._values, strict=True):
            if not _equal(self._given[position].detach(), then):
                return Effect(
                    "saved_tensor_mutated",
                    f"backward writes to {self._name(position)}, which it saved: a second backward, and whoever uses "
                    "the input later, gets other numbers",
                )
        for number, (now, then) in enumerate(zip(pull.outputs, self._before, strict=True)):
            if not _equal(now.detach(), then):
                return Effect(
                    "saved_tensor_mutated",
                    f"backward writes to output {number} of the forward, which it saved: a second backward, and "
                    "whoever uses the output later, gets other numbers",
                )
        return None

    def _name(self, position: int) -> str:
        return self._subject.names[self._subject.positions.index(position)]


def _is_output_of_function(tensor: torch.Tensor) -> bool:
    """What mark_dirty makes of an input: the result of the custom Function, no longer a clone's."""
    return tensor.grad_fn is not None and "CloneBackward" not in type(tensor.grad_fn).__name__


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())
