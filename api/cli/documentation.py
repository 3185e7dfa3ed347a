"""`gradproof rules` and `gradproof explain`: the documentation that rules and checks carry."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import typer
from rich.console import Console
from rich.markdown import Markdown

from analyzer.findings import FixSafety
from analyzer.registry import SECTIONS, all_rules, rule, rules_named
from analyzer.rules.base import Rule
from services.checks.documentation import all_checks, check
from services.documentation import check_page, rule_page
from services.problems import NotFoundError

_STYLES: Final = {"error": "31", "note": "2"}


class UnknownTopicError(NotFoundError):
    """Neither a rule nor a check has this name."""

    code = "unknown-topic"
    title = "There is no such rule or check"


def register(app: typer.Typer) -> None:
    """Add `rules` and `explain` to the command line."""
    app.command("rules")(rules)
    app.command("explain")(explain)


class ListFormat(StrEnum):
    """How a list is written."""

    TEXT = "text"
    JSON = "json"


def rules(
    select: str = typer.Option(
        "", "--select", help="Only these: ids, names, or beginnings of ids, with commas between."
    ),
    output_format: ListFormat = typer.Option("text", "--format", help="json: for a machine, with every word there is."),
    as_json: bool = typer.Option(False, "--json", help="The same as --format json."),
) -> None:
    """List the rules of the static analyzer: severity, confidence, fix, and the checks that settle their findings."""
    words = [word.strip() for word in select.split(",") if word.strip()]
    unknown = [word for word in words if not rules_named([word])]
    if unknown:
        raise UnknownTopicError(f"{unknown[0]!r}; `gradproof rules` lists the rules")
    chosen = [item for item in all_rules() if not words or item.id in rules_named(words)]
    if as_json or output_format is ListFormat.JSON:
        typer.echo(json.dumps([_record(item) for item in chosen], indent=2))
        return
    typer.echo(_table(chosen, coloured=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    Console(stderr=True).print("`gradproof explain RULE` tells more about one of them.", highlight=False)


def _record(item: Rule) -> dict[str, object]:
    documentation = item.documentation
    return {
        "id": item.id,
        "name": item.name,
        "section": SECTIONS[item.id[:3]],
        "severity": item.severity.value,
        "confidence": item.confidence.value,
        "fix": item.fix.value,
        "settled_by": list(item.settled_by),
        "torch_versions": item.torch_versions,
        "what_it_does": documentation.what_it_does.strip(),
        "why_is_this_bad": documentation.why_is_this_bad.strip(),
        "faulty_example": documentation.faulty_example,
        "right_example": documentation.right_example,
        "fix_safety": documentation.fix_safety.strip(),
    }


def _table(chosen: Sequence[Rule], *, coloured: bool) -> str:
    """Plain columns, whole at any width: cut names are of no use to anybody."""
    head = ("rule", "name", "severity", "confidence", "fix", "settled by")
    rows = [
        (
            item.id,
            item.name,
            item.severity.value,
            item.confidence.value,
            "" if item.fix is FixSafety.NONE else item.fix.value,
            ", ".join(item.settled_by) or "reading",
        )
        for item in chosen
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Sequence[str], style: str = "") -> str:
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        return f"\x1b[{style}m{text}\x1b[0m" if coloured and style else text

    lines = [line(head, "1")]
    section = ""
    for row in rows:
        if row[0][:3] != section:
            section = row[0][:3]
            title = SECTIONS[section]
            lines += ["", f"\x1b[1m{title}\x1b[0m" if coloured else title]
        lines.append(line(row, _STYLES.get(row[2], "")))
    return "\n".join(lines)


def explain(topic: str = typer.Argument(metavar="RULE_OR_CHECK", help="For example GP101 or gradcheck.")) -> None:
    """Explain a rule or a check: what it does, why it matters, what to write instead. `GP1` lists a family of rules."""
    found = rule(topic.upper()) or rule(topic.lower())
    documented = check(topic.lower())
    family = rules_named([topic]) if found is None and documented is None else frozenset()
    if family:
        typer.echo(_table([item for item in all_rules() if item.id in family], coloured=sys.stdout.isatty()))
        return
    if found is not None:
        page = rule_page(found)
    elif documented is not None:
        page = check_page(documented)
    else:
        known = [name for item in all_rules() for name in (item.id, item.name)]
        known += [item.name for item in all_checks()]
        near = difflib.get_close_matches(topic, known, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `gradproof rules` lists the rules"
        raise UnknownTopicError(f"{topic!r}{hint}")
    text = page.split("-->\n", 1)[-1].strip()
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        typer.echo(text)
