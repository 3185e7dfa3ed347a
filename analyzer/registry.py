"""Which rules there are: every concrete `Rule` class defined in a module of `analyzer.rules`.

A new rule module is picked up by being there. This module must not know single rules.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache

import analyzer.rules
from analyzer.rules.base import Rule

# What the first digit of an id says.
SECTIONS: Mapping[str, str] = {
    "GP0": "Notes of the analyzer itself",
    "GP1": "Numerical domain",
    "GP2": "Gradients that are cut off",
    "GP3": "Custom autograd Functions",
    "GP4": "In-place operations",
    "GP5": "torch.compile",
    "GP6": "Devices and dtypes",
    "GP7": "Training steps",
    "GP8": "Checkpointing",
    "GP9": "torch's API",
}


class DuplicateRuleError(ValueError):
    """Two rule classes carry the same id or the same name."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """One instance of every rule, in the order of their ids. Raises DuplicateRuleError for a clash."""
    classes: dict[str, type[Rule]] = {}
    names: dict[str, type[Rule]] = {}
    for info in pkgutil.iter_modules(analyzer.rules.__path__):
        module = importlib.import_module(f"{analyzer.rules.__name__}.{info.name}")
        for value in vars(module).values():
            if not isinstance(value, type) or value.__module__ != module.__name__:
                continue  # no class, or imported here
            if not issubclass(value, Rule) or inspect.isabstract(value) or not hasattr(value, "id"):
                continue  # no rule, or a base that several rules share
            other = classes.get(value.id) or names.get(value.name)
            if other is not None:
                raise DuplicateRuleError(f"{value.__name__} and {other.__name__} share an id or a name ({value.id})")
            classes[value.id] = value
            names[value.name] = value
    return tuple(classes[key]() for key in sorted(classes))


def rule(identifier: str) -> Rule | None:
    """The rule with this id (`GP101`) or name (`unprotected-division`), if there is one."""
    for candidate in all_rules():
        if identifier in (candidate.id, candidate.name):
            return candidate
    return None


def rules_named(words: Iterable[str]) -> frozenset[str]:
    """The ids of the rules that these words name: an id, a name, the beginning of ids (`GP1`), or `ALL`."""
    found: set[str] = set()
    for word in words:
        beginning = word.upper()
        found.update(
            item.id
            for item in all_rules()
            if word and (beginning == "ALL" or item.id.startswith(beginning) or item.name == word.lower())
        )
    return frozenset(found)
