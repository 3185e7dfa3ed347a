"""Commands for whoever runs a deployment: the database and the tokens."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

import typer

from api.cli.console import say
from services.settings import read_settings


class Scope(StrEnum):
    """What a token may do; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"


def register(app: typer.Typer) -> None:
    """Add `db` and `token` to the command line."""
    database = typer.Typer(no_args_is_help=True, help="The database.")
    database.command("upgrade")(upgrade)
    app.add_typer(database, name="db")
    tokens = typer.Typer(no_args_is_help=True, help="API tokens.")
    tokens.command("create")(create_token)
    app.add_typer(tokens, name="token")


def upgrade() -> None:
    """Bring the database to the newest version of its tables."""
    from services.database.migrate import upgrade as run_migrations  # noqa: PLC0415

    settings = read_settings()
    run_migrations(settings)
    say("The database is up to date.")


def create_token(
    name: str = typer.Argument(help="Who or what will use it; shown wherever the token is listed."),
    scope: Scope = typer.Option(Scope.SUBMIT, help="What the token may do."),
    days: int = typer.Option(90, min=1, max=3650, help="Days until it expires."),
) -> None:
    """Create an API token and print it once: only its hash is kept."""
    from services.accounts import create_token as make  # noqa: PLC0415

    token = make(read_settings(), name=name, scope=scope.value, lifetime=timedelta(days=days))
    typer.echo(token)
    say(f"Keep it: it is shown only now. It expires in {days} days and may {scope.value}.")
