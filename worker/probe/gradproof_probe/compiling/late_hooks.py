"""A method that hooks a part of the module, called after the module was compiled: does the hook ever run?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from gradproof_probe.compiling.running import backend_named, plain_function
from gradproof_probe.harness.recipe import Built, ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors, transform

_REGISTRATIONS: Final = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)
# What such methods are given: a number of a part, a factor, the name of a part, nothing at all.
_GUESSES: Final[tuple[Any, ...]] = (1, 0, 0.5, "0", None)


class LateHook:
    """GP511."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        owner, method = suspect.symbol.split(".")[-2:] if "." in suspect.symbol else ("", suspect.symbol)
        arguments = self._arguments(bench, owner, method)
        if arguments is None:
            return not_reached(f"{method} can't be called: what it takes is not known, or no hook ran after it")
        ran: list[str] = []
        try:
            built = bench.built()
            target = _owner(built, owner)
            torch._dynamo.reset()
            compiled = torch.compile(plain_function(built.instance or built.call), backend=backend_named("eager"))
            _step(compiled, built, bench.seed)
            with _counted(ran):
                getattr(target, method)(*arguments)
            _step(compiled, built, bench.seed)
        except Exception as error:
            return not_reached(f"compiled, it raises {describe_error(error, 200)}")
        finally:
            torch._dynamo.reset()
        shown = ", ".join(repr(argument) for argument in arguments)
        if ran:
            return held(f"after {method}({shown}) on a compiled module the hook runs", calls=len(ran))
        return confirmed(
            f"after the first compiled call, {method}({shown}) registers a hook that never runs; uncompiled it does",
            shown_by="late hook",
        )

    def _arguments(self, bench: Bench, owner: str, method: str) -> tuple[Any, ...] | None:
        """With which the method registers a hook that runs in plain execution."""
        for guess in _GUESSES:
            ran: list[str] = []
            try:
                built = bench.built()
                target = _owner(built, owner)
                if target is None or built.instance is None:
                    return None
                count = _required(getattr(target, method))
                if count > 2:
                    return None
                arguments = (guess,) * count
                with _counted(ran):
                    getattr(target, method)(*arguments)
                _step(built.instance, built, bench.seed)
            except ExpressionError:
                return None
            except Exception:  # another guess, or none, may suit it
                arguments, ran = (), []
            if ran:
                return arguments
        return None


def _owner(built: Built, name: str) -> torch.nn.Module | None:
    """The first module of the class, or of one that inherits from it."""
    if built.instance is None:
        return None
    return next((m for m in built.instance.modules() if name in {base.__name__ for base in type(m).__mro__}), None)


def _required(method: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    return sum(parameter.kind in kinds and parameter.default is inspect.Parameter.empty for parameter in parameters)


def _step(call: Callable[..., Any], built: Built, seed: int) -> None:
    """Forward, and backward where there is one."""

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.detach().clone()
        return value.requires_grad_().clone() if value.is_floating_point() else value

    reseed(seed)
    args = [transform(value, leaf) for value in built.args]
    outputs = call(*args, **{name: transform(value, leaf) for name, value in built.kwargs.items()})
    live = [value for _, value in tensors(outputs) if value.requires_grad]
    if live:
        torch.autograd.backward(live, [torch.ones_like(value) for value in live])


@contextmanager
def _counted(ran: list[str]) -> Iterator[None]:
    """Hooks that are registered in here note each time they run."""
    originals = {name: getattr(torch.nn.Module, name) for name in _REGISTRATIONS}

    def counting(name: str) -> Callable[..., Any]:
        def register(module: torch.nn.Module, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def counted(*given: Any, **named: Any) -> Any:
                ran.append(name)
                return hook(*given, **named)

            return originals[name](module, counted, *args, **kwargs)

        return register

    for name in originals:
        setattr(torch.nn.Module, name, counting(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.nn.Module, name, original)
