"""Constructor expressions to try: the class's defaults, what is known of each argument, and repairs of what was raised.

Small sizes that differ from each other. The first expression is the likeliest; each later one changes one thing. A
class that an argument needs is constructed in the same way, to a depth. Expressions are evaluated in the names of the
target's module, as recipes are.
"""

from __future__ import annotations

import collections.abc
import heapq
import inspect
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from types import ModuleType
from typing import Any, Final

import torch

from gradproof_probe.harness.argument_values import ArgumentValues, Choice, Scope, is_number
from gradproof_probe.harness.constructor_parameters import (
    KnownParameter,
    has_packed,
    known_parameters,
    parameters_of,
)
from gradproof_probe.harness.constructor_repair import ConstructorRepair
from gradproof_probe.harness.mined_values import calls_of, root_of_package
from gradproof_probe.harness.names import SHRINKABLE, bounded_arrays, constructor_value
from gradproof_probe.harness.objects import reference
from gradproof_probe.harness.raised_conditions import frames_of
from gradproof_probe.harness.recipe import names_of
from gradproof_probe.harness.stand_ins import other_stand_ins
from gradproof_probe.harness.trial import time_limit
from gradproof_probe.harness.usage import initialiser
from gradproof_probe.importing import Resolved

__all__ = ["Candidate", "Constructors", "is_too_large", "parameters_of", "render"]

DEPTH: Final = 3  # objects within objects: a config in an encoder in a model
ALTERNATIVES: Final = 16
NESTED_TRIES: Final = 16
NESTED_S: Final = 6.0  # of this process's time for all nested objects of a target
NESTED_TRY_S: Final = 2.0
_FOUND_BY: Final = ("defaults", "names", "usage", "values", "guards", "repair")


@dataclass(frozen=True, slots=True)
class Candidate:
    """`found_by` is the costliest step that any of its arguments needed."""

    expression: str
    provenance: str
    found_by: str


@dataclass(slots=True)
class _Shared:
    """What nested constructions have in common."""

    names: dict[str, Any]
    target: type
    module: ModuleType
    built: dict[tuple[type, int], list[str]] = field(default_factory=dict)
    building: set[type] = field(default_factory=set)
    spent: float = 0.0


class Constructors:
    """The constructor expressions of one target."""

    @classmethod
    def of(cls, resolved: Resolved) -> Constructors:
        shared = _Shared(names_of(resolved), resolved.value, resolved.module)
        return cls(resolved.value, resolved.target.qualname, shared, DEPTH)

    def __init__(self, cls: type, name: str, shared: _Shared, depth: int) -> None:
        self.cls, self.name, self.shared, self.depth = cls, name, shared, depth
        self.root = root_of_package(shared.module)
        self.package = shared.module.__name__
        scope = Scope(shared.names, self.package, self.root, shared.target, self._instances)
        self.values = ArgumentValues(scope, depth)
        self.parameters = known_parameters(cls)
        self.required = [p for p in self.parameters if p.required]
        defined = initialiser(cls)
        self._code = defined[1].__code__ if defined is not None else None
        self._choices: dict[str, list[Choice]] = {}
        self._repair = ConstructorRepair(self)
        self._waiting: list[tuple[float, int, Candidate]] | None = None
        self._taken: set[str] = set()
        self._order = count()
        self._cost: dict[str, float] = {}
        self._progress: dict[str, int] = {}

    # --- What is known of one argument ----------------------------------------------------------------------------

    def choices(self, known: KnownParameter) -> list[Choice]:
        if known.name not in self._choices:
            self._choices[known.name] = self.values.choices(known.parameter, known.usage, known.function)
        return self._choices[known.name]

    def parameter(self, name: str) -> KnownParameter | None:
        return next((known for known in self.parameters if known.name == name), None)

    # --- Expressions ------------------------------------------------------------------------------------------------

    def candidates(self) -> Iterator[Candidate]:
        """In the order to try, each expression once."""
        seen: set[str] = set()
        for values, provenance, found_by in self._variants():
            expression = values if isinstance(values, str) else self.render(values)
            if expression not in seen:
                seen.add(expression)
                yield Candidate(expression, provenance, found_by)

    def take(self) -> Candidate | None:
        """The next expression to try: the cheapest of those that wait."""
        if self._waiting is None:
            self._waiting = []
            try:
                for index, candidate in enumerate(self.candidates()):
                    self._offer(candidate, index * 1.5)
            except Exception:  # submitted classes and annotations may raise when they are only looked at
                self._offer(Candidate(f"{self.name}()", "constructor defaults", "defaults"), 0.0)
        while self._waiting:
            candidate = heapq.heappop(self._waiting)[2]
            if candidate.expression not in self._taken:
                self._taken.add(candidate.expression)
                return candidate
        return None

    def failed(self, candidate: Candidate, error: BaseException) -> None:
        """Let what was raised by an expression lead to others: sooner if it came further than what it was made from."""
        cost = self._cost[candidate.expression]
        progress = max((level.line for level in frames_of(error) if level.code is self._code), default=0)
        if progress > self._progress.get(candidate.expression, progress):
            cost -= 2.0
        try:
            changes = list(self._repair.changed(error, candidate.expression))
        except Exception:  # live frames hold objects of the submitted code, which may raise when they are looked at
            changes = []
        for rank, (expression, why, found_by) in enumerate(changes):
            order = max(_FOUND_BY.index(found_by), _FOUND_BY.index(candidate.found_by))
            changed = Candidate(expression, f"{candidate.provenance}; {why}", _FOUND_BY[order])
            if self._offer(changed, cost + 0.5 * rank + (2.0 if found_by == "repair" else 0.3)):
                self._progress[expression] = progress

    def misused(self, candidate: Candidate, error: BaseException) -> None:
        """Let a call that failed for what the instance was built with lead to others: layers and kept arguments."""
        for expression, why in other_stand_ins(error, candidate.expression):
            found_by = max("repair", candidate.found_by, key=_FOUND_BY.index)
            self._offer(Candidate(expression, f"{candidate.provenance}; {why}", found_by), -1.0)
        try:
            changes = list(self._repair.misused(error, candidate.expression))
        except Exception:  # live frames hold objects of the submitted code, which may raise when they are looked at
            changes = []
        for rank, (expression, why, step) in enumerate(changes):
            found_by = max(step, candidate.found_by, key=_FOUND_BY.index)
            self._offer(Candidate(expression, f"{candidate.provenance}; {why}", found_by), -1.0 + 0.1 * rank)

    def not_finite(self, candidate: Candidate) -> None:
        """Let a call that gave something not finite lead to larger widths: a table of one frequency is 0 / 0."""
        self._offer(replace(candidate, expression=enlarged(candidate.expression)), -1.0, sooner=True)

    def _offer(self, candidate: Candidate, cost: float, *, sooner: bool = False) -> bool:
        """Whether it waits now. `sooner`: also where it was waiting at another cost."""
        assert self._waiting is not None
        if candidate.expression in self._taken or (candidate.expression in self._cost and not sooner):
            return False
        self._cost[candidate.expression] = cost
        heapq.heappush(self._waiting, (cost, next(self._order), candidate))
        return True

    def render(self, values: dict[str, str]) -> str:
        return render(self.name, [known.parameter for known in self.parameters], values)

    def _variants(self) -> Iterator[tuple[dict[str, str] | str, str, str]]:
        best = {known.name: self.choices(known)[0] for known in self.required}
        first = {name: choice.expression for name, choice in best.items()}
        shrunken = {**first, **{p.name: value for p in self.parameters if (value := _shrink(p.parameter))}}
        found_by = _costliest(best.values())
        weak = any(choice.weak or choice.found_by == "values" for choice in best.values())
        if issubclass(self.cls, tuple | list | dict | str):
            yield from self._mined()  # without arguments it would be empty
        for bounded in bounded_arrays(known.name for known in self.parameters):
            yield {**first, **bounded}, "an array by its bounds and shape", "names"
        if not self.required:
            yield {}, "constructor defaults", "defaults"
            yield shrunken, "constructor defaults, large sizes made small", "defaults"
        else:
            if weak:
                yield from self._mined()
            said = _said(best)
            apart = _apart(best)
            if apart:
                yield {**shrunken, **apart}, f"constructor arguments by {said}, widths kept apart", found_by
            yield shrunken, f"constructor arguments by {said}, large defaults made small", found_by
            yield first, f"constructor arguments by {said}", found_by
        if has_packed(self.cls) and not self.required:
            layers = "torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)"
            yield f"{self.name}({layers})", "two layers as its arguments", "names"
        yield from self._alternatives(first)
        wide = enlarged(self.render(shrunken))
        if "(" in "".join(first.values()):
            yield wide, f"constructor arguments by {_said(best)}, widths of 64", found_by
        if not weak:
            yield from self._mined()
        larger = {name: _larger(name, value) for name, value in shrunken.items()}
        yield larger, "constructor arguments by name, larger images", found_by
        for number in ("8", "4", "16", "2", "3") if self.required else ():
            same = {name: number if is_number(value) else value for name, value in first.items()}
            yield same, f"constructor arguments all {number}", found_by
        if self.required:
            modules = {name: "torch.nn.Linear(8, 8)" if value == "8" else value for name, value in first.items()}
            yield modules, "constructor arguments with modules", found_by
            pairs = {name: "(8, 8)" if is_number(value) else value for name, value in first.items()}
            yield pairs, "constructor arguments with pairs", found_by

    def _alternatives(self, first: dict[str, str]) -> Iterator[tuple[dict[str, str], str, str]]:
        """One argument with its next choice, then its third: what is weakest changes first."""
        ordered = sorted(self.required, key=lambda known: not self.choices(known)[0].weak)
        changes = (
            (known, self.choices(known)[rank])
            for rank in range(1, 5)
            for known in ordered
            if rank < len(self.choices(known))
        )
        for known, choice in islice(changes, ALTERNATIVES):
            values = {**first, known.name: choice.expression}
            yield values, f"constructor arguments with {known.name}={choice.expression}", choice.found_by

    def _mined(self) -> Iterator[tuple[str, str, str]]:
        """Calls of the class with plain values that the repository itself makes."""
        if self.root is None or not (self.parameters or has_packed(self.cls)):
            return
        for arguments in calls_of(self.root, self.cls.__name__)[:4]:
            if not any(int(number) > 512 for number in re.findall(r"\b\d+\b", arguments)):
                yield f"{self.name}{arguments}", "a call in the repository", "values"

    # --- Objects that arguments need ----------------------------------------------------------------------------------

    def _instances(self, cls: type, depth: int) -> list[str]:
        """An expression for an instance of a class that was seen to work, or none."""
        shared = self.shared
        key = (cls, depth)
        if key in shared.built:
            return shared.built[key]
        name = reference(cls, shared.names)
        if name is None or cls in shared.building or shared.spent > NESTED_S or depth < 0:
            return []
        shared.building.add(cls)
        try:
            found = self._working(Constructors(cls, name, shared, depth))
        finally:
            shared.building.discard(cls)
        shared.built[key] = found
        return found

    def _working(self, inner: Constructors) -> list[str]:
        """The first expression that works, and of a description (a config, a space) those of other sizes as well."""
        large: list[str] = []
        for _ in range(NESTED_TRIES):
            candidate = inner.take()
            if candidate is None or self.shared.spent > NESTED_S:
                break
            made, error = self._made(candidate.expression)
            if error is not None:
                inner.failed(candidate, error)
            elif isinstance(made, torch.nn.Module) and is_too_large(made):
                large.append(candidate.expression)
            elif isinstance(made, torch.nn.Module):
                return [candidate.expression]
            else:
                sized = [text for text in inner.sizes() if text == candidate.expression or not self._made(text)[1]]
                return list(dict.fromkeys((*sized, candidate.expression)))
        return large[:1]

    def _made(self, expression: str) -> tuple[Any, BaseException | None]:
        before = time.process_time()
        try:
            with time_limit(NESTED_TRY_S):
                return eval(expression, self.shared.names), None
        except BaseException as error:
            return None, error
        finally:
            self.shared.spent += time.process_time() - before

    def sizes(self) -> list[str]:
        """A description's expressions by size: small, medium, as it is by default; a vector and an image of bounds.

        What is built of a config by its defaults is the author's whole model: it takes seconds and gigabytes. And a
        small width may be too small, for half of the width of a head that is to be even, say.
        """
        first = {known.name: self.choices(known)[0].expression for known in self.required}
        bounded = list(bounded_arrays(known.name for known in self.parameters))
        if bounded:
            return [self.render({**first, **values}) for values in bounded]
        small = self.render({**first, **self._small()})
        listed = [*(self.render(values) for values in self._filled()), small, enlarged(small), self.render(first)]
        return list(dict.fromkeys(listed))

    def _small(self) -> dict[str, str]:
        """Small values for large defaults. Half precision counts as large: on a CPU few layers can compute it."""
        half = {
            known.name: "torch.float32"
            for known in self.parameters
            if known.parameter.default in (torch.bfloat16, torch.float16)
        }
        return half | {p.name: value for p in self.parameters if (value := _shrink(p.parameter))}

    def _filled(self) -> Iterator[dict[str, str]]:
        """What a container holds, where it may be made empty: its first argument that its annotation says."""
        if issubclass(self.cls, collections.abc.Mapping) and self.parameters and not self.required:
            choice = self.choices(self.parameters[0])[0]
            if choice.expression != "{}":
                yield {self.parameters[0].name: choice.expression}


_WIDTH: Final = re.compile(r"dim|width|channels?|features?|embed|size|units|nf$|filters", re.IGNORECASE)


def _apart(best: dict[str, Choice]) -> dict[str, str]:
    """Different values for widths that their names don't tell apart: 8, 12, 16, so that two swapped ones show."""
    alike = [name for name, choice in best.items() if choice.expression == "8" and _WIDTH.search(name)]
    return {name: str(8 + 4 * index) for index, name in enumerate(alike[:4])} if len(alike) > 1 else {}


def _costliest(choices: Any) -> str:
    return max((choice.found_by for choice in choices), key=_FOUND_BY.index, default="defaults")


def _said(best: dict[str, Choice]) -> str:
    """`name and annotation`, with the arguments that something else decided named."""
    others = {"usage": "use", "values": "the repository's own values"}
    parts = ["name and annotation"]
    for found_by, word in others.items():
        names = [name for name, choice in best.items() if choice.found_by == found_by]
        if names:
            parts.append(f"{word} ({', '.join(names[:4])})")
    return ", ".join(parts)


def _shrink(parameter: inspect.Parameter) -> str | None:
    """A small value for an integer default that is large, and for tuples of such; zero for dropout stays as it is."""
    default = parameter.default
    if default is inspect.Parameter.empty or isinstance(default, bool):
        return None
    if re.search(r"(^|_)(base|theta)$", parameter.name):
        return None  # of powers: 10000 is no size
    if isinstance(default, int) and default > 16 and SHRINKABLE.search(parameter.name):
        value = constructor_value(parameter.name)
        return value if value and re.fullmatch(r"\d+", value) else "8"
    if isinstance(default, int) and 2 < default <= 16 and re.search(r"depth|layers|heads$", parameter.name):
        return constructor_value(parameter.name)
    return None


def enlarged(expression: str) -> str:
    """The expression with widths of 64, in all the constructors that it calls: what is divided by heads stays even."""
    return re.sub(rf"\b(\w*(?:{_WIDTH.pattern})\w*=)(?:8|10|12)(?=[,)])", r"\g<1>64", expression)


_LARGER: Final = {"16": "64", "4": "8"}


def _larger(name: str, value: str) -> str:
    if re.search(r"image|img|resolution|patch|height|width|input_size", name, re.IGNORECASE):
        return _LARGER.get(value, value)
    return value


def render(qualname: str, parameters: list[inspect.Parameter], values: dict[str, str]) -> str:
    """A call with keyword arguments wherever the signature lets us."""
    parts = []
    skipped = False
    for parameter in parameters:
        if parameter.name not in values:
            skipped = True
            continue
        value = values[parameter.name]
        if parameter.kind is parameter.POSITIONAL_ONLY and not skipped:
            parts.append(value)
        else:
            parts.append(f"{parameter.name}={value}")
    return f"{qualname}({', '.join(parts)})"


def is_too_large(module: torch.nn.Module, limit: int = 4_000_000) -> bool:
    """Over 4 million parameters a single backward takes longer than all trials of a small one."""
    return sum(parameter.numel() for parameter in module.parameters()) > limit
