"""Runs the target in one mode, plain or compiled with one backend, and notes everything that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.equivalence.observation import Mode, Observation, Wrap, observe

CALLS: Final = 2  # a counter or a cache that compile bakes in shows at the second call
# What AOTAutograd is given is what Dynamo captured: where it agrees with plain eager execution, Dynamo does too, and
# tracing is nearly all that a stage costs (2 s of 2.5 for a transformer's layer).
WHOLE: Final = "aot_eager"
CAPTURED: Final = "eager"

Backend = Callable[..., Any]


@dataclass(slots=True)
class Counter:
    """Hands graphs to a backend and counts them."""

    backend: Any
    graphs: int = 0
    operations: int = 0

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        self.operations += sum(
            1 for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")
        )
        return self.backend(graph, inputs, **options)


def backend_named(name: str) -> Backend:
    from torch._dynamo.backends.registry import lookup_backend

    found: Backend = lookup_backend(name)
    return found


def observed(context: CheckContext, mode: Mode, *, calls: int = CALLS, **options: Any) -> Observation:
    """Built anew, with the context's seed."""
    return observe(context.resolved, context.recipe, seed=context.seed, mode=mode, calls=calls, **options)


def observed_compiled(
    context: CheckContext,
    mode: Mode,
    backend: Backend | str,
    *,
    after_call: Callable[[], None] = lambda: None,
    around: Wrap = lambda call: call,
    **options: Any,
) -> Observation:
    """The same under torch.compile. Dynamo has forgotten what it compiled before; `around` is not compiled."""
    torch._dynamo.reset()

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        compiled = around(torch.compile(plain_function(call), backend=backend))

        def run(*args: Any, **kwargs: Any) -> Any:
            output = compiled(*args, **kwargs)
            after_call()
            return output

        return run

    return observed(context, mode, wrap=wrap, **options)


def plain_function(call: Any) -> Any:
    """Dynamo traces modules and Python functions; a Function's `apply` is a built-in method."""
    if isinstance(call, torch.nn.Module) or hasattr(call, "__code__"):
        return call

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return run
