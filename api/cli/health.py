"""`gradproof health`: what a container's health check asks of the process beside it; exit code 0 or 3."""

from __future__ import annotations

import socket

import httpx
import typer

from api.cli.console import say
from services.problems import SurroundingsError
from services.settings import read_settings


class ApiUnhealthyError(SurroundingsError):
    """The API does not answer, or says that it is not ready."""

    code = "api-unhealthy"
    title = "The API is not ready"


def register(app: typer.Typer) -> None:
    """Add `health` to the command line."""
    commands = typer.Typer(no_args_is_help=True, help="Health checks, for containers.")
    commands.command("api")(api)
    commands.command("worker")(worker)
    app.add_typer(commands, name="health")


def api(
    host: str = typer.Option("127.0.0.1", help="Address of the API."),
    port: int = typer.Option(8000, help="Port of the API."),
) -> None:
    """Ask the API whether it is ready: database and broker reachable."""
    address = f"http://{host}:{port}/readyz"
    try:
        # Straight to the process beside us, whatever proxy the environment names.
        answer = httpx.get(address, timeout=8.0, trust_env=False)
    except httpx.HTTPError as error:
        raise ApiUnhealthyError(f"{address} does not answer: {error}", address=address) from error
    if answer.status_code != httpx.codes.OK:
        raise ApiUnhealthyError(f"{address} answers {answer.status_code}", address=address, answer=answer.text[:2000])
    say("The API is ready.")


def worker() -> None:
    """Ask the database whether a worker of this machine reported lately, is not idle beside waiting work, and has
    the GPU that it needs."""
    from services.jobs.health import require_healthy_workers  # noqa: PLC0415 - the database layer only when asked

    queues = require_healthy_workers(read_settings(), socket.gethostname())
    say(f"Workers of this machine serve {', '.join(queues)}.")
