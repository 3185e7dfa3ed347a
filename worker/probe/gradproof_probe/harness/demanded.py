"""Arguments as the source, the layers, the annotations and the documentation demand them, with small distinct sizes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from gradproof_probe.harness import names
from gradproof_probe.harness.arguments import Argument, Arguments, Values
from gradproof_probe.harness.axes import Axis, Form, Sizes
from gradproof_probe.harness.demand import demands
from gradproof_probe.harness.docstrings import Word, annotated_axes, form_of_axes, words
from gradproof_probe.harness.graphs import as_graph
from gradproof_probe.harness.labelled import as_labelled_rows
from gradproof_probe.harness.structured import TENSOR, annotations_of, by_annotation, function_of_arity
from gradproof_probe.harness.values import Parameter

# Where a rank isn't known: the usual sizes by it.
USUAL: Final[dict[int, tuple[int, ...]]] = {
    0: (),
    1: (8,),
    2: (3, 8),
    3: (2, 5, 8),
    4: (2, 3, 6, 8),
    5: (2, 3, 4, 6, 8),
    6: (2, 3, 2, 4, 6, 8),
}
SIDES: Final = (None, 16, 32, 64)


@dataclass(slots=True)
class Slot:
    """One argument before its sizes are chosen."""

    argument: Argument
    form: Form = field(default_factory=Form)
    items: list[Slot] = field(default_factory=list)
    use: Parameter | None = None
    said: bool = False
    """Whether anything but the name says what it is."""

    demanded_rank: int | None = None
    demanded_sizes: dict[int, int] = field(default_factory=dict)
    """What the code alone demands, before words are taken over."""

    @property
    def is_tensor(self) -> bool:
        return self.argument.is_tensor

    @property
    def is_open(self) -> bool:
        """A tensor of whose shape nothing is known."""
        return self.is_tensor and self.form.rank is None and not self.form.axes and not self.form.least_rank


@dataclass(slots=True)
class Reading:
    """What was read of a call: its slots, and whether the code itself said something of each."""

    slots: list[Slot]
    by_source: bool = False
    by_words: bool = False

    @property
    def found_by(self) -> str:
        return "source" if self.by_source else "docstring_shape" if self.by_words else "names"


def read_call(
    function: Callable[..., Any],
    owner: type | None,
    instance: torch.nn.Module | None,
    parameters: Sequence[inspect.Parameter],
    scope: dict[str, Any],
    *,
    is_function_class: bool,
    saved: frozenset[str] = frozenset(),
) -> Reading:
    """`saved`: names that a Function keeps for backward, which are tensors whatever they are called."""
    listed = [parameter.name for parameter in parameters]
    uses = demands(function, instance, listed, skip_first=is_function_class)
    described = words(function, owner, listed)
    hints = annotations_of(function)
    symbols: dict[str, Axis] = {}
    slots: list[Slot] = []
    by_words = False
    for parameter in parameters:
        use = uses.get(parameter.name) or Parameter(parameter.name)
        word = described.get(parameter.name, Word())
        slot = _slot(parameter, use, word, hints, scope, is_function_class=is_function_class, saved=saved)
        slots.append(slot)
        slot.demanded_rank = slot.form.rank
        known = ((index, axis.known()) for index, axis in slot.form.axes.items())
        slot.demanded_sizes = {index: size for index, size in known if size is not None}
        axes, dtype = annotated_axes(hints.get(parameter.name, parameter.annotation))
        for written in ((axes,), (word.axes, *word.or_axes)):
            allowed = [said for said in written if said is not None and slot.is_tensor]
            # The first that the code allows.
            by_words = any(_agree(slot.form, form_of_axes(said, symbols)) for said in allowed) or by_words
        if slot.is_tensor and dtype and slot.argument.kind == "float":
            slot.argument = replace(slot.argument, kind=dtype)  # type: ignore[arg-type]
    as_graph(slots)
    as_labelled_rows(slots, _names_of_all(function))
    by_source = any(slot.use is not None and slot.use.says_something for slot in slots)
    return Reading(slots, by_source, by_words)


def _names_of_all(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _agree(form: Form, said: Form) -> bool:
    """Take over what is written, as far as the code doesn't demand otherwise."""
    if said.rank is None or not form.set_rank(said.rank):
        return False
    for index in range(said.rank):
        form.axis(index).join(said.axis(index))
    return True


def _slot(
    parameter: inspect.Parameter,
    use: Parameter,
    word: Word,
    hints: dict[str, Any],
    scope: dict[str, Any],
    *,
    is_function_class: bool,
    saved: frozenset[str],
) -> Slot:
    name = parameter.name
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    annotation = hints.get(name, parameter.annotation)
    made = by_annotation(name, annotation, use, scope)
    if is_function_class and parameter.default is not parameter.empty and made != TENSOR and not use.tensor:
        made = Argument(name, "literal", text=repr(parameter.default))
    if made is None and name in saved:
        made = TENSOR
    if made is None:
        made = _by_use(name, use, word)
    if isinstance(made, Argument):
        made = replace(made, keyword=keyword)
        return _structure(made, use) if made.is_structure else Slot(made, use=use, said=not made.guessed)
    return Slot(
        replace(tensor_argument(name, annotation, use, word), keyword=keyword), form=use.form, use=use, said=True
    )


def _structure(argument: Argument, use: Parameter) -> Slot:
    inner = []
    for index, item in enumerate(argument.items):
        if argument.kind in ("list", "tuple"):
            part = use.item(index if index in use.items or argument.kind == "tuple" else 0)
        else:
            part = use.keys.get(item.name) or use.attributes.get(item.name) or Parameter(item.name)
        if item.is_structure:
            inner.append(_structure(item, part))
        elif item.is_tensor:
            shaped = tensor_argument(item.name, inspect.Parameter.empty, part, Word())
            if item.values != "normal":
                shaped = replace(shaped, values=item.values)
            inner.append(Slot(shaped, form=part.form, use=part))
        else:
            inner.append(Slot(item, use=part))
    return Slot(argument, items=inner, use=use, said=True)


def _by_use(name: str, use: Parameter, word: Word) -> Argument | str:
    """What the code does with it decides, then what is written, then its name."""
    if use.keys and not use.tensor:
        return Argument(name, "dict", items=tuple(Argument(key) for key in use.keys))
    if use.called and not use.tensor:
        return Argument(name, "literal", text=function_of_arity(use.arity))
    plain = {key: part for key, part in use.attributes.items() if not key.startswith("__")}
    if plain and not use.tensor:
        return Argument(name, "object", items=tuple(_part(key, part) for key, part in plain.items()))
    if not use.tensor and use.iterated and not use.number and not use.count and max(use.items, default=0) == 0:
        # Two: what is averaged or compared over one item is nothing.
        return Argument(name, "list", items=(Argument(f"{name}[0]"), Argument(f"{name}[1]")))
    if not use.tensor and (use.count or use.items):
        count = use.count or max(use.items) + 1
        return Argument(name, "tuple", items=tuple(Argument(f"{name}[{index}]") for index in range(min(count, 8))))
    if use.texts and not use.tensor:
        return Argument(name, "literal", text=repr(use.texts[0]))
    if len({*use.numbers}) > 1 and not use.tensor:
        return Argument(name, "literal", text=repr(use.numbers[0]))  # a mode that has a number
    if use.tensor or word.axes is not None:
        return TENSOR
    by_name = names.scalar_input(name)
    if use.boolean and not use.number:
        return Argument(name, "literal", text="False")
    if use.whole and not use.tensor:
        whole = by_name if by_name is not None and by_name.lstrip("-").isdigit() else "3"
        return Argument(name, "literal", text=whole)
    if word.scalar:
        return Argument(name, "literal", text=_written(word.scalar, by_name))
    return Argument(name, "literal", text=by_name, guessed=True) if by_name is not None else TENSOR


def _written(kind: str, by_name: str | None) -> str:
    usual = {"float": "0.7", "int": "2", "bool": "False", "str": "'mean'"}[kind]
    if by_name is None:
        return usual
    fits = {
        "int": by_name.lstrip("-").isdigit(),
        "float": re.fullmatch(r"-?[\d.]+(e-?\d+)?", by_name) is not None,
        "bool": by_name in ("True", "False"),
        "str": by_name.startswith("'"),
    }
    return by_name if fits[kind] else usual


def _part(name: str, part: Parameter) -> Argument:
    if part.called and not part.tensor:
        return Argument(name, "literal", text=function_of_arity(part.arity))
    inner = {key: deeper for key, deeper in part.attributes.items() if not key.startswith("__")}
    if inner and not part.tensor:
        return Argument(name, "object", items=tuple(_part(key, deeper) for key, deeper in inner.items()))
    by_name = names.scalar_input(name)
    if not part.tensor and by_name is not None:
        return Argument(name, "literal", text=by_name, guessed=True)
    return Argument(name)


def tensor_argument(name: str, annotation: Any, use: Parameter, word: Word) -> Argument:
    """The kind of its elements: from the annotation, the use, what is written, the name; in this order."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    kind = "float"
    if re.search(r"LongTensor|IntTensor|\bInt\d*\[|int64", text):
        kind = "int"
    elif re.search(r"BoolTensor|\bBool\[", text):
        kind = "bool"
    elif use.form.dtype in ("int", "index", "complex", "bool", "float"):
        kind = "int" if use.form.dtype == "index" else use.form.dtype
    elif word.dtype:
        kind = word.dtype
    elif names.BOOLEAN_INPUT.search(name):
        kind = "bool"
    elif names.INTEGER_INPUT.search(name) and not names.LOSS_TARGET.search(name):
        kind = "int"
    values: Values = word.values or names.values_by_name(name)  # type: ignore[assignment]
    return Argument(name, kind, high=use.form.high or 4, values=values)  # type: ignore[arg-type]


def candidates(reading: Reading, *, is_module: bool) -> Iterator[tuple[Arguments, str]]:
    """(arguments, what their shapes come from): each rank that isn't known in its usual order, then larger images."""
    flat = list(_flat(reading.slots))
    tensors = [slot for slot in flat if slot.is_tensor]
    unknown = [slot for slot in tensors if slot.form.rank is None]
    ranks = _ranks(tensors, unknown, is_module=is_module) if unknown else [0]
    # Images are tried larger where there is one.
    wide = any((slot.form.rank or 0) >= 4 for slot in tensors) or 4 in ranks[:1]
    for side in SIDES if wide else SIDES[:1]:
        for rank in ranks[:2] if side is not None else ranks:
            made = _with_sizes(reading.slots, rank, Sizes(side))
            why = "shapes from the source" if reading.by_source else "shapes as written"
            if not reading.by_source and not reading.by_words:
                why = "a usual shape"
            yield made, why


def _flat(slots: Sequence[Slot]) -> Iterator[Slot]:
    for slot in slots:
        if slot.argument.is_structure:
            yield from _flat(slot.items)
        else:
            yield slot


def _ranks(tensors: Sequence[Slot], unknown: Sequence[Slot], *, is_module: bool) -> list[int]:
    first = tensors[0]
    if first.form.rank is not None:
        return list(dict.fromkeys([first.form.rank, *(1, 2, 3, 4)]))[:3]
    least = max((slot.form.least_rank for slot in unknown), default=0)
    front = [index for index in first.form.axes if index >= 0]
    back = [index for index in first.form.axes if index < 0]
    if first.argument.kind == "int":
        order = [2, 1, 3]
    elif names.IMAGE_INPUT.search(first.argument.name) or (1 in front and not back):
        order = [4, 3, 2, 5]
    elif names.VIDEO_INPUT.search(first.argument.name):
        order = [5, 4, 3]
    elif back or is_module or names.ATTENTION_INPUT.search(first.argument.name):
        order = [3, 2, 4, 1, 5]
    else:
        order = [2, 3, 4, 1, 5]
    return [rank for rank in order if rank >= least] or [least]


def _with_sizes(slots: Sequence[Slot], rank: int, sizes: Sizes) -> Arguments:
    """Known ranks first, so that what they fix is fixed before the open ones take the rest."""
    shared = {index: Axis() for index in range(-6, 0)}
    flat = [slot for slot in _flat(slots) if slot.is_tensor]
    reference = next((slot for slot in flat if slot.form.rank is not None and slot.argument.kind == "float"), None)
    shapes: dict[int, tuple[int, ...]] = {}
    masks = [slot for slot in flat[1:] if slot.form.rank is not None and slot.argument.kind == "bool"]
    for slot in sorted(flat, key=lambda slot: (slot in masks, slot.form.rank is None)):
        if slot in masks:
            shapes[id(slot)] = _of_mask(slot, flat, shapes[id(flat[0])], sizes)
        elif slot.form.rank is not None:
            shapes[id(slot)] = _sized(slot.form, slot.form.rank, sizes, {})
        elif slot.argument.kind == "float" and reference is not None and slot.is_open:
            shapes[id(slot)] = shapes[id(reference)]
        elif (other := _of_same_vocabulary(slot, flat, shapes)) is not None:
            shapes[id(slot)] = shapes[id(other)]
        else:
            own = max(rank, slot.form.least_rank)
            if slot.argument.kind in ("int", "bool") and slot is not flat[0] and slot.is_open:
                own = max(1, min(2, own - 1))
                leading = {index - own: shared[index - rank] for index in range(own)} if rank >= own else {}
                shapes[id(slot)] = _sized(slot.form, own, sizes, leading, usual=USUAL.get(rank, ())[:own])
            else:
                shapes[id(slot)] = _sized(slot.form, own, sizes, shared)
    return tuple(_made(slot, shapes) for slot in slots)


def _of_mask(slot: Slot, flat: Sequence[Slot], first: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
    """What is masked is the first tensor: axes of which nothing else is known are as long as its leading ones."""
    rank = slot.form.rank or 0
    elsewhere = {id(axis.root()) for other in flat if other is not slot for axis in other.form.axes.values()}
    shape = list(_sized(slot.form, rank, sizes, {}))
    for index in range(min(rank, len(first)) if rank <= len(first) else 0):
        root = slot.form.axis(index).root()
        if root.size is None and not root.parts and id(root) not in elsewhere:
            shape[index] = first[index]
    return tuple(shape)


def _of_same_vocabulary(slot: Slot, flat: Sequence[Slot], sized: Container[int]) -> Slot | None:
    """Another tensor of as many tokens: what is embedded in the same table has the same axes, a batch of sequences."""
    if slot.argument.kind != "int" or not slot.is_open or slot.form.high is None:
        return None
    return next((one for one in flat if one.form.high == slot.form.high and id(one) in sized), None)


def _sized(
    form: Form, rank: int, sizes: Sizes, shared: dict[int, Axis], usual: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    expected = USUAL.get(rank, (2,) * rank) if usual is None else usual
    shape = []
    for index in range(rank):
        axis = form.axes.get(index) or form.axes.get(index - rank) or shared.get(index - rank)
        if axis is None:
            axis = form.axes.setdefault(index, Axis()) if form.rank is not None else Axis()
        shape.append(sizes.of(axis, expected[index] if index < len(expected) else 2))
    return tuple(shape)


def _made(slot: Slot, shapes: dict[int, tuple[int, ...]]) -> Argument:
    if slot.argument.is_structure:
        return replace(slot.argument, items=tuple(_made(item, shapes) for item in slot.items))
    return slot.argument.with_shape(shapes[id(slot)]) if slot.is_tensor else slot.argument
