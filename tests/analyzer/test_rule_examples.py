"""Every rule is tried on the examples it carries: the right ones stay silent, the faulty ones are found in place."""

import re

import pytest

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Finding
from analyzer.registry import all_rules
from analyzer.rules.base import Invalid, Rule
from analyzer.rules.engine_notes import EngineNote, UnreadableFileNote

RULES = all_rules()
VALID = [pytest.param(rule, source, id=f"{rule.id}-{i}") for rule in RULES for i, source in enumerate(rule.valid)]
INVALID = [pytest.param(rule, example, id=f"{rule.id}-{i}") for rule in RULES for i, example in enumerate(rule.invalid)]


def findings_of(rule: Rule, source: str | bytes) -> list[Finding]:
    # What the engine says about suppression comments depends on all other rules being run.
    chosen = None if isinstance(rule, EngineNote) else frozenset({rule.id, UnreadableFileNote.id})
    found = analyze_source(source, "package/layers.py", options=AnalyzerOptions(rules=chosen))
    if not isinstance(rule, UnreadableFileNote):
        assert [finding.message for finding in found.findings if finding.rule == UnreadableFileNote.id] == []
    return [finding for finding in found.findings if finding.rule == rule.id]


@pytest.mark.parametrize(("rule", "source"), VALID)
def test_right_code_is_left_alone(rule: Rule, source: str | bytes) -> None:
    assert findings_of(rule, source) == []


@pytest.mark.parametrize(("rule", "example"), INVALID)
def test_faulty_code_is_found_where_it_stands(rule: Rule, example: Invalid) -> None:
    found = findings_of(rule, example.source)
    assert tuple(finding.region.start_line for finding in found) == example.lines
    assert all(finding.message for finding in found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_documented_in_every_section(rule: Rule) -> None:
    documentation = rule.documentation
    for section in ("what_it_does", "why_is_this_bad", "faulty_example", "right_example", "fix_safety"):
        assert getattr(documentation, section).strip(), f"{rule.id} has no text under {section}"
    assert re.fullmatch(r"GP\d{3}", rule.id)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.torch_versions


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_documented_examples_show_what_they_claim(rule: Rule) -> None:
    assert findings_of(rule, rule.documentation.faulty_example), f"{rule.id} does not find its own faulty example"
    assert findings_of(rule, rule.documentation.right_example) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_carries_examples_of_both_kinds(rule: Rule) -> None:
    assert len(rule.valid) >= 2
    assert len(rule.invalid) >= 1


def test_ids_and_names_are_distinct() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)
