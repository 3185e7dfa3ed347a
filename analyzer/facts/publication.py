"""What torch says of its own interface: what is deprecated or gone, how things are called, where the compiler stops,
and since when names exist. Each file is read once and only when a rule asks.

This module must not know rules or syntax trees.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from analyzer.facts.loader import read_facts

SAME_ARGUMENTS = "args..."
_ANY_POSITIONAL, _ANY_KEYWORD, _POSITIONAL_END, _PARSED_IN_C = "*…", "**…", "*", "~"
# Names that the C++ functions accept for the ones in their signatures, so that code for NumPy runs.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}


@dataclass(frozen=True, slots=True)
class Deprecation:
    """`said` are torch's own words. `replacement` is a name that exists, or "".

    `arguments` says how a call's arguments change (`'cuda', args...`); "" where that is not known. `source`: W when
    torch warns at run time, M when only its manual says so, R when it raises.
    """

    said: str
    replacement: str
    arguments: str
    source: str

    @property
    def warns(self) -> bool:
        return self.source == "W"


class Deprecations:
    """What still exists and warns, and what still exists and only raises."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._deprecated: dict[str, list[str]] = document["deprecated"]
        self._removed: dict[str, list[str]] = document["removed"]
        self.version = str(document["torch"])

    def deprecated(self, name: str) -> Deprecation | None:
        entry = self._deprecated.get(name)
        return Deprecation(*entry) if entry is not None else None

    def removed(self, name: str) -> Deprecation | None:
        """What a function says that does nothing but raise."""
        entry = self._removed.get(name)
        return Deprecation(*entry) if entry is not None else None


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to call something. `positional` in order; `required` of all of them."""

    positional: tuple[str, ...]
    only_positional: frozenset[str]
    keywords: frozenset[str]
    required: frozenset[str]
    more_positional: bool
    more_keywords: bool
    takes_numpy_names: bool

    @classmethod
    def read(cls, text: str) -> _Form:
        positional: list[str] = []
        named: set[str] = set()
        required: set[str] = set()
        only_positional: set[str] = set()
        more_positional = more_keywords = ended = takes_numpy_names = False
        for word in text.split():
            if word == _ANY_POSITIONAL:
                more_positional = ended = True
            elif word == _ANY_KEYWORD:
                more_keywords = True
            elif word == _PARSED_IN_C:
                takes_numpy_names = True
            elif word == _POSITIONAL_END:
                ended = True
            else:
                name = word.strip("/=")
                if not ended:
                    positional.append(name)
                if word.startswith("/"):
                    only_positional.add(name)
                else:
                    named.add(name)
                if not word.endswith("="):
                    required.add(name)
        return cls(
            tuple(positional),
            frozenset(only_positional),
            frozenset(named),
            frozenset(required),
            more_positional,
            more_keywords,
            takes_numpy_names,
        )

    def name_of(self, keyword: str) -> str:
        """The parameter that a keyword stands for."""
        if keyword in self.keywords or not self.takes_numpy_names:
            return keyword
        return _NUMPY_NAMES.get(keyword, keyword)

    def knows(self, keyword: str) -> bool:
        return self.more_keywords or self.name_of(keyword) in self.keywords

    def accepts(self, positional: int, keywords: Collection[str]) -> bool:
        if positional > len(self.positional) and not self.more_positional:
            return False
        if not all(self.knows(keyword) for keyword in keywords):
            return False
        given = set(self.positional[:positional])
        named = {self.name_of(keyword) for keyword in keywords}
        if given & named:
            return False
        return self.required <= given | named


class Signatures:
    """How torch's functions and classes can be called."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._calls: dict[str, str] = document["calls"]
        self._forms: dict[str, tuple[_Form, ...]] = {}
        self.version = str(document["torch"])

    def known(self, name: str) -> bool:
        return name in self._calls

    def _of(self, name: str) -> tuple[_Form, ...]:
        forms = self._forms.get(name)
        if forms is None:
            forms = self._forms[name] = tuple(_Form.read(text) for text in self._calls[name].split("|"))
        return forms

    def accepts(self, name: str, positional: int, keywords: Collection[str]) -> bool:
        """Whether any form takes this many positional arguments and these keywords."""
        return any(form.accepts(positional, keywords) for form in self._of(name))

    def unknown_keywords(self, name: str, keywords: Collection[str]) -> list[str]:
        """Those that no form has a parameter for."""
        forms = self._of(name)
        return [keyword for keyword in keywords if not any(form.knows(keyword) for form in forms)]

    def keywords(self, name: str) -> list[str]:
        """Every parameter that can be given by keyword, public ones only."""
        found = {keyword for form in self._of(name) for keyword in form.keywords}
        return sorted(keyword for keyword in found if not keyword.startswith("_"))

    def most_positional(self, name: str) -> int | None:
        """How many positional arguments the most accepting form takes; None when any number."""
        forms = self._of(name)
        return None if any(form.more_positional for form in forms) else max(len(form.positional) for form in forms)

    def missing(self, name: str, positional: int, keywords: Collection[str]) -> list[str]:
        """Of a function with a single form: the required parameters that the call does not give."""
        forms = self._of(name)
        if len(forms) != 1:
            return []
        given = {*forms[0].positional[:positional], *map(forms[0].name_of, keywords)}
        return [parameter for parameter in forms[0].positional if parameter in forms[0].required - given]

    def positions(self, name: str) -> tuple[str, ...]:
        """The positional parameters of a function with a single form; empty for others."""
        forms = self._of(name)
        return forms[0].positional if len(forms) == 1 else ()


class GraphBreaks:
    """The numbers that torch gives to the places where its compiler stops."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._rules: dict[str, list[list[str]]] = document["rules"]
        self.version = str(document["torch"])

    def numbers(self, rule: str) -> tuple[str, ...]:
        """The numbers of a rule's graph breaks in torch's registry: `GB0170`."""
        return tuple(number for number, _ in self._rules.get(rule, ()))

    def number(self, rule: str, title: str) -> str:
        """The number of one of them, by a part of its title."""
        return next(number for number, said in self._rules[rule] if title in said)


class History:
    """Since when names exist in torch, and until when they did, by minor version."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._since = _by_name(document["since"])
        self._until = _by_name(document["until"])
        self.versions = tuple(document["versions"])
        self.version = str(document["torch"])

    def since(self, name: str) -> str | None:
        """The first version that has the name; None when that is not known, or too long ago to matter."""
        return self._since.get(name)

    def until(self, name: str) -> str | None:
        """The last version that had a name which the newest lacks."""
        return self._until.get(name)


def _by_name(document: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {
        f"{module}.{name}": version
        for version, table in document.items()
        for module, names in table.items()
        for name in names.split()
    }


@cache
def deprecations() -> Deprecations:
    """What is deprecated or gone in the torch that is named in their `version`."""
    return Deprecations(read_facts("deprecations"))


@cache
def signatures() -> Signatures:
    """How things are called in the torch that is named in their `version`."""
    return Signatures(read_facts("signatures"))


@cache
def graph_breaks() -> GraphBreaks:
    """Where the compiler of the torch that is named in their `version` stops."""
    return GraphBreaks(read_facts("graph_breaks"))


@cache
def history() -> History:
    """Since when and until when names exist."""
    return History(read_facts("history", stem="torch"))
