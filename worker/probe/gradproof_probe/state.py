"""A module's state, put back before every evaluation: buffers, plain attributes and the lists and dicts they hold.

Running statistics, step counters and cached tensors would make each evaluation another function than the one before.
"""

from __future__ import annotations

import collections
from typing import Any, Final

import torch

_REGISTRIES: Final = ("_parameters", "_buffers", "_modules")
_CONTAINERS: Final = (list, dict, set, collections.deque)


class ModuleState:
    """Remembers at construction; `restore()` puts back values and identities, in place."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._modules = [] if module is None else list(module.modules())
        self._attributes = [
            {name: value for name, value in vars(item).items() if name not in _REGISTRIES} for item in self._modules
        ]
        self._contents = [
            {name: _copy(value) for name, value in kept.items() if isinstance(value, _CONTAINERS)}
            for kept in self._attributes
        ]
        self._buffers = [
            {name: (value, None if value is None else value.detach().clone()) for name, value in item._buffers.items()}
            for item in self._modules
        ]
        self._tensors = [
            {name: value.detach().clone() for name, value in kept.items() if _plain_tensor(value)}
            for kept in self._attributes
        ]

    def restore(self) -> None:
        for item, kept, contents, buffers, plain in zip(
            self._modules, self._attributes, self._contents, self._buffers, self._tensors, strict=True
        ):
            own = vars(item)
            for name in [name for name in own if name not in _REGISTRIES and name not in kept]:
                del own[name]
            own.update(kept)
            for name, content in contents.items():
                _refill(own[name], content)
            for name in [name for name in item._buffers if name not in buffers]:
                del item._buffers[name]
            for name, (buffer, value) in buffers.items():
                item._buffers[name] = buffer
                _put_back(buffer, value)
            for name, value in plain.items():
                _put_back(own[name], value)


def _plain_tensor(value: Any) -> bool:
    """Only leaves without gradient: what carries a graph (or is a parameter) isn't ours to write to."""
    return isinstance(value, torch.Tensor) and not value.requires_grad and value.grad_fn is None


def _put_back(tensor: torch.Tensor | None, value: torch.Tensor | None) -> None:
    if tensor is None or value is None:
        return
    if tensor.requires_grad or tensor.shape != value.shape or tensor.dtype != value.dtype:
        return
    # Written only if changed: a write bumps the version, and a graph that is still alive may have saved the buffer.
    if not torch.equal(tensor, value):
        with torch.no_grad():
            tensor.copy_(value)


def _copy(value: Any) -> Any:
    return value.copy()


def _refill(container: Any, content: Any) -> None:
    if container == content if isinstance(container, set) else False:
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)
