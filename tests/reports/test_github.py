"""Annotations for GitHub Actions: escaped by its rules, within its limits, and nothing is dropped silently."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from analyzer.findings import Region, Severity
from services.reports.document import Report
from services.reports.formats import Rendering, report_format
from tests.reports.samples import finding, hostile_report, report_of, rich_report

COMMAND = re.compile(r"^::(?P<name>\w+)(?: (?P<properties>[^:]*))?::(?P<message>.*)$")


def written(report: Report) -> list[str]:
    return report_format("github").render(report, Rendering()).splitlines()


def commands(report: Report) -> list[dict[str, Any]]:
    """Every command as GitHub's runner reads it."""
    found: list[dict[str, Any]] = []
    for line in written(report):
        match = COMMAND.match(line.lstrip())
        if match is not None:
            pairs = [pair.split("=", 1) for pair in (match["properties"] or "").split(",") if pair]
            found.append(
                {
                    "name": match["name"],
                    "message": unquote(match["message"]),
                    **{key: unquote(value) for key, value in pairs},
                }
            )
    return found


def many(count: int, severity: Severity) -> tuple[Any, ...]:
    return tuple(
        finding(severity=severity, fingerprint=f"{severity}{number}", region=Region("pkg/a.py", number, 2, number, 5))
        for number in range(1, count + 1)
    )


def test_a_finding_is_an_annotation_of_its_columns() -> None:
    (command,) = commands(report_of((finding(),)))
    assert command == {
        "name": "warning",
        "file": "pkg/a.py",
        "line": "18",
        "endLine": "18",
        "col": "16",
        "endColumn": "28",
        "title": "GP102 hand-normalisation",
        "message": "`x / x.norm()` is NaN where the row is zero",
    }


def test_columns_are_left_out_where_a_place_has_several_lines() -> None:
    (command,) = commands(report_of((finding(region=Region("pkg/a.py", 18, 16, 19, 28)),)))
    assert (command["line"], command["endLine"]) == ("18", "19")
    assert "col" not in command


def test_a_failing_check_is_an_error_with_its_cause() -> None:
    names = [(command["name"], command["title"]) for command in commands(rich_report())]
    assert ("error", "gradcheck fails on pkg.a:Square") in names
    assert any("cause: backward_raises" in command["message"] for command in commands(rich_report()))


def test_more_than_ten_of_a_level_are_listed_in_the_log_with_a_notice() -> None:
    report = report_of((*many(25, Severity.NOTE), *many(13, Severity.WARNING), *many(2, Severity.ERROR)))
    found = commands(report)
    counts = {name: sum(command["name"] == name for command in found) for name in ("error", "warning", "notice")}
    assert counts == {"error": 2, "warning": 10, "notice": 10}
    assert "3 warnings, 16 notices more stand in the log" in found[-3]["message"]
    listed = [line for line in written(report) if line.startswith("- pkg/a.py:")]
    assert len(listed) == 19


def test_ten_of_each_level_fit_without_a_notice() -> None:
    report = report_of((*many(10, Severity.NOTE), *many(10, Severity.WARNING)))
    assert len(commands(report)) == 20


def test_what_is_known_or_decided_is_not_annotated() -> None:
    report = report_of((finding(), finding(fingerprint="1")))
    report.findings[0].is_new = False
    report.findings[1].triage = "accepted"
    assert commands(report) == []


def test_submitted_text_gives_no_commands() -> None:
    assert {command["name"] for command in commands(hostile_report())} == {"error", "warning"}
    evil = "::error::x\n::set-output name=a::b\n##[command]c"
    path = "::warning file=a::b"
    found = tuple(
        finding(message=evil, fingerprint=str(number), region=Region(path, number, 1, number, 2))
        for number in range(1, 14)
    )
    lines = written(report_of(found))
    assert sum(line.lstrip().startswith("::warning ") for line in lines) == 10
    assert not [line for line in lines if "##[" in line and not line.startswith("::warning ")]
    assert {line.split("::")[1].split(" ")[0] for line in lines if line.lstrip().startswith("::")} == {
        "warning",
        "notice",
        "group",
        "endgroup",
    }


def test_properties_and_messages_read_back() -> None:
    region = Region("a,b:c%d.py", 1, 1, 1, 2)
    (command,) = commands(report_of((finding(region=region, message="100 % of: a,\nb"),)))
    assert command["file"] == "a,b:c%d.py"
    assert command["message"] == "100 % of: a,\nb"
