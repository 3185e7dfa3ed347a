"""Instances of one target built with different seeds, and calls of them that can be compared.

What a caller hands to the constructor is the same for all of them: only what the constructor itself draws differs.
Inputs are new copies for every call. This module must not judge.
"""

from __future__ import annotations

import ast
import inspect
import re
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.custom_functions import has_setup_context
from gradproof_probe.harness.constructors import parameters_of
from gradproof_probe.harness.recipe import ExpressionError, caller, construct, make_inputs, names_of
from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.bench import close
from gradproof_probe.training.submitted_source import is_contained
from gradproof_probe.trees import tensors, transform

_DRAWS: Final = re.compile(r"rand|normal|bernoulli|multinomial|empty|poisson")
_COLLECT: Final = "_gradproof_collect"
Change = Callable[[torch.Tensor], torch.Tensor]


class CalledFunction(torch.nn.Module):
    """A function in the place of a module: without state, and the same in both modes."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._function = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Instances:
    """Raises `ExpressionError` where the target or its inputs can't be built."""

    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._args, self._kwargs = make_inputs(context.resolved, context.recipe.inputs, seed=context.seed)
        self.source_root = context.source_root
        self.source = context.recipe.source
        self.is_module = context.resolved.target.kind == "module"

    def more(self) -> bool:
        return time.monotonic() < self._context.deadline

    def is_part(self) -> bool:
        """Whether another class of the source uses the target: its inputs come from the parts before it then."""
        return is_contained(self._context.resolved.target.qualname, self.source_root)

    def fresh(self, *, draw: int = 0, training: bool = False) -> torch.nn.Module:
        """`draw` is for what the constructor draws at random."""
        seed = self._context.seed + 1000 * draw
        instance = self._with_given_arguments(seed) if draw else None
        if instance is None:
            instance = construct(self._context.resolved, self._context.recipe.constructor, seed=seed)
        if instance is None:
            instance = CalledFunction(caller(self._context.resolved, None))
        return instance.train(training)

    def definitions(self, module: torch.nn.Module) -> list[Any]:
        """What the target is written in: the classes of a module without torch's own, or the function."""
        if not self.is_module:
            return [inspect.unwrap(self._context.resolved.value)]
        return [cls for cls in type(module).__mro__ if not cls.__module__.startswith("torch.")]

    def hands_over(self, attribute: Callable[[torch.nn.Module], Any]) -> bool:
        """Whether what an attribute holds are modules that the caller gave to the constructor."""
        given = self._given()
        if given is None:
            return False
        make, args, kwargs = given
        handed = {id(module) for module in modules_in([args, kwargs])}
        kept = modules_in(attribute(make(*args, **kwargs)))
        return bool(kept) and all(id(module) in handed for module in kept)

    def _with_given_arguments(self, seed: int) -> torch.nn.Module | None:
        """The constructor called with the very arguments of `draw` 0, where these are drawn at random."""
        given = self._given() if _DRAWS.search(self._context.recipe.constructor or "") else None
        if given is None:
            return None
        make, args, kwargs = given
        reseed(seed)
        try:
            instance = make(*args, **kwargs)
        except Exception as error:
            raise ExpressionError("constructor", error) from error
        return instance if isinstance(instance, torch.nn.Module) else None

    def _given(self) -> tuple[Callable[..., Any], list[Any], dict[str, Any]] | None:
        """The constructor and its arguments; None where the expression is no call."""
        try:
            tree = ast.parse(self._context.recipe.constructor or "", mode="eval")
        except SyntaxError:
            return None
        if not isinstance(tree.body, ast.Call):
            return None
        names = names_of(self._context.resolved)
        names[_COLLECT] = lambda *args, **kwargs: (list(args), kwargs)
        called = ast.unparse(tree.body.func)
        tree.body.func = ast.copy_location(ast.Name(_COLLECT, ast.Load()), tree.body.func)
        reseed(self._context.seed)
        try:
            args, kwargs = eval(compile(tree, "<constructor>", "eval"), names)
            return eval(called, names), args, kwargs
        except Exception as error:
            raise ExpressionError("constructor", error) from error

    def call(
        self, module: torch.nn.Module, *, draw: int = 0, change: Change | None = None, gradients: bool = False
    ) -> list[torch.Tensor]:
        """The outputs. `draw` is for what the call itself draws; `change` is applied to every tensor of the inputs.

        Gradients are on, since some modules differentiate inside; without `gradients` the outputs are cut off.
        """
        args, kwargs = self.arguments(change=change)
        reseed(self._context.seed + 100 + draw)
        found = [value for _, value in tensors(module(*args, **kwargs))]
        return found if gradients else [value.detach().clone() for value in found]

    def arguments(self, *, change: Change | None = None) -> tuple[list[Any], dict[str, Any]]:
        def copied(tensor: torch.Tensor) -> torch.Tensor:
            value = tensor.detach().clone()
            return value if change is None else change(value)

        return [transform(value, copied) for value in self._args], {
            name: transform(value, copied) for name, value in self._kwargs.items()
        }


def modules_in(value: Any) -> list[torch.nn.Module]:
    """The modules in a value, itself or in containers."""
    if isinstance(value, torch.nn.Module):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [module for item in items for module in modules_in(item)]


def input_names(target: Any) -> tuple[str, ...]:
    """The parameters of a module's forward, or of a function; none where they can't be read."""
    names = tuple(parameter.name for parameter in parameters_of(getattr(target, "forward", target)))
    if isinstance(target, type) and issubclass(target, torch.autograd.Function) and not has_setup_context(target):
        return names[1:]  # forward is given ctx, which `apply` makes
    return names


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Other data of the same kind: what starts anew with a first batch would give the same with the same batch."""
    return tensor * 1.7 + 0.3 if tensor.is_floating_point() else tensor


def outputs_differ(first: list[torch.Tensor], second: list[torch.Tensor], *, tolerance: float = 1e-4) -> str:
    """Which output isn't the same, in words; empty if all are, but for rounding."""
    if len(first) != len(second):
        return "the number of outputs"
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if not close(a, b, tolerance):
            return f"output {number}" if len(first) > 1 else "the output"
    return ""
