"""Markdown pages for rules and checks. See the package docstring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analyzer.findings import FixSafety
from analyzer.registry import SECTIONS, all_rules
from analyzer.rules.base import Rule
from services.checks.documentation import CheckDocumentation
from services.checks.plan import CHECKS

MADE = "<!-- Made by `make docs` from the code: change it there. -->"


def rule_page(rule: Rule) -> str:
    """The page of one rule: what it does, why that is bad, both examples, the fix, what settles it."""
    documentation = rule.documentation
    return "\n".join(
        [
            MADE,
            "",
            f"# {rule.id} {rule.name}",
            "",
            f"{SECTIONS[rule.id[:3]]}. Severity **{rule.severity}**, confidence **{rule.confidence}**, "
            f"fix **{rule.fix}**. {_settled(rule)} Holds for torch {rule.torch_versions}.",
            "",
            "## What it does",
            "",
            documentation.what_it_does.strip(),
            "",
            "## Why is this bad?",
            "",
            documentation.why_is_this_bad.strip(),
            "",
            "## Example",
            "",
            "```python",
            documentation.faulty_example.strip(),
            "```",
            "",
            "## Use instead",
            "",
            "```python",
            documentation.right_example.strip(),
            "```",
            "",
            "## Fix safety",
            "",
            documentation.fix_safety.strip(),
            "",
            "## Silence it",
            "",
            "```python",
            f"…  # gradproof: ignore[{rule.id}] the reason, which is required",
            "```",
            "",
        ]
    )


def rules_table() -> str:
    """All rules, a row each, section by section."""
    rules = all_rules()
    fixable = sum(rule.fix is not FixSafety.NONE for rule in rules)
    lines = [
        MADE,
        "",
        "# Rules",
        "",
        f"{len(rules)} rules, {fixable} of them with a fix (`gradproof fix`). A *safe* fix gives the same values "
        "wherever the old code was finite; an *unsafe* one may change them and is applied only with `--unsafe`. "
        "*Settled by* names the checks that confirm or refute a finding when the code is run; what *reading* settles "
        "needs no run.",
        "",
    ]
    head = ("rule", "name", "severity", "confidence", "fix", "settled by")
    for beginning, title in SECTIONS.items():
        rows = [
            (f"[{rule.id}]({rule.id}.md)", rule.name, rule.severity, rule.confidence, _fix(rule), _checks(rule))
            for rule in rules
            if rule.id.startswith(beginning)
        ]
        if rows:
            lines += [f"## {title} ({beginning})", "", *table(head, rows), ""]
    return "\n".join(lines)


def _fix(rule: Rule) -> str:
    return "" if rule.fix is FixSafety.NONE else rule.fix.value


def _checks(rule: Rule) -> str:
    return ", ".join(rule.settled_by) or "reading"


def check_page(check: CheckDocumentation) -> str:
    """The page of one check: what it does and how its verdict comes about."""
    return "\n".join(
        [
            MADE,
            "",
            f"# {check.name}",
            "",
            check.summary.strip(),
            "",
            "## What it does",
            "",
            check.what_it_does.strip(),
            "",
            "## How it decides",
            "",
            check.how_it_decides.strip(),
            "",
        ]
    )


def _settled(rule: Rule) -> str:
    if not rule.settled_by:
        return "Reading decides it: there is nothing to run."
    return f"Settled at run time by {', '.join(_check(name) for name in rule.settled_by)}."


def _check(name: str) -> str:
    """A check's name, with a remark where rules are ahead of the checks."""
    return f"`{name}`" if name in CHECKS else f"`{name}` (a check that this version does not have yet)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return lines
