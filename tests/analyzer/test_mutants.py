"""The examples of every rule notice when its conditions are broken; `make mutants` counts them all."""

import inspect
import sys
import types

import pytest

from analyzer.registry import all_rules
from analyzer.rules.base import Rule
from tools.mutants import Mutant, mutants_of, mutated_rules, notices, rule_modules


@pytest.mark.parametrize("name", rule_modules())
def test_a_broken_condition_of_every_rule_is_noticed(name: str) -> None:
    module = sys.modules[name]
    mutants = mutants_of(inspect.getsource(module))
    for rule in all_rules():
        if type(rule).__module__ == name:
            # The rule's own conditions first: most are noticed at once.
            first = inspect.getsourcelines(type(rule))[1]
            mutants.sort(key=lambda mutant: (mutant.line < first, mutant.line))
            assert any(is_noticed(mutant, rule, module) for mutant in mutants), f"no mutant of {rule.id} is noticed"


def is_noticed(mutant: Mutant, rule: Rule, module: types.ModuleType) -> bool:
    broken = mutated_rules(mutant, module)
    return rule.id not in broken or notices(broken[rule.id], rule)


@pytest.mark.parametrize("name", rule_modules())
def test_an_unbroken_module_is_not_noticed(name: str) -> None:
    """Otherwise the test above would pass whatever the examples are."""
    for rule in all_rules():
        if type(rule).__module__ == name:
            assert not notices(rule, rule)
