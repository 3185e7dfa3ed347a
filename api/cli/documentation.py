"""`gradproof rules` and `gradproof explain`: the documentation that rules and checks carry."""

from __future__ import annotations

import difflib
import json

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from analyzer.registry import all_rules, rule
from services.checks.documentation import all_checks, check
from services.documentation import check_page, rule_page
from services.problems import NotFoundError


class UnknownTopicError(NotFoundError):
    """Neither a rule nor a check has this name."""

    code = "unknown-topic"
    title = "There is no such rule or check"


def register(app: typer.Typer) -> None:
    """Add `rules` and `explain` to the command line."""
    app.command("rules")(rules)
    app.command("explain")(explain)


def rules(as_json: bool = typer.Option(False, "--json", help="Print JSON for a machine.")) -> None:
    """List the rules of the static analyzer."""
    if as_json:
        records = [
            {
                "id": item.id,
                "name": item.name,
                "severity": item.severity.value,
                "confidence": item.confidence.value,
                "settled_by": list(item.settled_by),
                "torch_versions": item.torch_versions,
                "what_it_does": item.documentation.what_it_does.strip(),
            }
            for item in all_rules()
        ]
        typer.echo(json.dumps(records, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("rule", "name", "severity", "confidence", "settled by"):
        table.add_column(column, no_wrap=True)
    for item in all_rules():
        table.add_row(item.id, item.name, item.severity, item.confidence, ", ".join(item.settled_by) or "reading")
    Console().print(table)
    Console(stderr=True).print("`gradproof explain RULE` tells more about one of them.", highlight=False)


def explain(topic: str = typer.Argument(metavar="RULE_OR_CHECK", help="For example GP101 or gradcheck.")) -> None:
    """Explain a rule or a check: what it does, why it matters, and what to write instead."""
    found = rule(topic.upper()) or rule(topic.lower())
    documented = check(topic.lower())
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
