"""Which collectives a rank calls, on how much, and at which submitted line.

Seen below the Python interface, so that it does not matter how a function was imported. This module must not judge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.gradients.attribution import Place, calling_line

# Names that nothing else has.
_OWN: Final = frozenset(
    {
        *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
        *("all_to_all", "all_to_all_single", "all_reduce_coalesced", "all_gather_object", "_all_gather_base"),
    }
)
# Names that tensors and tools have as well.
_SHARED: Final = frozenset({"reduce", "broadcast", "gather", "scatter"})
_HOMES: Final = frozenset({"get_world_size", "get_rank", "is_initialized", "ReduceOp", "distributed", "dist"})
_GATHERS: Final = ("gather", "scatter", "broadcast", "alltoall", "all_to_all")


def talks(names: Set[str]) -> bool:
    """Whether code that uses these names talks to other ranks."""
    return bool(names & _OWN) or bool(names & _SHARED and names & _HOMES)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One collective. `elements`: of the tensors that it was given."""

    name: str
    elements: int
    place: Place | None

    @property
    def gathers(self) -> bool:
        return any(word in self.name for word in _GATHERS)


class _Done:
    """What an asynchronous collective returns."""

    def wait(self) -> bool:
        return True


@contextmanager
def connected_alone(source_root: Path) -> Iterator[None]:
    """In a group of one, what gathers gives back the tensor itself, with its graph: what a whole batch would have."""

    def gather_list(tensor_list: list[torch.Tensor], tensor: torch.Tensor, *_: Any, **__: Any) -> _Done:
        tensor_list[0] = _kept(tensor)
        return _Done()

    def gather_into(output_tensor: torch.Tensor, input_tensor: torch.Tensor, *_: Any, **__: Any) -> _Done:
        output_tensor.copy_(input_tensor.reshape(output_tensor.shape))
        return _Done()

    def gather(tensor: torch.Tensor, gather_list: list[torch.Tensor] | None = None, *_: Any, **__: Any) -> _Done:
        if gather_list is not None:
            gather_list[0] = _kept(tensor)
        return _Done()

    by_name: dict[str, Any] = {"all_gather": gather_list, "all_gather_into_tensor": gather_into, "gather": gather}
    originals = {
        id(value): by_name[name] for name in by_name if (value := getattr(distributed, name, None)) is not None
    }
    places = (f"{source_root}/", f"{source_root.resolve()}/")
    homes = [distributed, distributed.distributed_c10d]
    homes += [m for m in list(sys.modules.values()) if str(getattr(m, "__file__", None) or "").startswith(places)]
    with ExitStack() as stack:
        for module in homes:
            for name, value in list(vars(module).items()):
                if id(value) in originals:
                    setattr(module, name, originals[id(value)])
                    stack.callback(setattr, module, name, value)
        yield


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if torch.is_grad_enabled() else tensor.detach().clone()


class Collectives(TorchDispatchMode):
    """Notes them while it is open."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self.seen: list[Spoken] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and "barrier" not in str(func):
            name = func.overloadpacket.__name__
            if "wait" not in name:
                self.seen.append(Spoken(name, _elements(args), calling_line(self._root)))
        return func(*args, **(kwargs or {}))

    def to_words(self) -> list[dict[str, Any]]:
        return [
            {
                "name": item.name,
                "elements": item.elements,
                "path": None if item.place is None else item.place.path,
                "line": None if item.place is None else item.place.line,
                "gathers": item.gathers,
            }
            for item in self.seen[:200]
        ]


def _elements(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    return sum(map(_elements, value)) if isinstance(value, list | tuple) else 0
