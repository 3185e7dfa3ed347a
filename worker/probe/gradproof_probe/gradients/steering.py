"""From clues to situations: inputs on both sides of every predicate, the most telling and cheapest first.

A predicate says where a backward does something else; it doesn't say which side is wrong, or whether either is. Both
sides are tried, the side that ordinary inputs are not on first. This module only describes situations. A situation
that a Function doesn't take (its forward raises) costs one forward, so guesses are cheap; but each list is short,
because every situation is paid for by every Function that is right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from gradproof_probe.gradients.reading.clue import Clue, Clues, Operand
from gradproof_probe.gradients.reading.meanings import after, before, words
from gradproof_probe.gradients.resizing import Resize, Shape, affordable, beyond, elements, exactly, resized_shapes
from gradproof_probe.gradients.situations import ORDINARY, Cotangent, Layout, Situation, Values

MOST_NUMBERS: Final = 12  # situations from constants without a known role
MOST_TOGETHER: Final = 8  # combinations of ways for predicates that have to hold together
MOST_CANDIDATES: Final = 3  # tensors whose shape an incoming gradient may have
_CHEAP: Final = 20_000  # elements; situations with more come last


def steered(clues: Clues, inputs: Sequence[Any], argument_names: Sequence[str]) -> list[Situation]:
    """Situations that the clues suggest for these inputs, each with why. Nothing without clues."""
    surroundings = _Surroundings.of(inputs, argument_names)
    ways = [_said(clue, surroundings) for clue in clues.found]
    found = list(itertools.chain.from_iterable(ways))
    found += _between(clues.found, surroundings)
    for clue, own in zip(clues.found, ways, strict=True):
        found += _together(clue, own, clues.found, ways)
    found = [item for item in found if _fits(item, surroundings)]
    found.sort(key=lambda item: _cost(item, surroundings))
    if clues.numbers:
        found += _roleless(clues.numbers, surroundings)
    return [item for item in dict.fromkeys(found) if item != ORDINARY]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What is known of the call: its arguments and how they are called."""

    inputs: tuple[Any, ...]
    places: dict[str, int]
    ordinals: dict[int, int]  # from the place of a differentiable input to its number among those
    tensors: tuple[int, ...]  # the places of all tensors
    shapes: tuple[Shape, ...]

    @staticmethod
    def of(inputs: Sequence[Any], names: Sequence[str]) -> _Surroundings:
        places = {name: place for place, name in enumerate(names)}
        places.update({f"#{place}": place for place in range(len(inputs))})
        tensors = [place for place, item in enumerate(inputs) if isinstance(item, torch.Tensor)]
        differentiable = [place for place in tensors if _differentiable(inputs[place])]
        return _Surroundings(
            tuple(inputs),
            places,
            {place: ordinal for ordinal, place in enumerate(differentiable)},
            tuple(tensors),
            tuple(tuple(inputs[place].shape) for place in tensors),
        )

    def place(self, clue: Clue) -> int | None:
        found = self.places.get(clue.argument)
        return found if found is not None and found < len(self.inputs) else None

    def ordinal(self, clue: Clue) -> int | None:
        """The number of the differentiable input that the clue is on; None for any."""
        place = self.place(clue)
        return None if place is None else self.ordinals.get(place)

    def candidates(self, clue: Clue) -> list[int]:
        """Which of `shapes` the clue may be on, the likeliest first.

        What is no input, an incoming gradient or something computed, has the shape of one of them more often than not.
        """
        place = self.place(clue)
        own = [self.tensors.index(place)] if place in self.tensors else []
        if own and not clue.derived:
            return own
        by_size = sorted(
            range(len(self.shapes)), key=lambda item: (-len(self.shapes[item]), -math.prod(self.shapes[item]))
        )
        distinct = {self.shapes[item]: item for item in reversed([*own, *by_size])}
        return [*dict.fromkeys([*own, *sorted(distinct.values(), key=by_size.index)])][:MOST_CANDIDATES]


def _differentiable(item: torch.Tensor) -> bool:
    return item.layout == torch.strided and (item.is_floating_point() or item.is_complex())


def _fits(situation: Situation, surroundings: _Surroundings) -> bool:
    if not situation.resize:
        return True
    return all(new > 0 for _, new in situation.resize) and affordable(surroundings.shapes, situation.resize)


def _cost(situation: Situation, surroundings: _Surroundings) -> int:
    """A rank: small inputs before large ones. Within a rank the order of the clues stays."""
    if not situation.resize:
        return 0
    size = elements(resized_shapes(surroundings.shapes, situation.resize))
    return 0 if size <= _CHEAP else size


def _said(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    because = _because(clue)
    return [replace(item, because=because) for item in _ways(clue, surroundings)]


def _because(clue: Clue) -> str:
    text = clue.text or clue.detail or clue.quantity
    where = f" (line {clue.line})" if clue.line else ""
    return f"{clue.function or 'a hint'} asks {text}{where}"


def _between(clues: Sequence[Clue], surroundings: _Surroundings) -> list[Situation]:
    """Between two numbers on one line: `(x > 100) & (x < 100.5)` is met neither around the one nor the other."""
    lines: dict[tuple[str, int, str, str], list[Clue]] = {}
    for clue in clues:
        if clue.quantity in {"value", "cotangent"} and clue.number is not None and not clue.detail:
            lines.setdefault((clue.path, clue.line, clue.quantity, clue.argument), []).append(clue)
    found: list[Situation] = []
    for own in lines.values():
        numbers = sorted({clue.number for clue in own if clue.number is not None})
        for low, high in itertools.pairwise(numbers):
            middle = replace(own[0], number=(low + high) / 2, relation=">", derived=False)
            found += _said(middle, surroundings)[:1]
    return found


def _together(
    clue: Clue, own: list[Situation], clues: Sequence[Clue], ways: Sequence[list[Situation]]
) -> list[Situation]:
    """For a predicate that is only reached where others hold."""
    if not clue.within:
        return []
    outer = [ways[place][:2] for place in clue.within if ways[place] and clues[place] is not clue]
    if not outer:
        return []
    found: list[Situation] = []
    for parts in itertools.islice(itertools.product(own[:2], *outer), MOST_TOGETHER):
        merged = _merged(parts)
        if merged is not None:
            found.append(merged)
    return found


def _merged(parts: Iterable[Situation]) -> Situation | None:
    """All of them at once; None where two ask for different things of one field."""
    changes: dict[str, Any] = {}
    reasons: list[str] = []
    for part in parts:
        for name in part.changed():
            value = getattr(part, name)
            if name in changes and changes[name] != value:
                joined = _joined(name, changes[name], value)
                if joined is None:
                    return None
                value = joined
            changes[name] = value
        reasons.append(part.because)
    return replace(ORDINARY, because=" and ".join(dict.fromkeys(reasons)), **changes)


def _joined(name: str, one: Any, other: Any) -> Any:
    if name in {"resize", "arguments"}:
        lengths = dict(one)
        if any(lengths.get(key, value) != value for key, value in other):
            return None
        return tuple({**lengths, **dict(other)}.items())
    if name == "flags":
        return tuple(dict.fromkeys((*one, *other)))
    if name == "cotangent":
        kind = one if one.kind != "random" else other
        layout = one.layout if one.layout != "contiguous" else other.layout
        conflict = one.kind != "random" and other.kind not in ("random", one.kind)
        return None if conflict else replace(kind, layout=layout)
    return None


# Numbers without a role


def _roleless(numbers: Sequence[float], surroundings: _Surroundings) -> list[Situation]:
    """As values, then as sizes, then as numbers of elements."""
    small = [number for number in numbers[:MOST_NUMBERS] if abs(number) <= 1e4]
    whole = [int(number) for number in numbers[:MOST_NUMBERS] if number > 1 and number == int(number)]
    found = [_of_number(number, values=Values("around", number)) for number in small]
    for more in (1, 0):
        for number in whole:
            found += [_of_number(number, resize=item) for item in _longer(surroundings, number + more)[:1]]
    if surroundings.shapes:
        largest = max(range(len(surroundings.shapes)), key=lambda place: math.prod(surroundings.shapes[place]))
        for number in whole:
            found += [_of_number(number, resize=way) for way in beyond(surroundings.shapes, largest, number + 1)[:1]]
    return [item for item in found if _fits(item, surroundings)][:MOST_NUMBERS]


def _of_number(number: float, **changes: Any) -> Situation:
    return Situation(because=f"the number {number:g} stands in the code", **changes)


def _longer(surroundings: _Surroundings, size: int) -> list[Resize]:
    """Every dimension of the largest tensor in turn, the last first."""
    largest = max(surroundings.shapes, key=lambda shape: (math.prod(shape), len(shape)), default=())
    return [((length, size),) for length in dict.fromkeys(reversed(largest)) if length != size and length > 0]


# Ways: situations on both sides of one predicate


def _ways(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    act = _WAYS.get(clue.quantity)
    return act(_resolved(clue, surroundings), surroundings) if act is not None else []


def _resolved(clue: Clue, surroundings: _Surroundings) -> Clue:
    """With the number that an argument holds, where the quantity is compared with that argument."""
    operand = clue.constant
    if clue.detail not in {"argument", "same tensor"} or not isinstance(operand, Operand):
        return clue
    place = surroundings.places.get(operand.argument)
    value = surroundings.inputs[place] if place is not None and place < len(surroundings.inputs) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return clue
    number = after(operand.steps, value)
    if number is None:
        return clue
    numbers = before(operand.own_steps, number)
    return replace(clue, number=numbers[0] if numbers else number, detail="", constant=None)


def _numel(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    return _in_turn([_numel_of(clue, surroundings, which) for which in surroundings.candidates(clue)])


def _in_turn(ways: Sequence[Sequence[Situation]]) -> list[Situation]:
    """All of the first candidate, two of the others; the first of each before the second of any."""
    shorter = [list(item) if place == 0 else list(item[:2]) for place, item in enumerate(ways)]
    return [item for row in itertools.zip_longest(*shorter) for item in row if item is not None]


def _numel_of(clue: Clue, surroundings: _Surroundings, which: int) -> list[Situation]:
    if clue.relation == "power of two":
        return _powers(surroundings, which)
    if clue.number is None or clue.number < 0:
        return []
    shapes, number = surroundings.shapes, math.floor(clue.number)
    now = math.prod(shapes[which])
    if clue.relation in {"multiple", "block"}:
        return _divided(clue, surroundings, which, number)
    over = [Situation(resize=item) for item in beyond(shapes, which, number + 1)[:2]]
    same = [Situation(resize=item) for item in exactly(shapes, which, number)[:1]]
    under = [Situation(resize=item) for item in exactly(shapes, which, number - 1)[:1]] if number > 1 else []
    less = _fewer(surroundings, which, number)
    if clue.relation in {"==", "!="}:
        return [*same, *over[:1], *under]
    # The side that the given inputs are not on comes first.
    return [*over, *same, *under] if now <= number else [*less, *same, *over[:1]]


def _fewer(surroundings: _Surroundings, which: int, number: int) -> list[Situation]:
    """Less than `number` elements, along one dimension."""
    shape = surroundings.shapes[which]
    found: list[Situation] = []
    for length in dict.fromkeys(sorted(shape, reverse=True)):
        times = shape.count(length)
        rest = math.prod(other for other in shape if other != length)
        new = int(((number - 1) / rest) ** (1 / times)) if rest and number > 1 else 0
        if 0 < new < length:
            found.append(Situation(resize=((length, new),)))
    return found[:2] or [Situation(resize=tuple((length, 1) for length in dict.fromkeys(shape) if length > 1))]


def _divided(clue: Clue, surroundings: _Surroundings, which: int, unit: int) -> list[Situation]:
    """Multiples of `unit` elements and not, one block and a tail."""
    shapes = surroundings.shapes
    remainder = int(clue.constant) if isinstance(clue.constant, int | float) and clue.constant > 0 else 0
    wanted = [2 * unit + remainder] if clue.relation == "multiple" else []
    found = [Situation(resize=item) for count in wanted for item in exactly(shapes, which, count)[:1]]
    tails = [unit + 1, 2 * unit + max(unit // 2, 1)] if unit > 1 else []
    return [*found, *(Situation(resize=item) for count in tails for item in _near(shapes, which, count, unit)[:1])]


def _near(shapes: Sequence[Shape], which: int, count: int, unit: int) -> list[Resize]:
    """About `count` elements, and no multiple of `unit`."""
    for wanted in range(count, count + 8):
        for way in (*exactly(shapes, which, wanted), *beyond(shapes, which, wanted)):
            if math.prod(resized_shapes([shapes[which]], way)[0]) % unit:
                return [way]
    return []


def _powers(surroundings: _Surroundings, which: int) -> list[Situation]:
    """A power of two, and its neighbours; the given number itself is known."""
    shapes = surroundings.shapes
    two = _power_near(math.prod(shapes[which]))
    found = [
        *exactly(shapes, which, two)[:1],
        *exactly(shapes, which, two - 1)[:1],
        *beyond(shapes, which, two + 1)[:1],
    ]
    return [Situation(resize=item) for item in found]


def _size(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    return _in_turn([_size_of(clue, surroundings, which) for which in surroundings.candidates(clue)])


def _size_of(clue: Clue, surroundings: _Surroundings, which: int) -> list[Situation]:
    shape = surroundings.shapes[which]
    lengths = _of_axis(shape, clue.axis)
    if clue.detail == "other":
        return _other_size(clue, surroundings, lengths)
    if clue.relation == "power of two":
        return _resized(lengths, [_power_near(length) + more for length in lengths[:1] for more in (0, -1, 1)])
    if clue.number is None:
        return []
    number = math.floor(clue.number)
    if clue.relation in {"multiple", "block"}:
        unit = max(number, 1)
        rest = int(clue.constant) % unit if isinstance(clue.constant, int | float) else 0
        now = lengths[0] if lengths else 0
        whole = next(size for size in (unit + rest, 2 * unit + rest) if size != now)
        tails = [unit + 1, 2 * unit + max(unit // 2, 1), *([unit - 1] if unit > 2 else [])]
        # The side that the given size isn't on comes first.
        found = _resized(lengths, [*tails, whole] if now % unit == rest else [whole, *tails])
        return [*found[:2], *_together_resized(lengths, unit + rest), *found[2:]]
    found = _resized(lengths, _both_sides(clue.relation, number, lengths[0] if lengths else 0))
    return [*found[:2], *_together_resized(lengths, number + 1), *found[2:]]


def _together_resized(lengths: Sequence[int], size: int) -> list[Situation]:
    """Every dimension at once, where it isn't known which one is meant: `min(x.shape) > 16`."""
    if len(lengths) < 2:
        return []
    return [Situation(resize=tuple((length, size) for length in lengths if length != size))]


def _both_sides(relation: str, number: int, now: int) -> list[int]:
    """Sizes around `number`; those on the side where `now` isn't come first."""
    if relation in {"==", "!="}:
        return [number, number + 1, number - 1]
    if now <= number:
        return [number + 1, number, number - 1]
    return [number - 1, number, number + 1]


def _of_axis(shape: Shape, axis: int | None) -> list[int]:
    """The size of that axis; of every one, the last first, where it isn't known."""
    if axis is not None and -len(shape) <= axis < len(shape):
        return [shape[axis]]
    return [length for length in dict.fromkeys(reversed(shape)) if length > 0][:3]


def _resized(lengths: Sequence[int], sizes: Sequence[int]) -> list[Situation]:
    return [
        Situation(resize=((length, size),))
        for size in dict.fromkeys(sizes)
        for length in lengths
        if size > 0 and size != length
    ]


def _power_near(length: int) -> int:
    """The power of two that is nearest, but another number than this one, and at least 4."""
    near = int(2 ** max(round(math.log2(max(length, 1))), 2))
    return near if near != length else 2 * near


def _other_size(clue: Clue, surroundings: _Surroundings, lengths: Sequence[int]) -> list[Situation]:
    """Two sizes are compared: the first longer, as long, and shorter than the second."""
    operand = clue.constant
    if not isinstance(operand, Operand) or not lengths:
        return []
    candidates = surroundings.candidates(replace(clue, argument=operand.argument, derived=False))
    if not candidates:
        return []
    others = [length for length in _of_axis(surroundings.shapes[candidates[0]], operand.axis) if length != lengths[0]]
    if not others:
        return []
    found = [others[0] + 1, others[0], others[0] - 1]
    if clue.relation == "multiple":
        found = [2 * others[0], 2 * others[0] + 1]
    return _resized(lengths[:1], found)


def _rank(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    candidates = surroundings.candidates(clue)
    now = len(surroundings.shapes[candidates[0]]) if candidates else 0
    up, down = Situation(rank=1), Situation(rank=-1)
    if clue.number is None:
        return [up, down]
    if clue.number < now:
        return [down, up] if now > 1 else [up]
    return [up, down] if now > 1 else [up]


def _value(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    place = surroundings.place(clue)
    if place is not None and not isinstance(surroundings.inputs[place], torch.Tensor):
        return _argument(clue, surroundings)
    if place is not None and place not in surroundings.ordinals:
        return []  # indices and masks: other values are another question
    ordinal = surroundings.ordinal(clue)
    whole = _WHOLE_VALUES.get(clue.detail)
    if whole is not None:
        return [Situation(values=replace(item, only=ordinal)) for item in whole(clue.number or 0.0)]
    if clue.detail in {"same tensor", "address"}:
        equal = [Situation(values=Values("equal_rows"), alias=True)] if clue.detail == "same tensor" else []
        return [Situation(alias=True), Situation(input_layout="offset"), *equal]
    if clue.detail in {"all above", "all below"}:
        return _shifted(clue, surroundings, ordinal)
    if clue.detail == "share" and clue.relation not in {"==", "!="}:
        sides = ("all above", "all below") if clue.relation in {">", ">="} else ("all below", "all above")
        around = Situation(values=Values("around", clue.number or 0.0, ordinal))
        return [around, *(way for side in sides for way in _shifted(replace(clue, detail=side), surroundings, ordinal))]
    if clue.detail in _REDUCTIONS:
        return _reduced(clue, surroundings, ordinal)
    number = clue.number
    if number is None:
        return []
    if clue.detail == "multiple":
        return [
            Situation(values=Values("rounded", number, ordinal)),
            Situation(values=Values("constant", number, ordinal)),
        ]
    found = [Situation(values=Values("around", number, ordinal))]
    if clue.relation in {"==", "!="}:
        found.append(Situation(values=Values("constant", number, ordinal)))
    if clue.relation in {"==", "!="} and number == 0:
        found += [
            Situation(values=Values("some_zero", only=ordinal)),
            Situation(values=Values("zero_row", only=ordinal)),
        ]
    if clue.derived:
        found += [Situation(values=Values("scaled", item, ordinal)) for item in _scales(number, surroundings, ordinal)]
    return found


def _scales(number: float, surroundings: _Surroundings, ordinal: int | None) -> list[float]:
    """Factors that bring the values' own scale well beyond the number, and well under it."""
    size = _measured(surroundings, ordinal, lambda x: x.abs().mean()) or 1.0
    if number == 0:
        return [1e3, 1e-3]
    return [4 * abs(number) / size, 0.25 * abs(number) / size]


def _measured(
    surroundings: _Surroundings, ordinal: int | None, measure: Callable[[torch.Tensor], torch.Tensor]
) -> float | None:
    """A number of the given values; of the first differentiable input, if it isn't known which is meant."""
    for place, number in surroundings.ordinals.items():
        if ordinal in {None, number}:
            item = surroundings.inputs[place].detach()
            if item.numel() == 0 or item.is_complex():
                return None
            value = float(measure(item.to(torch.float64)))
            return value if math.isfinite(value) else None
    return None


def _shifted(clue: Clue, surroundings: _Surroundings, ordinal: int | None) -> list[Situation]:
    """All values on one side of the number."""
    number = clue.number or 0.0
    above = clue.detail == "all above"
    extreme = _measured(surroundings, ordinal, lambda x: x.min() if above else x.max())
    margin = max(abs(number), 1.0) * (1 if above else -1)
    found = [Situation(values=Values("constant", number + 0.5 * margin, ordinal))]
    if extreme is not None:
        found.insert(0, Situation(values=Values("shifted", number - extreme + 0.1 * margin, ordinal)))
    if above and number <= 0:
        found.append(Situation(values=Values("positive", only=ordinal)))
    if not above and number >= 0:
        found.append(Situation(values=Values("negative", only=ordinal)))
    return found


def _reduced(clue: Clue, surroundings: _Surroundings, ordinal: int | None) -> list[Situation]:
    """A sum, mean, norm, largest value … that is compared: values for which it lies on either side."""
    number = clue.number or 0.0
    found: list[Values] = []
    count = max((math.prod(shape) for shape in surroundings.shapes), default=1) or 1
    if clue.detail in {"max", "min", "median", "mean", "sum"}:
        each = number / count if clue.detail == "sum" else number
        found.append(Values("constant", each, ordinal))
        measure = _MEASURES.get(clue.detail)
        now = _measured(surroundings, ordinal, measure) if measure is not None else None
        if now is not None:
            now = now / count if clue.detail == "sum" else now
            step = 0.1 * max(abs(each), 1.0)
            # Just beyond, and well beyond.
            near = 0.1 * abs(each)
            sides = (step, -step, -near, near) if now <= each else (-step, step, near, -near)
            found[:0] = [Values("shifted", each - now + side, ordinal) for side in dict.fromkeys(sides) if side]
    if clue.detail in {"sum", "norm", "std", "prod", "logsumexp", "max", "min", "mean"}:
        # Of absolute values: what is reduced is seldom signed where a scale matters.
        measure = _MEASURES.get(clue.detail, _MEASURES["sum"])
        now = _measured(surroundings, ordinal, lambda x: measure(x.abs()))
        if now and number:
            found += [Values("scaled", abs(number) / now * factor, ordinal) for factor in (1.5, 0.6)]
        if clue.derived:
            found += [Values("scaled", factor) for factor in (30.0, 1e-4)]
        if number and clue.detail != "sum":
            found.append(Values("scaled", 3 * number, ordinal))
    if number == 0:
        found += [Values("constant", 0.0, ordinal), Values("zero_row", only=ordinal), Values("some_zero", only=ordinal)]
    if clue.detail in {"unique", "unique_consecutive", "count_nonzero", "nonzero"}:
        found += [
            Values("constant", 1.0, ordinal),
            Values("constant", 0.0, ordinal),
            Values("rounded", 1.0, ordinal),
            Values("some_zero", only=ordinal),
            Values("equal_rows", only=ordinal),
        ]
    if clue.detail in {"sum", "argmax", "argmin", "topk"}:
        found += [Values("one_hot", only=ordinal), Values("sorted", only=ordinal)]
    same = [Situation(alias=True)] if clue.derived else []
    return [*(Situation(values=item) for item in found), *same]


_MEASURES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "mean": lambda x: x.mean(),
    "median": lambda x: x.median(),
    "sum": lambda x: x.sum(),
    "norm": lambda x: x.norm(),
    "std": lambda x: x.std(correction=0),
}
_REDUCTIONS: Final = frozenset(
    words(
        "max min mean median sum norm std prod logsumexp any all unique unique_consecutive count_nonzero nonzero "
        "argmax argmin topk kthvalue aminmax"
    )
)
_WHOLE_VALUES: Final[dict[str, Callable[[float], list[Values]]]] = {
    "all ones": lambda _: [Values("constant", 1.0)],
    "all zeros": lambda _: [Values("constant", 0.0)],
    "all equal": lambda number: [Values("constant", number or 1.0), Values("equal_rows"), Values("constant", 0.0)],
    "sorted": lambda _: [Values("sorted"), Values("constant", 1.0)],
    "rounded": lambda _: [Values("rounded", 1.0)],
    "count": lambda _: [
        Values("positive"),
        Values("negative"),
        Values("constant", 1.0),
        Values("some_zero"),
        Values("one_hot"),
        Values("constant", 0.0),
    ],
    "not finite": lambda _: [Values("scaled", 1e3), Values("constant", 0.0), Values("zero_row")],
}


def _cotangent(clue: Clue, _: _Surroundings) -> list[Situation]:
    number = clue.number if clue.number is not None else 0.0
    if clue.detail == "missing":
        # Its output isn't used; which others there are is known when it is called: one of these is.
        place = int(clue.argument) if clue.argument.isdigit() else 0
        return [Situation(cotangent=Cotangent(outputs=(other,))) for other in range(3) if other != place]
    kinds = _COTANGENTS.get(clue.detail)
    if kinds is not None:
        return [Situation(cotangent=item) for item in kinds(number)]
    if clue.detail == "address":
        return [Situation(cotangent=Cotangent(layout="offset")), Situation(cotangent=Cotangent(layout="strided"))]
    if clue.number is None and not clue.detail:
        return []
    found = [Cotangent("around", number)]
    if clue.relation in {"==", "!="} or clue.detail:
        found += [Cotangent("constant", number), Cotangent("ones")]
    if number == 0:
        found += [Cotangent("zero_rows"), Cotangent("one_hot"), Cotangent("zeros")]
    else:
        found += [Cotangent("scaled", 4 * abs(number)), Cotangent("scaled", 0.1 * abs(number))]
    if clue.detail in {"sum", "argmax", "argmin", "unique", "count_nonzero", "nonzero", "norm"}:
        found += [Cotangent("one_hot"), Cotangent("ones"), Cotangent("constant", number)]
    return [Situation(cotangent=item) for item in found]


_COTANGENTS: Final[dict[str, Callable[[float], list[Cotangent]]]] = {
    "all ones": lambda _: [Cotangent("ones"), Cotangent("ones", layout="expanded")],
    "all zeros": lambda _: [Cotangent("zeros"), Cotangent("zero_rows")],
    "all equal": lambda number: [
        Cotangent("constant", number),
        Cotangent("ones"),
        Cotangent("ones", layout="expanded"),
    ],
    "std": lambda _: [Cotangent("constant"), Cotangent("ones"), Cotangent("zeros"), Cotangent("scaled", 1e-3)],
    "all above": lambda number: [Cotangent("positive"), Cotangent("constant", number + max(abs(number), 1.0))],
    "all below": lambda number: [Cotangent("negative"), Cotangent("constant", number - max(abs(number), 1.0))],
    "sorted": lambda _: [Cotangent("constant"), Cotangent("ones"), Cotangent("zeros")],
    "rounded": lambda _: [Cotangent("ones"), Cotangent("one_hot")],
    "multiple": lambda _: [Cotangent("ones"), Cotangent("zeros")],
    "unique": lambda _: [Cotangent("constant"), Cotangent("ones"), Cotangent("one_hot"), Cotangent("zeros")],
    "count": lambda _: [
        Cotangent("ones"),
        Cotangent("positive"),
        Cotangent("negative"),
        Cotangent("one_hot"),
        Cotangent("zero_rows"),
        Cotangent("zeros"),
    ],
    "share": lambda number: [
        Cotangent("around", number),
        Cotangent("positive"),
        Cotangent("negative"),
        Cotangent("ones"),
    ],
    "not finite": lambda _: [Cotangent("scaled", 1e4)],
}


def _layout(clue: Clue, _: _Surroundings) -> list[Situation]:
    """Strides and contiguity, of an input or of the incoming gradient."""
    layouts: list[Layout] = ["transposed", "strided", "expanded", "offset"]
    if clue.detail == "offset":
        layouts = ["offset", "strided"]
    elif clue.detail == "view":
        layouts = ["offset", "transposed", "expanded"]
        return [Situation(sequence="input_written"), *(Situation(input_layout=layout) for layout in layouts)]
    elif clue.detail == "channels_last":
        layouts = ["channels_last", "transposed"]
    elif clue.number == 0:
        layouts = ["expanded", "transposed", "strided"]
    if clue.constant == "input" or (clue.argument and not clue.argument.isdigit()):
        return [Situation(input_layout=layout) for layout in layouts]
    of_cotangent = [Situation(cotangent=Cotangent(layout=layout)) for layout in layouts]
    # A gradient that is expanded from one number, as sum hands it back.
    return [
        *of_cotangent,
        *([Situation(cotangent=Cotangent("ones", layout="expanded"))] if "expanded" in layouts else []),
    ]


def _dtype(clue: Clue, _: _Surroundings) -> list[Situation]:
    low = [Situation(dtype="float32"), Situation(dtype="bfloat16"), Situation(dtype="float16")]
    name = clue.constant if isinstance(clue.constant, str) else ""
    name = {"half": "float16", "float": "float32", "double": "float64"}.get(name, name)
    chosen = [item for item in low if item.dtype == name]
    mixed = (
        [Situation(dtype="float32", autocast="forward")]
        if clue.detail == "other" or clue.argument.startswith("grad")
        else []
    )
    return (
        [*chosen, *(item for item in low[:2] if item not in chosen), *mixed] if name or clue.detail else [*low, *mixed]
    )


def _requires_grad(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    """The input alone, and all but it."""
    place = int(clue.number) if clue.number is not None else surroundings.place(clue)
    count = len(surroundings.ordinals)
    if place is not None and place < 0:
        place += len(surroundings.inputs)
    ordinal = surroundings.ordinals.get(place) if place is not None else None
    if count < 2:
        return []
    chosen = [ordinal] if ordinal is not None else list(range(count)) if place is None else []
    found: list[Situation] = []
    for number in chosen:
        others = tuple(other for other in range(count) if other != number)
        found += [Situation(wanted=others), Situation(wanted=(number,))]
    return found


def _argument(clue: Clue, surroundings: _Surroundings) -> list[Situation]:
    """Other values for an argument that is no tensor."""
    place = surroundings.place(clue)
    if place is None or isinstance(surroundings.inputs[place], torch.Tensor):
        return []
    now = surroundings.inputs[place]
    found: list[Any] = []
    if isinstance(now, bool):
        found = [not now]
    elif isinstance(now, str):
        found = [clue.constant] if isinstance(clue.constant, str) else []
        found += [word for word in _REDUCING for text in found if word.startswith(text)]
        if clue.constant in _REDUCING:
            found += _REDUCING
    elif isinstance(now, int | float):
        found = _numbers(clue, now, surroundings)
    elif now is None:
        found = [] if clue.constant is None or isinstance(clue.constant, type) else [clue.constant]
        found += [clue.number] if clue.number is not None else []
    elif isinstance(now, tuple) and clue.number is not None and all(type(item) is int for item in now):
        found = [tuple(math.floor(clue.number) + more for _ in now) for more in (0, 1, -1)]
    different = [item for item in found if type(item) is not type(now) or item != now]
    return [Situation(arguments=((place, item),)) for item in different]


# What the words "mean" and "sum" leave unsaid.
_REDUCING: Final = ("none", "sum", "mean", "max")


def _numbers(clue: Clue, now: float, surroundings: _Surroundings) -> list[Any]:
    name = clue.argument
    if isinstance(now, int) and ("dim" in name or "axis" in name) and "dims" not in name:
        rank = max((len(shape) for shape in surroundings.shapes), default=0)
        return [item for item in (-1, 0, 1, rank - 1, -rank) if -rank <= item < rank]
    if clue.constant is None and clue.number is None:
        return [1, 0] if isinstance(now, int) else [1.0, 0.0]
    number = clue.number
    if number is None:
        return [clue.constant] if isinstance(clue.constant, bool) else []
    if isinstance(now, int):
        whole = math.floor(number)
        return [whole, whole + 1, whole - 1]
    step = 0.1 * max(abs(number), 0.1)
    return list(dict.fromkeys([number, number + step, number - step, *([0.0] if abs(number) < 1e-2 else [])]))


def _flag(clue: Clue, _: _Surroundings) -> list[Situation]:
    return [*_FLAG_WAYS.get(clue.detail, ())]


_FLAG_WAYS: Final[dict[str, tuple[Situation, ...]]] = {
    "autocast": (
        Situation(autocast="forward"),
        Situation(autocast="throughout"),
        Situation(dtype="float32", autocast="forward"),
        Situation(dtype="float32", autocast="throughout"),
    ),
    "grad_enabled": (Situation(sequence="create_graph"), Situation(sequence="inference_first")),
    "inference": (Situation(sequence="inference_first"),),
    "deterministic": (Situation(flags=("deterministic",)),),
    "anomaly": (Situation(flags=("anomaly",)),),
    "default_dtype": (Situation(flags=("default_float32",)), Situation(dtype="float32")),
    "float32_precision": (Situation(flags=("float32_precision_high",)),),
    "thread": (Situation(sequence="other_thread"),),
    "random": (Situation(sequence="other_seed"),),
    "version": (Situation(sequence="input_written"), Situation(sequence="output_written")),
}


def _count(_: Clue, __: _Surroundings) -> list[Situation]:
    """Calls before, of the same and of other inputs."""
    return [
        Situation(sequence="repeated"),
        Situation(sequence="after_another"),
        Situation(sequence="interleaved"),
        Situation(sequence="second_backward"),
    ]


_WAYS: Final[dict[str, Callable[[Clue, _Surroundings], list[Situation]]]] = {
    "numel": _numel,
    "size": _size,
    "rank": _rank,
    "value": _value,
    "cotangent": _cotangent,
    "stride": _layout,
    "contiguous": _layout,
    "dtype": _dtype,
    "requires_grad": _requires_grad,
    "argument": _argument,
    "flag": _flag,
    "count": _count,
}
