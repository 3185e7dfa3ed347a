"""The fixes of the rules on in-place writes and lost gradients: applied, they leave nothing to say."""

import pytest

from analyzer.engine import analyze_source
from analyzer.findings import Finding, FixSafety, Severity
from analyzer.fixing import apply_edits
from analyzer.registry import all_rules
from analyzer.rules.base import Rule

RULES = [rule for rule in all_rules() if rule.id.startswith(("GP2", "GP4"))]
EXAMPLES = [
    pytest.param(rule.id, example.source, id=f"{rule.id}-{number}")
    for rule in RULES
    for number, example in enumerate(rule.invalid)
]


def findings(source: str) -> list[Finding]:
    return list(analyze_source(source, "package/layers.py").findings)


def fixed(source: str, rule: str) -> str | None:
    """The source after all fixes of a rule at once, or None if it proposes none."""
    edits = [edit for finding in findings(source) if finding.rule == rule for edit in finding.fix.edits]
    return apply_edits(source, edits) if edits else None


@pytest.mark.parametrize(("rule", "source"), EXAMPLES)
def test_a_fixed_example_leaves_nothing_to_say(rule: str, source: str) -> None:
    after = fixed(source, rule)
    if after is None:
        return
    before = {(finding.rule, finding.message) for finding in findings(source)}
    left = [finding for finding in findings(after) if finding.severity is not Severity.NOTE]
    assert [finding for finding in left if finding.rule == rule] == [], after
    assert [finding for finding in left if (finding.rule, finding.message) not in before] == [], after


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_declares_the_fixes_that_it_offers(rule: Rule) -> None:
    offered = {
        finding.fix.safety
        for example in rule.invalid
        for finding in findings(str(example.source))
        if finding.rule == rule.id and finding.fix.edits
    }
    assert bool(offered) is (rule.fix is not FixSafety.NONE)
    if FixSafety.UNSAFE in offered:
        assert rule.fix is FixSafety.UNSAFE
