"""Every operation that runs on the device, once more on the CPU with the very same inputs: which one differs first?

Errors can't spread from one operation to the next here, so that the first that is off is where a difference begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from gradproof_probe.devices.errors import HALF_UNIT, RATIO, half_unit
from gradproof_probe.devices.reduced import FORMATS, PRODUCTS, rounded
from gradproof_probe.equivalence.observation import relative_error
from gradproof_probe.gradients.attribution import Place, calling_line

EXPLAINED: Final = 3.0  # within this factor of the same product with its operands rounded
_REPEATS: Final = 3
# What computes nothing, and what gives memory that nobody has written to yet.
_MOVES: Final = frozenset(
    {
        *("_to_copy", "copy_", "clone", "detach", "alias", "set_", "resize_", "_local_scalar_dense"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    }
)


@dataclass(frozen=True, slots=True)
class Divergence:
    """`place` is the submitted line; of a backward operation that of its forward. `format` explains the error."""

    operation: str
    phase: str
    layer: str
    place: Place | None
    of_device: float
    of_cpu: float
    format: str | None

    def described(self) -> str:
        where = f" of {self.layer}" if self.layer else ""
        line = f", at line {self.place.line}" if self.place is not None else ""
        return f"{self.operation} in {self.phase}{where}{line}"


class Layers:
    """Which submodule is running, by hooks on the module that is called."""

    def __init__(self) -> None:
        self._running: list[str] = []

    @property
    def current(self) -> str:
        return self._running[-1] if self._running else ""

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """For `observe`: the call with hooks on every submodule."""
        if isinstance(call, torch.nn.Module):
            for name, module in call.named_modules():
                module.register_forward_pre_hook(self._entering(name))
                module.register_forward_hook(self._leaving, always_call=True)
        return call

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(_module: Any, _args: Any) -> None:
            self._running.append(name)

        return enter

    def _leaving(self, _module: Any, _args: Any, _output: Any) -> None:
        if self._running:
            self._running.pop()


class Operations(TorchDispatchMode):
    """While open, counts in `counted` the operations that run on the device.

    `checking` notes in `divergences` those that are off, and in `unchecked` those that the CPU can't repeat;
    `repeating` notes in `unstable` those that give other bits when they are run again.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(
        self, kind: str, source_root: Path, layers: Layers, *, repeating: bool = False, checking: bool = False
    ) -> None:
        super().__init__()
        self._repeating = repeating
        self._checking = checking
        self.divergences: list[Divergence] = []
        self.unstable: dict[str, Place | None] = {}
        self.unchecked: set[str] = set()
        self.counted = 0
        self._kind = kind
        self._root = source_root
        self._layers = layers
        self._made_by: dict[int, tuple[str, Place | None]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        flat = tree_flatten((args, named))[0]
        mine = [item for item in flat if isinstance(item, torch.Tensor) and item.device.type == self._kind]
        if not mine:
            return func(*args, **named)
        self.counted += 1
        if not (self._repeating or self._checking):
            return func(*args, **named)
        name = func.overloadpacket.__name__
        if name in _MOVES or _is_view(func) or torch.Tag.nondeterministic_seeded in func.tags:
            self._where()
            return func(*args, **named)
        kept = tree_map(_to_cpu, (args, named))
        copies = [tree_map(_copied, (args, named)) for _ in range(_REPEATS if self._repeating else 0)]
        result = func(*args, **named)
        where = self._where()
        if any(item.is_floating_point() or item.is_complex() for item in _tensors(result)):
            self._repeat(func, name, copies, result, where)
            if self._checking:
                self._compare(func, name, kept, result, where)
        return result

    def _where(self) -> tuple[str, str, Place | None]:
        """(phase, layer, submitted line) of the running operation."""
        node = torch._C._current_autograd_node()
        place = calling_line(self._root)
        if node is None:
            number = torch.autograd._get_sequence_nr() - 1  # that of the node which this operation's gradient gets
            self._made_by.setdefault(number, (self._layers.current, place))  # those that have none come after it
            return "forward", self._layers.current, place
        layer, made = self._made_by.get(node._sequence_nr(), ("", None))
        return "backward", layer, place or made

    def _repeat(
        self, func: Any, name: str, copies: list[Any], result: Any, where: tuple[str, str, Place | None]
    ) -> None:
        if name in self.unstable:
            return
        first = [item.cpu() for item in _tensors(result)]
        for args, named in copies:
            again = [item.cpu() for item in _tensors(func(*args, **named))]
            if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, again, strict=True)):
                self.unstable[name] = where[2]
                return

    def _compare(self, func: Any, name: str, kept: Any, result: Any, where: tuple[str, str, Place | None]) -> None:
        def repeated(values: Any) -> list[torch.Tensor]:
            args, named = tree_map(_copied, values)
            return _tensors(func(*args, **named))

        try:
            expected = repeated(tree_map(_wide, kept))
            plain = repeated(kept)
        except Exception:  # an operation that only the device has, or that takes no float64
            self.unchecked.add(name)
            return
        got = [item.cpu() for item in _tensors(result)]
        if [item.shape for item in got] != [item.shape for item in expected]:
            self.unchecked.add(name)
            return
        of_device, of_cpu = _worst(got, expected, plain), _worst(plain, expected, plain)
        if of_device <= RATIO * max(of_cpu, HALF_UNIT):
            return
        moved = max(_worst(repeated(_moved(kept, seed)), expected, plain) for seed in (3, 5))
        if of_device <= RATIO * max(of_cpu, moved, HALF_UNIT):
            return
        format_of = None
        if name in PRODUCTS:
            for format_name, rounding in FORMATS.items():
                simulated = _worst(repeated(rounded(kept, rounding)), expected, plain)
                if simulated and simulated / EXPLAINED <= of_device <= simulated * EXPLAINED:
                    format_of = format_name
                    break
        phase, layer, place = where
        self.divergences.append(Divergence(name, phase, layer, place, of_device, of_cpu, format_of))


def _is_view(func: Any) -> bool:
    return any(item.alias_info is not None and not item.alias_info.is_write for item in func._schema.returns)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for item in tree_flatten(value)[0] if isinstance(item, torch.Tensor)]


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(torch.float64)
    narrow = isinstance(value, torch.dtype) and value in (torch.float32, torch.float16, torch.bfloat16)
    return torch.float64 if narrow else value


def _moved(values: Any, seed: int) -> Any:
    """Every floating number moved by one unit in its last place, up or down at random."""
    generator = torch.Generator().manual_seed(seed)

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        sign = torch.randint(0, 2, value.shape, generator=generator).to(value.dtype) * 2 - 1
        return value * (1 + sign * torch.finfo(value.dtype).eps)

    return tree_map(move, values)


def _worst(values: list[torch.Tensor], expected: list[torch.Tensor], plain: list[torch.Tensor]) -> float:
    """The largest error of the floating results, in float32's: a result in half precision may be as coarse."""
    return max(
        (
            relative_error(value, wanted, 0.0) * HALF_UNIT / half_unit(own.dtype)
            for value, wanted, own in zip(values, expected, plain, strict=True)
            if wanted.is_floating_point()
        ),
        default=0.0,
    )
