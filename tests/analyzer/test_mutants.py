"""The examples of every rule notice when its conditions are broken; `make mutants` counts them all."""

import inspect
import sys

import pytest

from analyzer.registry import all_rules
from tools.mutants import mutants_of, mutated_rules, notices, rule_modules


@pytest.mark.parametrize("name", rule_modules())
def test_a_broken_condition_of_every_rule_is_noticed(name: str) -> None:
    module = sys.modules[name]
    missing = {rule.id: rule for rule in all_rules() if type(rule).__module__ == name}
    for mutant in mutants_of(inspect.getsource(module)):
        broken = mutated_rules(mutant, module)
        missing = {key: rule for key, rule in missing.items() if key not in broken or not notices(broken[key], rule)}
        if not missing:
            break
    assert not missing, f"no mutant of {', '.join(missing)} is noticed by its examples"


@pytest.mark.parametrize("name", rule_modules())
def test_an_unbroken_module_is_not_noticed(name: str) -> None:
    """Otherwise the test above would pass whatever the examples are."""
    for rule in all_rules():
        if type(rule).__module__ == name:
            assert not notices(rule, rule)
