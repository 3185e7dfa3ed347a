"""Looks up what a rule or a check is, for the formats that carry an explanation with each result.

The words come from the rule classes and from the table of checks, where the documentation pages come from too. This
module must not hold any of those words itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from analyzer.registry import all_rules
from analyzer.registry import rule as find_rule
from services.checks.documentation import all_checks
from services.checks.documentation import check as find_check
from services.documentation import check_page, rule_page


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rule or a check is. `severity` and `confidence` are None for a check."""

    id: str
    name: str
    summary: str
    explanation: str
    page: str
    severity: str | None = None
    confidence: str | None = None


@cache
def entry(identifier: str) -> Entry:
    """The entry of a rule id or a check name; one that tells no more than the name if there is no such thing.

    A report may be older or newer than the rules at hand, so that an unknown id is not an error.
    """
    rule = find_rule(identifier)
    if rule is not None:
        return Entry(
            id=rule.id,
            name=rule.name,
            summary=_first_sentence(rule.documentation.what_it_does),
            explanation=rule.documentation.why_is_this_bad.strip(),
            page=_without_comment(rule_page(rule)),
            severity=rule.severity.value,
            confidence=rule.confidence.value,
        )
    check = find_check(identifier)
    if check is not None:
        return Entry(
            id=check.name,
            name=check.name,
            summary=check.summary,
            explanation=check.what_it_does.strip(),
            page=_without_comment(check_page(check)),
        )
    unknown = f"No documentation for {identifier} in this version."
    return Entry(id=identifier, name=identifier, summary=unknown, explanation=unknown, page=unknown)


def entries() -> tuple[Entry, ...]:
    """All rules, then all checks."""
    return tuple(entry(rule.id) for rule in all_rules()) + tuple(entry(check.name) for check in all_checks())


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    head, dot, _ = text.partition(". ")
    return head + dot.strip() if dot else text


def _without_comment(page: str) -> str:
    """A page without the comment on its first line that says where the file comes from."""
    return page.removeprefix(page.partition("\n")[0]).lstrip() if page.startswith("<!--") else page
