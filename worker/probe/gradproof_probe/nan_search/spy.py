"""Watches every operation of one call: what made the first value that is not finite, on which line, and out of what.

For each piece of memory it keeps whether it depends on the inputs, whether it was computed from them by more than
scaling and selecting, whether something in front was meant to protect it, and which births its infinities go back to.
This module must not judge: that a place was reached says nothing about who is to blame.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.nan_search.singularities import Singularity, singularity
from gradproof_probe.nan_search.subject import finite
from gradproof_probe.trees import tensors

_PROBE: Final = str(Path(__file__).parent.parent) + "/"
_HERE: Final = str(Path(__file__).parent) + "/"

# Operations that hand on what they are given, scaled, shifted, cut or put together, or that are zero where it is:
# 1 / (2 * sigma[0]) ** 2 is a division by an argument, as its caller can see; 1 / x.sum() is not.
_HANDING_ON: Final = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "slice", "select", "transpose", "permute", "expand", "clone", "_to_copy"),
        *("neg", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "index", "gather", "index_select"),
        *("cat", "stack", "alias", "detach", "add", "sub", "rsub", "contiguous", "t", "flip", "roll", "repeat"),
        *(
            "as_strided",
            "unfold",
            "lift_fresh",
            "diagonal",
            "copy",
            "constant_pad_nd",
            "view_as_real",
            "_reshape_alias",
        ),
        *(
            "mul",
            "div",
            "pow",
            "square",
            "abs",
            "sqrt",
            "select_scatter",
            "slice_scatter",
            "masked_select",
            "empty_like",
            "_conj",
            "real",
            "imag",
        ),
    }
)
_BOUNDING: Final = frozenset(
    {"clamp", "clamp_min", "clamp_max", "maximum", "minimum", "fmax", "fmin", "hardtanh", "threshold"}
)
_PROTECTING: Final = _BOUNDING | {"where", "masked_fill", "nan_to_num"}
# An addend of at most this much in front of a singular operation is an eps.
_LARGEST_EPSILON: Final = 1e-2
# What torch itself defines as NaN: the mean of nothing, the deviation of one value, a loss over ignored labels only.
_DEFINED: Final = frozenset({"nll_loss_forward", "nll_loss2d_forward", "std", "var", "var_mean", "std_mean"})
# Inside these functions too: what a fully masked row or a probability of 0 gives there is documented.
_DEFINED_FRAMES: Final = ("multi_head_attention_forward", "kl_div", "binary_cross_entropy")


@dataclass(slots=True)
class Origin:
    """What is known of a piece of memory."""

    slots: frozenset[str] = frozenset()  # the inputs it depends on
    varies: bool = False  # depends on an input or a parameter
    computed: bool = False
    protected: bool = False
    bounded: bool = False  # protected by a bound: a clamp, a maximum
    births: frozenset[int] = frozenset()  # of the infinities in it; -1: put there on purpose

    def joined(self, other: Origin) -> Origin:
        return Origin(
            self.slots | other.slots,
            self.varies or other.varies,
            self.computed or other.computed,
            self.protected or other.protected,
            self.bounded or other.bounded,
            self.births | other.births,
        )


INTENDED: Final = -1


@dataclass(slots=True)
class Event:
    """One operation. `operand` is that of a singular operation, with its graph; `born`: NaN or Inf began here."""

    order: int
    operation: str
    place: Place | None
    origin: Origin
    defined_by_torch: bool = False
    singularity: Singularity | None = None
    operand: torch.Tensor | None = None
    born: str | None = None
    outside: bool = False  # the operand lies outside the domain, not on its edge
    own_infinity: bool = False  # NaN out of an infinity that the code wrote down
    outputs: list[torch.Tensor] = field(default_factory=list)


class Spy(TorchDispatchMode):
    """`inputs` are named tensors that the call depends on; `everything` also keeps operations that are never singular
    (needed to find the operation of a node of the graph)."""

    def __init__(
        self, source_root: Path, inputs: Sequence[tuple[str, torch.Tensor]], *, everything: bool = False
    ) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.lines: set[tuple[str, int]] = set()
        self.operations: set[str] = set()
        self.constant: Event | None = None  # the first NaN that neither inputs nor parameters have a part in
        self._root = source_root
        self._everything = everything
        self._order = 0
        self._origins: dict[int, Origin] = {}
        self._alive: list[torch.Tensor] = []
        for name, tensor in inputs:
            self._alive.append(tensor)
            slots = frozenset({name}) if name else frozenset()
            self._origins[_memory(tensor)] = Origin(slots, varies=True)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the first operation imports the compiler (1 cpu s), to keep it out of a mode that is never compiled.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._order += 1
        try:
            self._note(func, args, kwargs or {}, result)
        except Exception:
            return result  # a tensor that can't be looked at (sparse, quantised) is handed on unseen
        return result

    def origin(self, tensor: torch.Tensor) -> Origin:
        return self._origins.get(_memory(tensor), Origin())

    def reliable(self, outputs: Sequence[torch.Tensor]) -> list[Event]:
        """The births that the infinities of these outputs go back to, the first one first; none if all are meant."""
        births: set[int] = set()
        for output in outputs:
            if not finite(output):
                births |= self.origin(output).births
        return [event for event in self.events if event.order in births]

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        made = [tensor for _, tensor in tensors(result)]
        given = [tensor for _, tensor in tensors([args, kwargs])]
        operation = func._schema.name.partition("::")[2]
        if operation.endswith("_") and not operation.endswith("__"):
            operation = operation[:-1]
        self.operations.add(operation)
        origins = [self.origin(tensor) for tensor in given]
        origin = _combined(operation, args, origins)
        found = singularity(operation, args) if origin.varies else None
        born = self._born(made, given, origins, origin, [*args, *kwargs.values()])
        if born == "constant":
            place, _ = self._place()
            self.constant = self.constant or Event(self._order, operation, place, _all(origins), born="nan")
        if born in ("nan", "inf"):
            origin.births = frozenset({self._order})
        for tensor in made:
            self._alive.append(tensor)
            key = _memory(tensor)
            known = self._origins.get(key)
            self._origins[key] = origin if known is None or known is origin else known.joined(origin)
        place, through = self._place()
        if place is not None:
            self.lines.add((place.path, place.line))
        if born in ("nan", "inf") or found is not None or self._everything:
            # Of what goes in: whether the operand was computed is another question than whether the result is.
            before = self.origin(args[found.argument]) if found is not None else _all(origins)
            event = Event(self._order, operation, place, before, born=born if born in ("nan", "inf") else None)
            event.own_infinity = born == "nan" and (
                any(isinstance(value, float) and value - value != 0 for value in [*args, *kwargs.values()])
                or any(_numeric(tensor) and not finite(tensor) for tensor in given)
            )
            event.defined_by_torch = through or operation in _DEFINED or (operation == "mean" and given[0].numel() == 0)
            if found is not None:
                event.singularity, event.operand = found, args[found.argument]
                event.outside = event.born == "nan" and bool((found.domain(event.operand) < 0).any())
            event.outputs = made
            self.events.append(event)

    def _born(
        self,
        made: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor],
        origins: Sequence[Origin],
        origin: Origin,
        arguments: Sequence[Any],
    ) -> str | None:
        """`nan` or `inf` if one began here, `constant` for a NaN of constants alone, `meant` for an infinity that the
        code wrote down; sets inherited births.
        """
        bad = [tensor for tensor in made if _numeric(tensor) and not finite(tensor)]
        if not bad:
            origin.births = frozenset()
            return None
        spoiled = [o for tensor, o in zip(given, origins, strict=True) if _numeric(tensor) and not finite(tensor)]
        inherited: frozenset[int] = frozenset().union(*(o.births or frozenset({INTENDED}) for o in spoiled))
        has_nan = any(bool(tensor.isnan().any()) for tensor in bad)
        nan_given = any(bool(tensor.isnan().any()) for tensor in given if _numeric(tensor))
        written = any(isinstance(value, float) and value - value != 0 for value in arguments)
        if inherited - {INTENDED}:
            origin.births = inherited
            return None
        if spoiled or written or not origin.varies:
            if has_nan and not nan_given and origin.varies:
                return "nan"
            origin.births = frozenset({INTENDED})
            alone = has_nan and not nan_given and not written and bool(given) and not origin.varies
            return "constant" if alone else "meant"
        return "nan" if has_nan else "inf"

    def _place(self) -> tuple[Place | None, bool]:
        """The innermost submitted line under the probe's own call, and whether torch decides what happens there."""
        defined = False
        for frame in _frames():
            filename = frame.f_code.co_filename
            if filename.startswith("<"):
                continue
            path = relative(filename, self._root)
            if path is not None:
                return Place(path, frame.f_lineno), defined
            if "/torch/distributions/" in filename or frame.f_code.co_name in _DEFINED_FRAMES:
                defined = True
        return None, defined


def _frames() -> Iterator[Any]:
    """From the operation outwards, up to where the probe called the submitted code."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back  # type: ignore[assignment]
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PROBE):
            return
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def _all(origins: Sequence[Origin]) -> Origin:
    joined = Origin()
    for origin in origins:
        joined = joined.joined(origin)
    return joined


def _combined(operation: str, args: tuple[Any, ...], origins: Sequence[Origin]) -> Origin:
    joined = _all(origins)
    computed = joined.computed
    if operation not in _HANDING_ON and operation not in _PROTECTING:
        computed = computed or joined.varies
    protected = joined.protected or operation in _PROTECTING
    if operation in ("add", "sub") and len(args) > 1:
        protected = protected or any(
            isinstance(value, float) and 0 < abs(value) <= _LARGEST_EPSILON for value in args[:2]
        )
    return Origin(joined.slots, joined.varies, computed, protected, joined.bounded or operation in _BOUNDING)


def _numeric(tensor: torch.Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided


def _memory(tensor: torch.Tensor) -> int:
    """The address of the memory, which views share; the tensor's own where it has none."""
    address = tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
    return address or id(tensor)
