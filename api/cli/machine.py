"""`gradproof doctor`: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table

from services.settings import read_settings

_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "missing": "[red]missing[/]"}


def register(app: typer.Typer) -> None:
    """Add `doctor` to the command line."""
    app.command("doctor")(doctor)


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON for a machine.")) -> None:
    """Say what this machine can do: sandbox, compilers, devices, broker, database; what is missing, how to get it."""
    from worker.doctor import examine  # noqa: PLC0415 - reaches for servers and subprocesses: only when asked

    lines = examine(read_settings())
    if as_json:
        typer.echo(json.dumps([asdict(line) for line in lines], indent=2, default=str))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for line in lines:
            detail = line.detail if not line.remedy else f"{line.detail}\n[dim]→ {line.remedy}[/]"
            table.add_row(_MARKS[str(line.state)], line.name, detail)
        Console(highlight=False).print(table)
    if any(str(line.state) == "missing" for line in lines):
        raise typer.Exit(3)
