"""Commands for whoever runs a deployment: the database, the people, the tokens."""

from __future__ import annotations

import sys
from datetime import timedelta
from enum import StrEnum

import typer

from api.cli.console import say
from services.settings import read_settings


class Scope(StrEnum):
    """What a token may do; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    TRIAGE = "triage"
    ADMIN = "admin"


class Role(StrEnum):
    """What a member is; each may do what those before it may."""

    VIEWER = "viewer"
    TRIAGER = "triager"
    MAINTAINER = "maintainer"
    ADMIN = "admin"


def register(app: typer.Typer) -> None:
    """Add `db`, `user`, `organisation` and `token` to the command line."""
    database = typer.Typer(no_args_is_help=True, help="The database.")
    database.command("upgrade")(upgrade)
    database.command("prune")(prune)
    app.add_typer(database, name="db")
    users = typer.Typer(no_args_is_help=True, help="People who sign in.")
    users.command("create")(create_user)
    users.command("email")(set_email)
    users.command("password")(set_password)
    users.command("disable")(disable_user)
    users.command("enable")(enable_user)
    users.command("operator")(set_operator)
    app.add_typer(users, name="user")
    organisations = typer.Typer(no_args_is_help=True, help="Organisations, which own projects.")
    organisations.command("create")(create_organisation)
    app.add_typer(organisations, name="organisation")
    tokens = typer.Typer(no_args_is_help=True, help="API tokens.")
    tokens.command("create")(create_token)
    app.add_typer(tokens, name="token")


def upgrade() -> None:
    """Bring the database to the newest version of its tables."""
    from services.database.migrate import upgrade as run_migrations  # noqa: PLC0415

    settings = read_settings()
    run_migrations(settings)
    say("The database is up to date.")


def prune(
    older_than: int = typer.Option(
        ..., min=1, metavar="DAYS", help="Drop analyses that ended more days ago than this."
    ),
    keep: int = typer.Option(0, min=0, help="Of each project, also drop all but so many of the newest; 0: do not."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be dropped, and drop nothing."),
) -> None:
    """Drop old analyses with all that is theirs, and the snapshots that nothing refers to any more.

    Kept however old: the newest analysis of a project's main line, the base of one that is kept, the one in which a
    finding was last seen that somebody decided about, and what an open pull request or a link still shows.
    """
    from services.retention import Keep, prune as run, would_prune  # noqa: PLC0415, I001

    wanted = Keep(timedelta(days=older_than), keep)
    settings = read_settings()
    if dry_run:
        found = would_prune(settings, wanted)
        say(f"{found.analyses:,} analyses and {found.snapshots:,} snapshots would be dropped.")
        return
    done = run(settings, wanted)
    say(f"Dropped {done.analyses:,} analyses and {done.snapshots:,} snapshots.")


def create_token(
    name: str = typer.Argument(help="Who or what will use it; shown wherever the token is listed."),
    scope: Scope = typer.Option(Scope.SUBMIT, help="What the token may do."),
    days: int = typer.Option(90, min=1, max=3650, help="Days until it expires."),
    user: str | None = typer.Option(None, help="Whose it is: it may no more than that user."),
    project: str | None = typer.Option(None, help="The one project that it is for."),
) -> None:
    """Create an API token and print it once: only its hash is kept."""
    from services.accounts import create_token as make  # noqa: PLC0415

    if user is not None and project is not None:
        raise typer.BadParameter("a token is of a user or of a project, not of both")
    lifetime = timedelta(days=days)
    token = make(read_settings(), name=name, scope=scope.value, lifetime=lifetime, user=user, project=project)
    where = f"in {project}" if project else f"where {user} may" if user else "everywhere"
    typer.echo(token)
    say(f"Keep it: it is shown only now. It expires in {days} days and may {scope.value} {where}.")


def create_user(
    name: str = typer.Argument(help="What the person signs in with: lower-case letters, digits, '.', '_', '-'."),
    email: str | None = typer.Option(None, help="Shown to operators; digests go there."),
    operator: bool = typer.Option(False, "--operator", help="May do everything everywhere."),
    organisation: str | None = typer.Option(None, help="What the person becomes a member of."),
    role: Role = typer.Option(Role.VIEWER, help="As what."),
    password_stdin: bool = typer.Option(False, "--password-stdin", help="Read the password from standard input."),
) -> None:
    """Create a user who signs in with a password."""
    from services.accounts import administration  # noqa: PLC0415

    settings = read_settings()
    made = administration.create_user(
        settings,
        name,
        password=_password(from_stdin=password_stdin),
        email=email,
        operator=operator,
        organisation=organisation,
        role=role.value,
    )
    say(f"{made} signs in at {settings.public_url.rstrip('/')}/sign-in.")
    if not operator and organisation is None:
        say(
            f"{made} belongs to no organisation yet and sees nothing: an admin adds members on the organisation's page,"
            " or make the next one with --organisation."
        )


def set_email(
    name: str = typer.Argument(help="Whose address."),
    address: str = typer.Argument("", help="name@domain; left out: none any more."),
) -> None:
    """Give a user an e-mail address: digests go there, if the user asks for them."""
    from services.accounts import administration  # noqa: PLC0415

    administration.set_email(read_settings(), name, address or None)
    say(f"{name} has the address {address}." if address else f"{name} has no e-mail address.")


def set_password(
    name: str = typer.Argument(help="Whose password."),
    password_stdin: bool = typer.Option(False, "--password-stdin", help="Read the password from standard input."),
) -> None:
    """Give a user a new password; all sessions of that user end."""
    from services.accounts import administration  # noqa: PLC0415

    administration.set_password(read_settings(), name, _password(from_stdin=password_stdin))
    say(f"{name} has a new password. Whoever was signed in as {name} has to sign in again.")


def disable_user(name: str = typer.Argument(help="Who is let in no more.")) -> None:
    """Disable a user: sessions end at once, and the user's tokens let nobody in."""
    from services.accounts import administration  # noqa: PLC0415

    administration.disable_user(read_settings(), name)
    say(f"{name} is disabled. What {name} did stays in the audit log.")


def enable_user(name: str = typer.Argument(help="Who is let in again.")) -> None:
    """Let a disabled user in again, with the password, the tokens and the roles of before."""
    from services.accounts import administration  # noqa: PLC0415

    administration.enable_user(read_settings(), name)
    say(f"{name} may sign in again.")


def set_operator(
    name: str = typer.Argument(help="Who may do everything everywhere."),
    revoke: bool = typer.Option(False, "--revoke", help="No longer: only what the roles of that user allow."),
) -> None:
    """Make a user an operator of the installation, or take that back."""
    from services.accounts import administration  # noqa: PLC0415

    administration.set_operator(read_settings(), name, operator=not revoke)
    say(f"{name} is an operator no more." if revoke else f"{name} is an operator: may do everything everywhere.")


def create_organisation(
    slug: str = typer.Argument(help="Its name in addresses: lower-case letters, digits, '-'."),
    name: str | None = typer.Option(None, help="Its name for people; the same unless told otherwise."),
) -> None:
    """Create an organisation, whose projects are called `organisation/name`."""
    from services.accounts import administration  # noqa: PLC0415

    administration.create_organisation(read_settings(), slug, name)
    say(f"Add its first admin: gradproof user create NAME --organisation {slug} --role admin")


def _password(*, from_stdin: bool) -> str:
    """A password that is typed twice, or the first line of standard input."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
