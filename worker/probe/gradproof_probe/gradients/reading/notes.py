"""What is noted while code is read: predicates as clues, constants as numbers, variables of the program as state."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gradproof_probe.gradients.reading.clue import Clue, Clues, QuantityKind, Relation
from gradproof_probe.gradients.reading.meanings import Known, Meaning, Quantity
from gradproof_probe.gradients.reading.sources import Body, text_of

MOST_CLUES: Final = 400
_SAID_EVERYWHERE: Final = frozenset({0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5})


@dataclass(slots=True)
class Place:
    """The function that is being read."""

    path: str
    function: str
    body: Body


@dataclass(slots=True)
class Notes:
    place: Place
    silent: int = 0
    within: list[int] = field(default_factory=list)
    # The clues of the test being read are those after a mark: also ones that were noted earlier and met again.
    trail: list[int] = field(default_factory=list)
    _clues: list[Clue | None] = field(default_factory=list)
    _places: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _numbers: dict[float, None] = field(default_factory=dict)
    _used: set[float] = field(default_factory=set)
    _consulted: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    _written: dict[tuple[int, str], int] = field(default_factory=dict)

    def clue(
        self,
        quantity: QuantityKind,
        node: ast.AST,
        *,
        number: float | None = None,
        detail: str = "",
        argument: str = "",
        axis: int | None = None,
        relation: Relation = "asked",
        constant: Any = None,
        derived: bool = False,
    ) -> tuple[int, ...]:
        """Note one clue; its place, or nothing where code is read that only refuses inputs."""
        if self.silent or len(self._clues) >= MOST_CLUES:
            return ()
        if number is not None:
            number = float(number)
            if not math.isfinite(number):
                return ()
            self._used.add(number)
        line = getattr(node, "lineno", 0) + self.place.body.added
        key = (quantity, number, detail, argument, axis, relation, repr(constant), self.place.path, line)
        place = self._places.get(key)
        if place is None or self._clues[place] is None:
            place = self._places[key] = len(self._clues)
            self._clues.append(
                Clue(
                    quantity,
                    number,
                    detail,
                    self.place.path,
                    line,
                    text_of(self.place.body, node),
                    self.place.function,
                    argument,
                    axis,
                    relation,
                    constant,
                    derived,
                    tuple(self.within),
                )
            )
        self.trail.append(place)
        return (place,)

    def about(
        self,
        of: Quantity,
        node: ast.AST,
        *,
        number: float | None = None,
        detail: str = "",
        relation: Relation = "asked",
        constant: Any = None,
    ) -> tuple[int, ...]:
        """Note a clue on this quantity."""
        return self.clue(
            "size" if of.kind == "shape" else of.kind,
            node,
            number=number,
            detail=detail or of.detail,
            argument=of.argument,
            axis=None if of.moved else of.axis,
            relation=relation,
            constant=constant,
            derived=of.derived,
        )

    def instead(self, places: tuple[int, ...], **change: Any) -> None:
        """What was noted of single elements turns out to be asked of the whole tensor."""
        for place in places:
            clue = self._clues[place]
            if clue is not None:
                self._clues[place] = replace(clue, **change)

    def number(self, value: Any) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool) and not self.silent:
            try:
                number = float(value)
            except OverflowError:
                return
            if math.isfinite(number) and number not in _SAID_EVERYWHERE:
                self._numbers.setdefault(number)

    def has_role(self, value: Any) -> None:
        """The number is a dimension or an exponent: trying it as a value or size tells nothing."""
        if isinstance(value, Known) and isinstance(value.value, int | float):
            self._used.add(float(value.value))

    def consulted(self, meaning: Meaning, node: ast.AST) -> None:
        """A variable of the program is asked: a counter or cache, if anything read here writes to it too."""
        if isinstance(meaning, Known) and meaning.origin is not None:
            number = meaning.value if isinstance(meaning.value, int) else None
            places = self.clue("count", node, number=number, detail="state", constant=meaning.origin[1])
            self._consulted.setdefault(meaning.origin, []).extend(places)

    def written(self, origin: tuple[int, str], node: ast.AST) -> None:
        if origin not in self._written:
            places = self.clue("count", node, detail="state", constant=origin[1])
            self._written[origin] = places[0] if places else -1

    def finished(self) -> Clues:
        for origin, places in self._consulted.items():
            if not places:
                continue
            # Where it is asked tells more than where it is written; once is enough.
            again = {*places[1:], self._written.get(origin, -1)} - {places[0]}
            unwanted = again if origin in self._written else set(places)
            for place in unwanted - {-1}:
                self._clues[place] = None
        renumbered: dict[int, int] = {}
        for place, clue in enumerate(self._clues):
            if clue is not None:
                renumbered[place] = len(renumbered)
        found = tuple(
            replace(clue, within=tuple(renumbered[item] for item in clue.within if item in renumbered))
            if clue.within
            else clue
            for clue in self._clues
            if clue is not None
        )
        return Clues(found, tuple(number for number in self._numbers if number not in self._used))
