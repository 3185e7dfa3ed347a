"""One call of a target, with what it did beside returning a result noted. This module must not judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.bench import same
from gradproof_probe.training.random_draws import Watch
from gradproof_probe.training.surroundings import generators
from gradproof_probe.trees import tensors


@dataclass(frozen=True, slots=True)
class Call:
    """`written_inputs`: (path in [args, kwargs], tensor) of those that the call changed. `grad_left`: gradients are
    on afterwards where they were off, or the other way round. `returned`: the memory of the outputs."""

    outputs: list[torch.Tensor]
    watch: Watch
    generators: tuple[Any, ...]
    generators_before: tuple[Any, ...]
    written_inputs: list[tuple[str, torch.Tensor]]
    grad_left: bool
    returned: frozenset[int]


def watched_call(
    run: Callable[..., Any],
    given: tuple[list[Any], dict[str, Any]],
    source_root: Path,
    *,
    seed: int,
    gradients: bool,
) -> Call:
    """`given` are arguments of the call's own: it may write to them. Raises what the submitted code raises."""
    args, kwargs = given
    inputs = tensors([args, kwargs])
    before = [tensor.detach().clone() for _, tensor in inputs]
    watch = Watch(source_root)
    reseed(seed)
    generators_before = generators()
    with torch.set_grad_enabled(gradients), watch:
        result = run(*args, **kwargs)
        grad_left = torch.is_grad_enabled() != gradients
    outputs = [value for _, value in tensors(result)]
    return Call(
        outputs=[value.detach().clone() for value in outputs],
        watch=watch,
        generators=generators(),
        generators_before=generators_before,
        written_inputs=[(path, t) for (path, t), old in zip(inputs, before, strict=True) if not same(t, old)],
        grad_left=grad_left,
        returned=frozenset(memory(value) for value in outputs),
    )


def memory(tensor: torch.Tensor) -> int:
    """What tensors have in common that lie in the same memory."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, ValueError, NotImplementedError):  # lazy and sparse tensors have none
        return id(tensor)
