"""`gradproof status`: what waits in which queue, who works, and who holds which GPU."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from services.jobs.model import DeviceState, HeldDevice, QueueDepth
from services.oversight.service import Figures
from services.settings import read_settings

_COLOURS = {DeviceState.SERVING: "green", DeviceState.WAITING: "yellow", DeviceState.OUT_OF_SERVICE: "red"}


def register(app: typer.Typer) -> None:
    """Add `status` to the command line."""
    app.command("status")(status)


def status(as_json: bool = typer.Option(False, "--json", help="Print JSON for a machine.")) -> None:
    """Say what the service is doing: the depth of each queue, the workers, and who holds which GPU.

    Asks the database that the settings name; needs no server.
    """
    from services.database import Database  # noqa: PLC0415 - the database layer only when asked
    from services.database.migrate import require_current  # noqa: PLC0415
    from services.oversight import OversightService  # noqa: PLC0415

    settings = read_settings()
    require_current(settings)
    database = Database.open(settings, ring=lambda _queue: None)
    try:
        figures = OversightService(database, settings).figures()
    finally:
        database.close()
    if as_json:
        typer.echo(json.dumps(_data(figures), indent=2))
        return
    console = Console(highlight=False)
    console.print(f"{figures.workers} workers report in.")
    console.print(_queues(figures.queues) if figures.queues else "Nothing waits in any queue.")
    if figures.devices:
        console.print(_devices(figures.devices))


def _data(figures: Figures) -> dict[str, object]:
    return {
        "workers": figures.workers,
        "queues": [asdict(depth) for depth in figures.queues],
        "devices": [asdict(held) for held in figures.devices],
    }


def _queues(depths: tuple[QueueDepth, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("queue", "waiting", "running", "oldest"):
        table.add_column(name, no_wrap=True)
    for depth in depths:
        oldest = "" if depth.oldest_s is None else f"{depth.oldest_s:.0f} s"
        table.add_row(depth.queue, str(depth.waiting), str(depth.running), oldest)
    return table


def _devices(devices: tuple[HeldDevice, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("device", "state", "held by", "queues", "jobs"):
        table.add_column(name, overflow="fold")
    for held in devices:
        device = held.device
        named = escape(f"{device.id} ({device.name})") if device.id else "none"
        detail = f"\n[dim]{escape(device.detail)}[/]" if device.detail else ""
        colour = _COLOURS[device.state]
        table.add_row(
            named,
            f"[{colour}]{device.state.value}[/]{detail}",
            escape(f"process {held.pid} on {held.host}"),
            ", ".join(held.queues),
            str(held.running),
        )
    return table
