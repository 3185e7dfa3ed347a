"""Gives the rules the generated facts, each file read once and only when a rule asks (1 ms each).

This module must not know rules or syntax trees.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

RESULT = "result"
_DIRECTORY = Path(__file__).parent
_FILES = "torch_2_13"

TENSOR, NUMBER, STRING, OTHER, UNKNOWN = "T", "N", "S", "-", "?"
_KEYWORDS = "*"


class Operations:
    """What operations do with their tensors. Names are Python's: `torch.exp`, `torch.Tensor.exp_`, `operator.mul`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._cases: dict[str, dict[str, dict[str, str]]] = document["operations"]
        self._writing = frozenset[str](document["writing"])
        self._viewing = frozenset[str](document["viewing"])
        self._single = frozenset[str](document["single_result"])
        self._never = frozenset[str](document["never_differentiable"])
        self._results: dict[str, str] = document["results"]
        self._flags: dict[str, int] = document["in_place_flag"]
        self._answers: dict[tuple[str, str, bool], Mapping[str, frozenset[str]]] = {}
        self.version = str(document["torch"])

    def known(self, name: str) -> bool:
        """Whether it is known what the operation keeps for backward."""
        return name in self._cases

    def kept(self, name: str, kinds: str, *, keywords: bool = False) -> Mapping[str, frozenset[str]]:
        """What backward needs: argument that requires gradients → arguments and results kept because of that.

        `kinds` has a letter for each positional argument of the call: T a tensor, N a number, S a string, `-`
        anything else, `?` not known. `keywords`: further arguments are given by keyword. Where several forms of the
        operation fit, only what all of them keep is given. Empty when nothing is known.

        Arguments are told by position ("0" is the first, or the tensor whose method it is; a module has "parameters"
        as well), results as `result`, `result1`, ….
        """
        key = (name, kinds, keywords)
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._kept(name, kinds, keywords=keywords)
        return known

    def _kept(self, name: str, kinds: str, *, keywords: bool) -> Mapping[str, frozenset[str]]:
        cases = self._cases.get(name, {})
        fitting = [case for form, case in cases.items() if _fits(kinds, form, keywords=keywords)]
        if not fitting and not keywords:
            fitting = [case for form, case in cases.items() if _fits(kinds, form, keywords=True)]
        if not fitting:
            return {}
        arguments = set.intersection(*(set(case) for case in fitting))
        return {
            argument: frozenset.intersection(*(frozenset(case[argument].split()) for case in fitting))
            for argument in arguments
        }

    def writes(self, name: str) -> bool:
        """Whether the operation changes the values of its first argument."""
        return name in self._writing

    def in_place_flag(self, name: str) -> int | None:
        """The position of the parameter `inplace`, by which a function or module can be told to write its argument."""
        return self._flags.get(name)

    def views(self, name: str) -> bool:
        """Whether the result always shares the memory of the first argument."""
        return name in self._viewing

    def never_differentiable(self, name: str) -> bool:
        """Whether no result of the operation ever requires gradients."""
        return name in self._never

    def returns_one_tensor(self, name: str) -> bool:
        """Whether the operation returns exactly one tensor, however it is called."""
        return name in self._single

    def results(self, name: str) -> tuple[bool, ...]:
        """For an operation some of whose results are indices or the like: whether each can require gradients.

        Empty for all others, and for those whose number of results varies.
        """
        return tuple(letter == "D" for letter in self._results.get(name, ""))

    def is_tensor_method(self, name: str) -> bool:
        """Whether anything at all is known of `torch.Tensor.<name>`."""
        full = f"torch.Tensor.{name}"
        return full in self._cases or full in self._writing or full in self._single or full in self._never


def _fits(kinds: str, form: str, *, keywords: bool) -> bool:
    with_keywords = form.endswith(_KEYWORDS)
    form = form.removesuffix(_KEYWORDS)
    if not keywords and (with_keywords or len(form) > len(kinds)):
        return False
    for index, kind in enumerate(kinds[: len(form)]):
        if kind != UNKNOWN and kind != form[index]:
            return False
    return TENSOR not in kinds[len(form) :]


@dataclass(frozen=True, slots=True)
class MissingName:
    """`parent` exists and has no `name`; `suggestion` is the full name of what may have been meant."""

    parent: str
    name: str
    suggestion: str | None


class Names:
    """Which dotted names exist under `torch`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._text: dict[str, str] = document["names"]
        self._open = frozenset[str](document["open"])
        self._sets: dict[str, frozenset[str]] = {}
        self._suggested: dict[tuple[str, str], str | None] = {}
        self.version = str(document["torch"])

    def missing(self, dotted: str, *, suggests: bool = True) -> MissingName | None:
        """The first part of a dotted name that does not exist; None when it may.

        Only what is inside listed modules and `torch.Tensor` is judged: attributes of classes and objects, private
        modules, and modules that answer to any name may hold anything. `suggests`: looks for what may have been
        meant, which takes 20 ms.
        """
        parent, *rest = dotted.split(".")
        for name in rest:
            if parent in self._open or parent not in self._text:
                return None
            if name not in self._names(parent) and not (name.startswith("__") and name.endswith("__")):
                return MissingName(parent, name, self._suggestion(parent, name) if suggests else None)
            parent = f"{parent}.{name}"
        return None

    def has(self, module: str, name: str) -> bool:
        """Whether a listed module has this name."""
        return module in self._text and name in self._names(module)

    def _names(self, module: str) -> frozenset[str]:
        known = self._sets.get(module)
        if known is None:
            known = self._sets[module] = frozenset(self._text[module].split())
        return known

    def _suggestion(self, parent: str, name: str) -> str | None:
        if (parent, name) not in self._suggested:
            self._suggested[parent, name] = self._closest(parent, name)
        return self._suggested[parent, name]

    def _closest(self, parent: str, name: str) -> str | None:
        """The name spelled with other capitals, the same name elsewhere, else a name that is spelled alike."""
        public = sorted(item for item in self._names(parent) if not item.startswith("_"))
        for item in public:
            if item.lower() == name.lower():
                return f"{parent}.{item}"
        homes = [module for module in self._homes if name in self._names(module)]
        if homes and not name.startswith("_"):
            return f"{min(homes, key=_nearness)}.{name}"
        alike = difflib.get_close_matches(name, public, n=1, cutoff=_ALIKE_HERE)
        if alike:
            return f"{parent}.{alike[0]}"
        near = sorted((home for home in self._homes if home.count(".") <= 1), key=_nearness, reverse=True)
        places = {item: home for home in near for item in self._names(home) if len(item) >= _SHORTEST}
        alike = difflib.get_close_matches(name, sorted(places), n=1, cutoff=_ALIKE_ELSEWHERE)
        return f"{places[alike[0]]}.{alike[0]}" if alike and not alike[0].startswith("_") else None

    @cached_property
    def _homes(self) -> tuple[str, ...]:
        """The modules whose names people look for: at most two levels deep, without torch's own tests."""
        return tuple(
            module for module in self._text if module.count(".") <= 2 and not module.startswith("torch.testing")
        )


# Shares of matching letters: `Funtion` is 0.93 of `Function`; below 0.6 difflib's matches are accidents.
_ALIKE_HERE = 0.75
_ALIKE_ELSEWHERE = 0.65
_SHORTEST = 4


def _nearness(module: str) -> tuple[int, int]:
    return module.count("."), len(module)


@cache
def operations() -> Operations:
    """The facts about operations, of the torch that is named in their `version`."""
    return Operations(read_facts("operations"))


@cache
def names() -> Names:
    """The names that exist, in the torch that is named in their `version`."""
    return Names(read_facts("names"))


def read_facts(part: str, *, stem: str = _FILES) -> dict[str, Any]:
    """One of the generated files, read anew."""
    document: dict[str, Any] = json.loads((_DIRECTORY / f"{stem}_{part}.json").read_text("utf-8"))
    return document
