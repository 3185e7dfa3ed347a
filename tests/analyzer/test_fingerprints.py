"""Fingerprints survive everything but a change of the flagged code, and tell equal code apart."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import takewhile

import pytest

from analyzer.context import FileContext
from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Severity
from analyzer.registry import all_rules
from analyzer.rules.base import Hit, Rule
from analyzer.rules.division import HandNormalisation
from analyzer.rules.engine_notes import EngineNote

ORIGINAL = """import torch


def other(x):
    return x + 1


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)
"""


def fingerprints(source: str, path: str = "pkg/a.py") -> list[str]:
    return [finding.fingerprint for finding in analyze_source(source, path).findings]


def test_it_survives_lines_inserted_above() -> None:
    assert fingerprints(
        "# a comment\n\n" + ORIGINAL.replace("def other", "\n\nCONSTANT = 1\ndef other")
    ) == fingerprints(ORIGINAL)


def test_it_survives_the_function_being_moved() -> None:
    head, other, unit = ORIGINAL.split("\n\n\n")
    assert fingerprints("\n\n\n".join([head, unit, other])) == fingerprints(ORIGINAL)


def test_it_survives_formatting() -> None:
    formatted = ORIGINAL.replace(
        "x / x.norm(dim=-1, keepdim=True)", "(\n        x  # rows\n        / (x.norm(dim = -1,\n keepdim=True,))\n    )"
    )
    assert formatted != ORIGINAL
    assert fingerprints(formatted) == fingerprints(ORIGINAL)


def test_it_survives_another_rule_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprints(ORIGINAL)
    monkeypatch.setattr(HandNormalisation, "name", "renamed")
    monkeypatch.setattr("analyzer.rules.division.place", lambda _: "all is lost")
    assert fingerprints(ORIGINAL) == before


def test_it_survives_changes_elsewhere_in_the_function() -> None:
    changed = ORIGINAL.replace("def unit(x):\n", "def unit(x):\n    x = x * 2\n    print(x)\n")
    assert fingerprints(changed) == fingerprints(ORIGINAL)


def test_it_changes_with_the_flagged_code_its_definition_and_its_file() -> None:
    original = fingerprints(ORIGINAL)
    assert len(original) == 1
    assert fingerprints(ORIGINAL.replace("dim=-1", "dim=1")) != original
    assert fingerprints(ORIGINAL.replace("def unit", "def normal")) != original
    assert fingerprints(ORIGINAL, "pkg/b.py") != original


def test_equal_expressions_in_one_function_are_told_apart() -> None:
    twice = "import torch\ndef f(x):\n    a = x / x.norm()\n    b = x / x.norm()\n    return a, b\n"
    first, second = fingerprints(twice)
    assert first != second
    once = twice.replace("    b = x / x.norm()\n", "    b = 0\n")
    assert fingerprints(once) == [first]


def test_notes_of_the_engine_have_stable_fingerprints_too() -> None:
    broken = "import torch\ndef f(:\n"
    assert fingerprints(broken) == fingerprints("\n\n" + broken)
    assert fingerprints(broken) != fingerprints(b"\xff".decode("latin-1") + "\0")


EXAMPLES = [
    pytest.param(rule, invalid.source, id=f"{rule.id}-{number}")
    for rule in all_rules()
    if not isinstance(rule, EngineNote)
    for number, invalid in enumerate(rule.invalid)
    if isinstance(invalid.source, str)
]


def of_rule(rule: Rule, source: str) -> list[str]:
    options = AnalyzerOptions(rules=frozenset({rule.id}))
    return sorted(finding.fingerprint for finding in analyze_source(source, "pkg/a.py", options=options).findings)


@pytest.mark.parametrize(("rule", "source"), EXAMPLES)
def test_every_finding_survives_lines_above_and_code_below(rule: Rule, source: str) -> None:
    below = f"{source}\n\ndef another_function_of_the_file(argument):\n    return argument\n"
    assert of_rule(rule, f"# one\n\n# two\n{below}") == of_rule(rule, source) != []


@pytest.mark.parametrize(("rule", "source"), EXAMPLES)
def test_every_finding_survives_being_formatted_anew(rule: Rule, source: str) -> None:
    head = "".join(takewhile(lambda line: line.startswith("#"), source.splitlines(keepends=True)))
    assert of_rule(rule, head + ast.unparse(ast.parse(source))) == of_rule(rule, source)


@pytest.mark.parametrize(("rule", "source"), EXAMPLES)
def test_every_finding_survives_another_text_of_its_rule(
    rule: Rule, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of_rule(rule, source)
    check = type(rule).check

    def said_otherwise(self: Rule, file: FileContext) -> list[Hit]:
        return [replace(hit, message="all is lost", related=(), fix=None) for hit in check(self, file)]

    monkeypatch.setattr(type(rule), "check", said_otherwise)
    monkeypatch.setattr(type(rule), "severity", Severity.NOTE)
    monkeypatch.setattr(type(rule), "name", "another-name")
    assert of_rule(rule, source) == before
