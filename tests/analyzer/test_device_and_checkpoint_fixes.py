"""What the rules about devices, dtypes and checkpoints propose is applied to their own faulty examples."""

import ast

import pytest
import torch

from analyzer.engine import analyze_source
from analyzer.findings import Edit, FixSafety
from analyzer.registry import all_rules
from analyzer.rules.base import Invalid, Rule

RULES = [rule for rule in all_rules() if rule.id.startswith(("GP6", "GP8"))]
FIXABLE = [rule for rule in RULES if rule.fix is not FixSafety.NONE]
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.id}-{i}") for rule in RULES for i, example in enumerate(rule.invalid)
]


def text_of(example: Invalid) -> str:
    return example.source if isinstance(example.source, str) else example.source.decode()


def applied(source: str, edits: tuple[Edit, ...]) -> str:
    lines = source.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for edit in sorted(edits, key=lambda edit: edit.region, reverse=True):
        start = starts[edit.region.start_line - 1] + edit.region.start_column - 1
        end = starts[edit.region.end_line - 1] + edit.region.end_column - 1
        source = source[:start] + edit.replacement + source[end:]
    return source


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_a_mended_example_is_valid_and_says_no_more_than_before(rule: Rule, example: Invalid) -> None:
    source = text_of(example)
    before = analyze_source(source, "package/layers.py").findings
    for finding in before:
        if finding.rule != rule.id or not finding.fix.edits:
            continue
        mended = applied(source, finding.fix.edits)
        ast.parse(mended)
        after = analyze_source(mended, "package/layers.py").findings
        of_rule = [item for item in before if item.rule == rule.id]
        assert len([item for item in after if item.rule == rule.id]) < len(of_rule), mended
        assert {item.rule for item in after} <= {item.rule for item in before}, mended


@pytest.mark.parametrize("rule", FIXABLE, ids=lambda rule: rule.id)
def test_a_rule_that_promises_fixes_offers_one(rule: Rule) -> None:
    offered = [
        finding.fix.safety
        for example in rule.invalid
        for finding in analyze_source(text_of(example), "package/layers.py").findings
        if finding.rule == rule.id and finding.fix.edits
    ]
    assert rule.fix in offered


RUNNABLE = [
    pytest.param(example, finding.fix.edits, id=f"{rule.id}-{i}")
    for rule in RULES
    if rule.id in ("GP602", "GP603", "GP604", "GP615", "GP803", "GP806")
    for i, example in enumerate(rule.invalid)
    for finding in analyze_source(text_of(example), "package/layers.py").findings
    if finding.rule == rule.id and finding.fix.safety is FixSafety.SAFE and "class Block" in text_of(example)
]


def result_of(source: str) -> torch.Tensor | str:
    """What the module of an example computes, or what it raises."""
    namespace: dict[str, type[torch.nn.Module]] = {}
    torch.manual_seed(0)
    exec(source, namespace)
    module = namespace["Block"]()
    inputs = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    torch.manual_seed(1)
    try:
        return module(inputs)
    except (IndexError, AttributeError) as error:
        return type(error).__name__


@pytest.mark.parametrize(("example", "edits"), RUNNABLE)
def test_a_safe_fix_computes_the_same_values(example: Invalid, edits: tuple[Edit, ...]) -> None:
    before, after = result_of(text_of(example)), result_of(applied(text_of(example), edits))
    if isinstance(before, str):
        assert after == before
    else:
        assert torch.equal(before, after)
