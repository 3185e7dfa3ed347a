"""Does anything but torch's own formulas run in the backward pass of a call?

Torch's formulas take every incoming gradient alike, whatever its memory and size: asking them again tells nothing about
the submitted code. This must not judge anything; it says where asking is worth its time.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from gradproof_probe.gradients.experiment import Experiment, differentiable
from gradproof_probe.gradients.graph_nodes import nodes_behind

_HOOKS: Final = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


class _Hooks(torch.overrides.TorchFunctionMode):
    """Whether a hook was put on a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in _HOOKS
        return func(*args, **(kwargs or {}))


def runs_own_code(experiment: Experiment) -> bool:
    """A custom Function (of Python or C++, hooks on modules and custom operators are such too), or a hook on a tensor.

    Raises `ForwardError`.
    """
    hooks = _Hooks()
    with hooks:
        outputs = differentiable(experiment.run())
    return hooks.seen or _hooked(experiment) or any(map(_is_own, nodes_behind(output.value for output in outputs)))


def _hooked(experiment: Experiment) -> bool:
    """Whether a hook hangs on a leaf since it was built."""
    return any(bool(variable.leaf._backward_hooks) for variable in experiment.variables)


def _is_own(node: Any) -> bool:
    return isinstance(node, BackwardCFunction) or "CppNode" in node.name()
