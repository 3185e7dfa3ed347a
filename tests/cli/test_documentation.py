"""`gradproof rules` and `gradproof explain` say what there is, to people and to machines; so do the generated pages."""

from __future__ import annotations

import json
import re

import pytest

from analyzer.registry import SECTIONS, all_rules, rules_named
from api.cli.main import run
from services.documentation import rule_page, rules_table


def printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 0
    return capfd.readouterr().out


def test_the_list_has_every_rule_with_severity_confidence_fix_and_checks(capfd: pytest.CaptureFixture[str]) -> None:
    lines = printed(capfd, "rules").splitlines()
    assert lines[0].split() == ["rule", "name", "severity", "confidence", "fix", "settled", "by"]
    rows = {line.split()[0]: line for line in lines if re.match(r"GP\d{3} ", line)}
    assert set(rows) == {rule.id for rule in all_rules()}
    for rule in all_rules():
        words = rows[rule.id].split()
        assert words[1:4] == [rule.name, rule.severity, rule.confidence]
        assert (words[4] in ("safe", "unsafe")) == (rule.fix != "none")
        assert rows[rule.id].endswith(", ".join(rule.settled_by) or "reading")
    assert set(SECTIONS.values()) <= set(lines)


@pytest.mark.parametrize("arguments", [["--json"], ["--format", "json"]])
def test_the_list_is_data_for_machines(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    records = json.loads(printed(capfd, "rules", *arguments))
    assert [record["id"] for record in records] == [rule.id for rule in all_rules()]
    assert all(record["fix"] in ("safe", "unsafe", "none") for record in records)
    assert all(record["section"] and record["faulty_example"] for record in records)


def test_a_part_of_the_rules_can_be_listed(capfd: pytest.CaptureFixture[str]) -> None:
    records = json.loads(printed(capfd, "rules", "--select", "GP3,hand-normalisation", "--json"))
    assert {record["id"][:3] for record in records} == {"GP3", "GP1"}
    assert run(["rules", "--select", "GP777"]) == 2


@pytest.mark.parametrize("topic", ["GP102", "gp102", "hand-normalisation", "Hand-Normalisation"])
def test_a_rule_is_explained_by_id_or_name(capfd: pytest.CaptureFixture[str], topic: str) -> None:
    text = printed(capfd, "explain", topic)
    assert text.startswith("# GP102 hand-normalisation")
    for part in ("What it does", "Why is this bad?", "Example", "Use instead", "Fix safety", "fix **"):
        assert part in text


def test_the_beginning_of_ids_lists_a_family(capfd: pytest.CaptureFixture[str]) -> None:
    text = printed(capfd, "explain", "gp3")
    assert {word for word in text.split() if re.fullmatch(r"GP\d{3}", word)} == rules_named(["GP3"])


def test_an_unknown_topic_is_refused_with_the_nearest(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "hand-normalization"]) == 2
    assert "hand-normalisation" in capfd.readouterr().err


def test_every_rule_belongs_to_a_section_and_stands_in_the_generated_table() -> None:
    table = rules_table()
    for rule in all_rules():
        assert rule.id[:3] in SECTIONS
        (row,) = (line for line in table.splitlines() if line.startswith(f"| [{rule.id}]"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1:] == [
            rule.name,
            rule.severity,
            rule.confidence,
            "" if rule.fix == "none" else rule.fix,
            ", ".join(rule.settled_by) or "reading",
        ]
        assert f"fix **{rule.fix}**" in rule_page(rule)
