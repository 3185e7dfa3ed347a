"""Which calls draw random numbers, or write to their first argument, during one call of a target: with their lines.

This module only notes; whether a draw is meant is judged elsewhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from gradproof_probe.gradients.attribution import Place, relative

# Where the argument that switches them on stands: what torch calls `training` or `train`.
_SWITCHED: Final = {
    "dropout": 2,
    "dropout_": 2,
    "dropout1d": 2,
    "dropout2d": 2,
    "dropout3d": 2,
    "alpha_dropout": 2,
    "alpha_dropout_": 2,
    "feature_dropout": 2,
    "feature_dropout_": 2,
    "feature_alpha_dropout": 2,
    "feature_alpha_dropout_": 2,
    "rrelu": 3,
    "rrelu_": 3,
}
_ATTENTION: Final = "scaled_dot_product_attention"
_DRAWING: Final = frozenset(
    {
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "gumbel_softmax",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "uniform_",
    }
)


@dataclass(frozen=True, slots=True)
class Draw:
    """`function` and `owner` are the submitted function around the line and the class it belongs to.

    `layer` is torch's own module that made the call, if one did.
    """

    operation: str
    is_dropout: bool
    place: Place | None
    function: str
    owner: str
    layer: torch.nn.Module | None


@dataclass(frozen=True, slots=True)
class Write:
    """`by_option` where the call says `inplace=True`: its author knew."""

    operation: str
    by_option: bool
    place: Place | None


class Watch(TorchFunctionMode):
    """Notes draws, and writes by the memory that they go to."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self.draws: list[Draw] = []
        self.writes: dict[int, Write] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args and type(args[0]) in (torch.Tensor, torch.nn.Parameter) else None
        before = first._version if first is not None and not first.is_inference() else 0
        if _draws(name, args, given):
            self._note_draw(name)
        result = func(*args, **given)
        if first is not None and not first.is_inference() and first._version > before:
            frame, _ = _submitted(self._root)
            by_option = given.get("inplace") is True or _asked_for(self._root)
            self.writes.setdefault(first.untyped_storage().data_ptr(), Write(name, by_option, frame))
        return result

    def _note_draw(self, name: str) -> None:
        place, frame = _submitted(self._root)
        owner = frame.f_locals.get("self") if frame is not None else None
        self.draws.append(
            Draw(
                operation=name,
                is_dropout=name in _SWITCHED or name == _ATTENTION,
                place=place,
                function=frame.f_code.co_name if frame is not None else "",
                owner=type(owner).__name__ if owner is not None else "",
                layer=_layer(self._root),
            )
        )


def _draws(name: str, args: Any, kwargs: Any) -> bool:
    if name in _SWITCHED:
        position = _SWITCHED[name]
        default = not name.startswith("rrelu")
        on = kwargs.get("training", kwargs.get("train", args[position] if len(args) > position else default))
        rate = 1.0 if name.startswith("rrelu") else kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        return bool(on) and isinstance(rate, int | float) and rate > 0
    if name == _ATTENTION:
        rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        return isinstance(rate, int | float) and rate > 0
    return name in _DRAWING and kwargs.get("generator") is None


def _submitted(source_root: Path) -> tuple[Place | None, FrameType | None]:
    """The innermost submitted frame of the running stack."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = relative(frame.f_code.co_filename, source_root)
        if path is not None:
            return Place(path, frame.f_lineno), frame
        frame = frame.f_back
    return None, None


def _asked_for(source_root: Path) -> bool:
    """Whether a function or module of torch between the call and the submitted frame was given `inplace=True`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and relative(frame.f_code.co_filename, source_root) is None:
        if frame.f_locals.get("inplace") is True or getattr(frame.f_locals.get("self"), "inplace", False) is True:
            return True
        frame = frame.f_back
    return False


def _layer(source_root: Path) -> torch.nn.Module | None:
    """The module of torch between the call and the submitted frame."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if relative(frame.f_code.co_filename, source_root) is not None:
            return None
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and frame.f_code.co_name == "forward":
            return owner
        frame = frame.f_back
    return None
