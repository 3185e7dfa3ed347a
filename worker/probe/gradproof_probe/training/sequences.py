"""Does a position of a sequence see what it must not: later ones where the code is causal, padding where it is masked?

The hidden positions are changed, and the outputs of the others must stay as they are. Only what the code itself says is
tested: a flag or class name that speaks of causality, a triangular mask, an argument for lengths or padding. This
module must not know how a result is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.seeding import reseed
from gradproof_probe.training.dependence import Comparison, DivergedError, Recording, Way, differs
from gradproof_probe.training.instances import Instances
from gradproof_probe.trees import tensors, transform

_SHORTEST: Final = 3
_CAUSAL_FLAG: Final = re.compile(r"(is_|use_)?(causal|autoregressive)(_mask)?", re.IGNORECASE)
_CAUSAL_NAME: Final = re.compile(r"Causal|Autoregress|^GPT|GPT\d?$")
# Not what has an option for it that is off by default, nor what makes a mask.
_CAUSAL_FUNCTION: Final = re.compile(r"causal|autoregress|(^|_)masked_self_att", re.IGNORECASE)
_CAUSAL_MASK: Final = re.compile(r"causal_?mask|^tril$|future_?mask|subsequent", re.IGNORECASE)
_LENGTHS: Final = re.compile(r"(\w+_)?(len|lens|lengths?|seq_?lens?|seqlens)", re.IGNORECASE)
_PADDING: Final = re.compile(r"pad\w*mask|mask\w*pad|attention_mask|(^|_)padding$", re.IGNORECASE)
_ATTENDING: Final = frozenset({"softmax", "scaled_dot_product_attention", "log_softmax"})
# What mixes padding in although a mask or lengths are given. A convolution does too, at the border, and is not blamed.
_BLAMED: Final = _ATTENDING | {
    "mean",
    "sum",
    "max",
    "amax",
    "std",
    "var",
    "gru",
    "lstm",
    "rnn_tanh",
    "flip",
    "logsumexp",
}


@dataclass(frozen=True, slots=True)
class _Hidden:
    """Positions from `begin` on, along `axis` of the tensors `members`, of one `sample` (of all if None)."""

    members: tuple[int, ...]
    axis: int
    length: int
    begin: int
    sample: int | None = None


_Arguments = tuple[list[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Hiding:
    """One way in which an argument may hide positions: the arguments with them hidden, and with none."""

    arguments: _Arguments
    hidden: _Hidden
    nothing_hidden: _Arguments


class Sequences:
    """Raises nothing for a fault of the submitted code: what can't be run is not judged."""

    def __init__(self, instances: Instances, *, seed: int, input_names: tuple[str, ...]) -> None:
        self._instances = instances
        self._seed = seed
        self._names = input_names
        self._root = instances.source_root
        self._before: list[torch.Tensor] = []
        self.evidence: dict[str, Any] = {}

    def run(self) -> Answer | None:
        for judge in (self._causality, self._padding):
            try:
                found = judge()
            except Exception as error:
                self.evidence[judge.__name__.strip("_")] = f"raises {type(error).__name__}"
                continue
            if found is not None:
                return found
        return None

    # --- causality ---

    def _causality(self) -> Answer | None:
        module = self._instances.fresh()
        args, kwargs = self._instances.arguments()
        is_module = self._instances.is_module
        said = _says_causal(module) if is_module else self._asked_for(module, args, kwargs)
        found = [tensor for _, tensor in tensors([args, kwargs])]
        sequences = [number for number, tensor in enumerate(found) if tensor.ndim >= 2 and tensor.dtype != torch.bool]
        if not sequences or (is_module and len(sequences) > 1):
            return None
        first = sequences[0]
        # Queries, keys and values of one shape are one sequence, and hidden together; what a function is given
        # beside is no sequence, such as weights.
        sequences = [number for number in sequences if found[number].shape == found[first].shape]
        recording, outputs = self._record(args, kwargs)
        strong = bool(said)
        if not said:
            if not is_module or not (recording.triangles or recording.causal):
                return None
            said = "a triangular mask is made"
        ways: list[tuple[_Hidden, Way]] = []
        apart: set[int] = set()
        floating = found[first].is_floating_point()
        for axis in range(1, found[first].ndim if floating else 2):
            length = found[first].shape[axis]
            alike = [o for o in outputs if o.ndim > axis and o.shape[axis] == length]
            if length < _SHORTEST or not alike:
                continue
            hidden = _Hidden(tuple(sequences), axis, length, length // 2)
            way = self._compare(recording, outputs, args, kwargs, hidden)
            if way is None:
                return None
            if not _leaks(way, hidden, pooled=False):
                if _reaches(way, hidden) and not self._reaches_later(outputs, args, kwargs, hidden):
                    apart.add(axis)  # such as heads, which know nothing of each other
                elif _reaches(way, hidden):
                    self.evidence["causal"] = f"{said}: later positions do not reach earlier ones"
                    return None
                continue
            ways.append((hidden, way))
        # The axis of time is not known for sure: what it may be has to leak along all of it.
        tensor = found[first]
        convolves = any(re.match(r"conv\d|conv_tr", item.name) for item in recording.records)
        axes = (
            {1} if not floating else {2} if tensor.ndim == 3 and convolves else set(range(1, max(tensor.ndim - 1, 2)))
        )
        axes -= apart
        if not (ways and axes) or (floating and tensor.ndim < 3) or not axes <= {hidden.axis for hidden, _ in ways}:
            return None
        hidden, way = next(item for item in ways if item[0].axis in axes)
        operation = next(iter(way.astray), None)
        text = (
            f"{said}, but when positions from {hidden.begin} on change, outputs of earlier ones change too"
            f"{'' if operation is None else f', from {operation.name} on'}"
        )
        attends = operation is not None and bool({operation.name, *operation.through} & _ATTENDING)
        place = None if operation is None else operation.place
        if attends and len(set(recording.triangles)) == 1:
            place = recording.triangles[0]
        numbers = {"length": hidden.length, "changed_from": hidden.begin, "axis": hidden.axis, "says": said}
        if not strong:
            return Answer("inconclusive", "future_is_seen", text, place, numbers)
        return Answer("fail", "future_is_seen", text, place, numbers)

    def _reaches_later(
        self, outputs: list[torch.Tensor], args: list[Any], kwargs: dict[str, Any], hidden: _Hidden
    ) -> bool:
        """Whether a change of the other positions, the earlier ones, reaches the hidden ones."""
        before = [tensor for _, tensor in tensors([args, kwargs])]
        for number in hidden.members:
            earlier = before[number].clone()
            changed = _changed(before[number], replace(hidden, begin=0))
            part = (hidden.axis, 0, hidden.begin)
            earlier.narrow(*part).copy_(changed.narrow(*part))
            args, kwargs = _replaced(args, kwargs, before[number], earlier)
        now = self._call(args, kwargs, nullcontext())
        return any(
            (changed := differs(a, b)) is not None
            and bool(changed.narrow(hidden.axis, hidden.begin, hidden.length - hidden.begin).any())
            for a, b in zip(now, outputs, strict=False)
            if a.ndim > hidden.axis and a.shape[hidden.axis] == hidden.length
        )

    def _asked_for(self, function: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> str:
        """What says that a function is causal: an argument that is True, or its name where none is False."""
        given = [*zip(self._names, args, strict=False), *kwargs.items()]
        flags = [(name, value) for name, value in given if isinstance(value, bool) and _CAUSAL_FLAG.fullmatch(name)]
        if flags:
            return f"it is given {flags[0][0]}=True" if all(value for _, value in flags) else ""
        named = next((item.__name__ for item in self._instances.definitions(function)), "")
        return f"the function is called {named}" if _CAUSAL_FUNCTION.search(named) else ""

    # --- padding ---

    def _padding(self) -> Answer | None:
        for name, masks, certain in self._hiding():
            found = self._padded(name, masks, certain=certain)
            if found is not None:
                return found
        return None

    def _padded(self, name: str, ways_to_hide: list[_Hiding], *, certain: bool) -> Answer | None:
        leaking: list[tuple[_Hidden, Way]] = []
        tried = 0
        for hiding in ways_to_hide:
            hidden, (args, kwargs) = hiding.hidden, hiding.arguments
            recording, outputs = self._record(args, kwargs)
            _, unhidden = self._record(*hiding.nothing_hidden)
            way = self._compare(recording, outputs, args, kwargs, hidden)
            if way is None:
                return None
            if any(bool(o.isnan().any()) for o in outputs):
                continue  # this way round nothing at all is seen
            tried += 1
            if not any(o.ndim and o.shape[0] > (hidden.sample or 0) for o in outputs):
                return None
            if not _leaks(way, hidden, pooled=True):
                self.evidence["padding"] = f"what {name} hides does not reach the outputs of the rest"
                return None
            # A mask that makes no difference hides nothing this way round.
            shown = Way(outputs=list(zip(outputs, unhidden, strict=False)))
            if len(outputs) == len(unhidden) and _leaks(shown, hidden, pooled=True):
                leaking.append((hidden, way))
        if not leaking or len(leaking) != tried:
            return None
        # The way round that is meant is the one in which what is hidden gets furthest.
        hidden, way = max(leaking, key=lambda item: item[1].astray[0].number if item[1].astray else 0)
        operation = next(iter(way.astray), None)
        text = (
            f"{name} hides positions from {hidden.begin} on, but what stands there changes the outputs of the rest"
            f"{'' if operation is None else f', from {operation.name} on'}: they depend on how far a batch is padded"
        )
        place = None if operation is None else operation.place
        numbers = {"argument": name, "length": hidden.length, "hidden_from": hidden.begin}
        blamed = operation is not None and bool({operation.name, *operation.through} & _BLAMED)
        if certain and blamed and place is not None:
            return Answer("fail", "padding_is_seen", text, place, numbers)
        return Answer("inconclusive", "padding_is_seen", text, place, numbers)

    def _hiding(self) -> Iterator[tuple[str, list[_Hiding], bool]]:
        """(the argument, the ways round in which it may hide the end of the first sample, whether its name is sure)."""
        args, kwargs = self._instances.arguments()
        found = [tensor for _, tensor in tensors([args, kwargs])]
        sequences = [n for n, t in enumerate(found) if t.ndim >= 2 and t.dtype != torch.bool]
        named = [(self._names[n] if n < len(self._names) else "", value) for n, value in enumerate(args)]
        for name, value in [*named, *kwargs.items()]:
            if not isinstance(value, torch.Tensor):
                continue
            others = [
                n for n in sequences if found[n] is not value and value.ndim and found[n].shape[0] == value.shape[0]
            ]
            if not others:
                continue
            first = others[0]
            length = found[first].shape[1]
            if length < _SHORTEST or not (found[first].ndim > 2 or not found[first].is_floating_point()):
                continue
            hidden = _Hidden((first,), 1, length, length // 2, sample=0)
            if value.ndim == 1 and _LENGTHS.fullmatch(name) and not value.is_floating_point():
                short = torch.full_like(value, length)
                full = short.clone()
                short[0] = hidden.begin
                yield name, [_way(args, kwargs, value, short, full, hidden)], True
            elif tuple(value.shape) == (found[first].shape[0], length) and ("mask" in name or _PADDING.search(name)):
                ways = []
                for shown in (True, False):
                    full = torch.full_like(value, shown)
                    part = full.clone()
                    part[0, hidden.begin :] = not shown
                    ways.append(_way(args, kwargs, value, part, full, hidden))
                yield name, ways, _PADDING.search(name) is not None

    # --- running ---

    def _record(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[Recording, list[torch.Tensor]]:
        recording = Recording(self._root)
        return recording, self._call(args, kwargs, recording)

    def _call(self, args: list[Any], kwargs: dict[str, Any], mode: Any) -> list[torch.Tensor]:
        module = self._instances.fresh()
        copied = [transform(value, torch.Tensor.clone) for value in args]
        named = {name: transform(value, torch.Tensor.clone) for name, value in kwargs.items()}
        if isinstance(mode, Comparison):
            now = [tensor for _, tensor in tensors([copied, named])]
            mode.begin(list(zip(now, self._before, strict=True)))
        reseed(self._seed + 100)
        with torch.no_grad(), mode:
            result = module(*copied, **named)
        return [value.detach().clone() for _, value in tensors(result)]

    def _compare(
        self,
        recording: Recording,
        outputs: list[torch.Tensor],
        args: list[Any],
        kwargs: dict[str, Any],
        hidden: _Hidden,
    ) -> Way | None:
        self._before = [tensor for _, tensor in tensors([args, kwargs])]
        new_args, new_kwargs = args, kwargs
        for number in hidden.members:
            old = self._before[number]
            new_args, new_kwargs = _replaced(new_args, new_kwargs, old, _changed(old, hidden))
        comparison = Comparison(recording, self._root, lambda mask: _is_within(mask, hidden))
        try:
            now = self._call(new_args, new_kwargs, comparison)
        except DivergedError:
            return None
        if [o.shape for o in now] != [o.shape for o in outputs]:
            return None
        comparison.way.outputs = list(zip(now, outputs, strict=True))
        return comparison.way


def _way(
    args: list[Any],
    kwargs: dict[str, Any],
    given: torch.Tensor,
    part: torch.Tensor,
    full: torch.Tensor,
    hidden: _Hidden,
) -> _Hiding:
    return _Hiding(_replaced(args, kwargs, given, part), hidden, _replaced(args, kwargs, given, full))


def _replaced(
    args: list[Any], kwargs: dict[str, Any], old: torch.Tensor, new: torch.Tensor
) -> tuple[list[Any], dict[str, Any]]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        return new if tensor is old else tensor

    return [transform(value, change) for value in args], {name: transform(v, change) for name, v in kwargs.items()}


def _changed(tensor: torch.Tensor, hidden: _Hidden) -> torch.Tensor:
    changed = tensor.clone()
    part = changed if hidden.sample is None else changed.narrow(0, hidden.sample, 1)
    part = part.narrow(hidden.axis, hidden.begin, hidden.length - hidden.begin)
    if tensor.is_floating_point() or tensor.is_complex():
        generator = torch.Generator().manual_seed(3)
        part.mul_(1.3 + torch.rand(part.shape, generator=generator, dtype=torch.float64).to(part))
        return changed
    values = tensor.unique()
    # Numbers that occur: the next one in order, so that every hidden position holds another.
    part.copy_(values[(torch.searchsorted(values, part.contiguous()) + 1) % len(values)])
    return changed


def _is_within(changed: torch.Tensor, hidden: _Hidden) -> bool:
    """Whether along some axis nothing before the hidden positions changed, or among two nothing before both of them.

    The latter are attention scores, as long as nothing is masked: of every query to every key.
    """
    for axis, length in enumerate(changed.shape):
        if length >= hidden.length and not bool(changed.narrow(axis, 0, hidden.begin).any()):
            return True
        if length > hidden.length and length % hidden.length == 0:
            folded = changed.unflatten(axis, (-1, hidden.length))
            if not bool(folded.narrow(axis + 1, 0, hidden.begin).any()):
                return True
            folded = changed.unflatten(axis, (hidden.length, -1))
            if not bool(folded.narrow(axis, 0, hidden.begin).any()):
                return True
    long = [axis for axis, length in enumerate(changed.shape) if length == hidden.length]
    return any(
        not bool(changed.narrow(first, 0, hidden.begin).narrow(second, 0, hidden.begin).any())
        for first, second in pairwise(long)
    )


def _leaks(way: Way, hidden: _Hidden, *, pooled: bool) -> bool:
    """Whether an output changes where it should not: before the hidden positions, or all of it where it has none."""
    for now, then in way.outputs:
        changed = differs(now, then)
        if changed is None or not now.ndim or not (now.is_floating_point() or now.is_complex()):
            continue
        if hidden.sample is not None and now.shape[0] <= hidden.sample:
            continue
        if now.ndim > hidden.axis and now.shape[hidden.axis] == hidden.length:
            if bool(changed.narrow(hidden.axis, 0, hidden.begin).any()):
                return True
        elif pooled:
            return True
    return False


def _reaches(way: Way, hidden: _Hidden) -> bool:
    return any(
        now.ndim > hidden.axis and now.shape[hidden.axis] == hidden.length and differs(now, then) is not None
        for now, then in way.outputs
    )


def _says_causal(module: torch.nn.Module) -> str:
    flags = [
        (name, value)
        for item in module.modules()
        for name, value in vars(item).items()
        if isinstance(value, bool) and _CAUSAL_FLAG.fullmatch(name)
    ]
    if not all(value for _, value in flags):
        return ""
    for cls in type(module).__mro__:
        if not cls.__module__.startswith("torch.") and _CAUSAL_NAME.search(cls.__name__):
            return f"the class is called {cls.__name__}"
    masks = [name.rpartition(".")[2] for name, _ in module.named_buffers()]
    mask = next((name for name in masks if _CAUSAL_MASK.search(name)), "")
    if mask:
        return f"the module has a buffer {mask!r}"
    return f"the module has {flags[0][0]}=True" if flags else ""
