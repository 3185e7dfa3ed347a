"""Optimizers of torch without the decorators that keep its compiler out, and import it for that: three seconds.

What they compute is the same. Optimizers of the submitted code stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from gradproof_probe.gradients.replacing import replaced


def below(kind: type) -> list[type]:
    """All classes derived from it."""
    found: dict[type, None] = {}
    pending: list[type] = kind.__subclasses__()
    while pending:
        item = pending.pop()
        if item not in found:
            found[item] = None
            pending += item.__subclasses__()
    return list(found)


def plain_step(kind: type) -> Callable[..., Any]:
    """The `step` in the body of an optimizer's class."""
    step: Callable[..., Any] = vars(kind)["step"]
    return torch.no_grad()(inspect.unwrap(step)) if kind.__module__.startswith("torch.optim") else step


def plain_methods(stack: ExitStack) -> None:
    """The methods that all optimizers have, until the stack is closed."""
    for name, value in list(vars(torch.optim.Optimizer).items()):
        if inspect.isfunction(value) and inspect.unwrap(value) is not value:
            stack.enter_context(replaced(torch.optim.Optimizer, name, inspect.unwrap(value)))


@contextmanager
def plain_optimizers() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in below(torch.optim.Optimizer):
            if "step" in vars(kind):
                stack.enter_context(replaced(kind, "step", plain_step(kind)))
        plain_methods(stack)
        yield
