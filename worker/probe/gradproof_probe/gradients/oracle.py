"""The gradient that a custom Function ought to return: autograd through the Function's own forward.

Exact to rounding for any size and dtype, at the price of one forward and one backward (0.7 ms where differences take a
forward per coordinate; checks facts 0.5). It is no truth by itself: a forward that iterates to a fixed point, or cuts
the graph, has another derivative than autograd through its steps. Whoever uses it has finite differences as judge.
This module must not judge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from gradproof_probe.gradients.replacing import replaced
from gradproof_probe.trees import transform


class StandInContext:
    """What forward is given instead of ctx: takes everything, keeps what forward may read back."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[torch.Tensor, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *values: Any) -> None:
        self.saved_tensors = values

    def save_for_forward(self, *values: Any) -> None:
        """Nothing: no forward-mode derivative is asked of it."""

    def mark_dirty(self, *values: Any) -> None:
        """Nothing: autograd follows writes by itself."""

    def mark_shared_storage(self, *pairs: Any) -> None:
        """Nothing, as in torch."""

    def mark_non_differentiable(self, *values: torch.Tensor) -> None:
        self.non_differentiable = values

    def set_materialize_grads(self, value: bool) -> None:  # noqa: FBT001 - torch's own signature
        self.materialize_grads = value


def separate_context(function: Any) -> bool:
    """forward(x) with setup_context(ctx, inputs, output), instead of forward(ctx, x)."""
    setup = getattr(function, "setup_context", None)
    return setup is not None and setup is not torch.autograd.Function.setup_context


def transparent(function: Any) -> Callable[..., Any]:
    """A callable like `function.apply` whose gradient is autograd's own; call it with grad enabled."""
    if separate_context(function):

        def separate(*args: Any) -> Any:
            context = _context(args)
            output = function.forward(*args)
            function.setup_context(context, args, output)
            return _cut(output, context)

        return separate

    def joined(*args: Any) -> Any:
        context = _context(args)
        return _cut(function.forward(context, *args), context)

    return joined


def _context(args: tuple[Any, ...]) -> StandInContext:
    return StandInContext(tuple(isinstance(item, torch.Tensor) and item.requires_grad for item in args))


def _cut(output: Any, context: StandInContext) -> Any:
    """Outputs that forward declares non-differentiable have no gradient here either."""
    if not context.non_differentiable:
        return output
    marked = {id(item) for item in context.non_differentiable}
    return transform(output, lambda tensor: tensor.detach() if id(tensor) in marked else tensor)


class BypassedError(Exception):
    """A custom Function was reached through an `apply` that was bound before: it can't be seen through."""


@contextmanager
def seen_through(functions: list[type]) -> Iterator[None]:
    """While open, `apply` of the given Functions runs their forward under autograd instead of their backward.

    For callables that go through custom Functions. Only `apply` looked up while it is open is replaced. One that was
    bound before still calls the forward, but without grad: that raises `BypassedError`, for the gradient would be that
    of the very backward which is in doubt.
    """
    with ExitStack() as stack:
        for function in functions:
            stack.enter_context(replaced(function, "forward", staticmethod(_with_grad_alone(function.forward))))  # type: ignore[attr-defined]
            stack.enter_context(replaced(function, "apply", staticmethod(transparent(function))))
        yield


def _with_grad_alone(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            raise BypassedError(f"{forward.__qualname__} is reached without grad: through an apply bound before")
        return forward(*args, **kwargs)

    return guarded
