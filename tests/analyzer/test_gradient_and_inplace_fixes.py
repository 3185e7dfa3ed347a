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


@pytest.mark.parametrize(
    ("body", "rule", "has_fix"),
    [
        ("y = torch.sigmoid(self.up(x))\ny += 1\nreturn y", "GP404", True),
        ("y = torch.sigmoid(self.up(x))\nz = y\ny += 1\nreturn y", "GP404", False),
        ("y = torch.sigmoid(self.up(x))\ny.mul_(2)\nreturn y", "GP404", True),
        ("y = torch.sigmoid(self.up(x))\ny.fill_diagonal_(0)\nreturn y", "GP404", False),
        ("y = torch.sigmoid(self.up(x))\ny[0] = 0\nreturn y", "GP404", False),
        ("y = torch.sigmoid(self.up(x))\nz = F.relu(y, inplace=True)\nreturn z", "GP404", False),
        ("y = torch.sigmoid(self.up(x))\ny = F.relu(y, inplace=True)\nreturn y", "GP404", True),
        ("y = torch.sigmoid(self.up(x))\nz = y.mul_(2)\nreturn z", "GP404", False),
    ],
)
def test_a_write_is_rewritten_only_where_nothing_else_sees_it(body: str, rule: str, *, has_fix: bool) -> None:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    source = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\nclass Net(nn.Module):\n"
        f"    def __init__(self):\n        self.up = nn.Linear(4, 4)\n\n    def forward(self, x):\n{lines}"
    )
    (found,) = (finding for finding in findings(source) if finding.rule == rule)
    assert bool(found.fix.edits) is has_fix
