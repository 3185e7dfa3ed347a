"""Tensors that lie elsewhere than the call's inputs, mostly on the CPU: where each was made, and where they meet.

What CUDA allows is no meeting: tensors without dimensions are promoted, CPU indices are copied. This module must not
judge: a meeting can be meant that way.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from gradproof_probe.gradients.attribution import Place, calling_line

MISMATCH: Final = re.compile(r"on the same device|[Dd]evice [Mm]ismatch|different device")
_FROM_DATA: Final = frozenset({"as_tensor", "tensor", "asarray"})
_TO_NUMPY: Final = frozenset({"numpy", "__array__"})
_MOVES: Final = frozenset({"to", "cpu", "cuda"})
_MOST: Final = 50

Made = Literal["kept", "factory", "moved", "numpy"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where such a tensor comes from. `kept` was there before the call: `tensor` is the one that was.

    `names_device`: the call that made it was given a device, or moved it to one.
    """

    made: Made
    operation: str
    place: Place | None
    names_device: bool = False
    tensor: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Meeting:
    """An operation that the device refuses. `numpy` wants the values of a tensor that is not in the CPU's memory,
    `generator` draws on the device from a generator of the CPU, `devices` mixes them."""

    kind: Literal["devices", "numpy", "generator"]
    operation: str
    place: Place
    origin: Origin | None
    shape: tuple[int, ...] = ()
    backward: bool = False


class StrayTensors(TorchFunctionMode):
    """While open, notes the origin of every tensor that Python code makes elsewhere, and each meeting in `meetings`.

    After a meeting the call goes on with what met moved to the device, so that those to come are seen as well.
    `generators` are the caller's own.
    """

    def __init__(self, device: str, source_root: Path, generators: Collection[torch.Generator] = ()) -> None:
        super().__init__()
        self.meetings: list[Meeting] = []
        self._device = torch.device(device)
        self._root = source_root
        self._generators = {id(item) for item in generators}
        self._origins: dict[int, Origin] = {}
        self._alive: list[Any] = []  # an id is another's as soon as its tensor is gone

    def __enter__(self) -> Any:
        self._from_numpy = torch.from_numpy  # torch tells no mode of it
        torch.from_numpy = self._taken_from_numpy
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.from_numpy = self._from_numpy

    def _taken_from_numpy(self, array: Any) -> torch.Tensor:
        tensor: torch.Tensor = self._from_numpy(array)
        self._origins[id(tensor)] = Origin("numpy", "from_numpy", calling_line(self._root))
        self._alive.append(tensor)
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        flat = tree_flatten((args, named))[0]
        given = [item for item in flat if isinstance(item, torch.Tensor)]
        here = [item for item in given if self._is_here(item)]
        elsewhere = [item for item in given if not self._is_here(item)]
        if here and name in _TO_NUMPY:
            self._note("numpy", name, None, here[0])
            args, named = tree_map(self._to_cpu, (args, named))
            return func(*args, **named)
        if here and name == "tolist":
            return args[0].cpu().tolist()  # the simulated device has no other way to its values
        if name in _FROM_DATA and self._is_wanted(named.get("device")):
            return func(*args, **{**named, "device": "cpu"}).to(self._device)  # torch fails to make it there at once
        if name == "cuda" and given and self._device.type == "cuda":
            # A build without CUDA refuses this, but not what it stands for.
            func, args, named = torch.Tensor.to, (args[0], _asked(args, named)), {}
        try:
            result = func(*args, **named)
        except Exception as error:
            met = [item for item in elsewhere if item.dim() > 0]
            if not (here and met and MISMATCH.search(str(error))) or len(self.meetings) >= _MOST:
                raise
            if not self._note("devices", name, self._origin(met[0]), met[0]):
                raise
            args, named = tree_map(self._to_device, (args, named))
            return func(*args, **named)
        self._made(name, flat, here, elsewhere, result, named)
        return result

    def _is_wanted(self, device: Any) -> bool:
        return device is not None and torch.device(device).type == self._device.type

    def _is_here(self, tensor: torch.Tensor) -> bool:
        if tensor.device.type != self._device.type:
            return False
        return self._device.index is None or tensor.device.index == self._device.index

    def _note(self, kind: Any, operation: str, origin: Origin | None, tensor: torch.Tensor) -> bool:
        place = calling_line(self._root)
        if place is None:
            return False
        backward = torch._C._current_autograd_node() is not None
        self.meetings.append(Meeting(kind, operation, place, origin, tuple(tensor.shape), backward))
        return True

    def _origin(self, tensor: torch.Tensor) -> Origin:
        return self._origins.get(id(tensor)) or Origin("kept", "", None, tensor=tensor)

    def _made(
        self,
        name: str,
        flat: list[Any],
        here: list[torch.Tensor],
        elsewhere: list[torch.Tensor],
        result: Any,
        named: dict[str, Any],
    ) -> None:
        results = [item for item in tree_flatten(result)[0] if isinstance(item, torch.Tensor)]
        if any(self._is_here(item) for item in results):
            strange = [g for g in flat if isinstance(g, torch.Generator) and g.device.type == "cpu"]
            if any(id(g) not in self._generators for g in strange):
                self._note("generator", name, None, results[0])
        for item in results:
            if self._is_here(item) or id(item) in self._origins:
                continue
            if elsewhere:
                if any(item is one for one in elsewhere):
                    continue  # written in place: it comes from where it came
                origin = self._origin(elsewhere[0])
                if name in _MOVES and item.device != elsewhere[0].device:
                    origin = Origin("moved", name, calling_line(self._root), names_device=True)
            else:
                origin = self._new(name, flat, moved=bool(here), names_device=named.get("device") is not None)
            self._origins[id(item)] = origin
            self._alive.append(item)

    def _new(self, name: str, flat: list[Any], *, moved: bool, names_device: bool) -> Origin:
        place = calling_line(self._root)
        if moved:
            return Origin("moved", name, place, names_device=True)
        arrays = any(type(item).__module__ == "numpy" for item in flat)
        if name in _FROM_DATA and arrays and not names_device:
            return Origin("numpy", name, place)
        return Origin("factory", name, place, names_device=names_device or name in _MOVES)

    def _to_device(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not self._is_here(value):
            return value.to(self._device)
        return value

    def _to_cpu(self, value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value


def _asked(args: Any, named: dict[str, Any]) -> str:
    """The device that `cuda()` is asked for; alone it is the current one."""
    device = args[1] if len(args) > 1 else named.get("device")
    if device is None:
        return "cuda"
    return f"cuda:{device}" if isinstance(device, int) else str(device)
