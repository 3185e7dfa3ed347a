"""The `gradproof` command: the commands put together, and one place where failures become exit codes.

0 the gate passed; 1 the gate failed; 2 bad usage or unusable input; 3 Gradproof or its surroundings failed. Nobody
sees a traceback unless GRADPROOF_DEBUG is set.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import typer
from typer.exceptions import TyperException

from api.cli.console import say
from services.problems import GradproofError
from services.version import version

# What a shell reports for a process that SIGINT ended.
INTERRUPTED: Final = 130

# Which module brings which command. `check` is started anew for every commit and every pause of typing: what the other
# commands need (a web client, a database, a broker) costs ten times of what reading a file does, so it stays unloaded.
_MODULES: Final = {
    "check": ("check",),
    "fix": ("fix",),
    "documentation": ("rules", "explain"),
    "submission": ("submit",),
    "processes": ("serve", "api", "worker"),
    "machine": ("doctor",),
    "status": ("status",),
    "health": ("health",),
    "administration": ("db", "token"),
}


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"gradproof {version()}")
        raise typer.Exit


def _root(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    pass


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line with what these arguments ask for; with every command unless they begin with one."""
    app = typer.Typer(
        name="gradproof",
        help="Proves, or disproves, that PyTorch model code computes the gradients its author believes it does.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    asked = arguments[0] if arguments else ""
    wanted = [module for module, commands in _MODULES.items() if asked in commands]
    for module in wanted or _MODULES:
        importlib.import_module(f"api.cli.{module}").register(app)
    return app


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line with these arguments; returns the exit code."""
    try:
        result = command_line(arguments)(args=arguments, prog_name="gradproof", standalone_mode=False)
    except typer.Exit as end:
        result = end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person gets a sentence, never a traceback
        return _explain(error)
    if result == INTERRUPTED:  # typer, too, returns this for Ctrl-C
        say("Interrupted.")
    return result if isinstance(result, int) else 0


def _explain(error: Exception) -> int:
    """Tell a person what went wrong; returns the exit code."""
    match error:
        case TyperException():
            # Usage errors can show the command's usage with themselves; the base class does not promise it.
            show = getattr(error, "show", lambda: say(str(error)))
            show()
            return 2
        case GradproofError():
            repeated = error.message.lower().startswith(error.title.lower())
            say(f"gradproof: {error.message}" if repeated else f"gradproof: {error.title}: {error.message}")
            for key, value in error.details.items():
                if value not in (None, "", [], {}) and str(value) not in error.message:  # what was said already
                    say(f"  {key}: {value}")
            return error.exit_code
        case BrokenPipeError():
            # The reader of our output has gone (`gradproof … | head`): not a failure, and nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case _:
            if os.environ.get("GRADPROOF_DEBUG"):
                traceback.print_exception(error)
            say(f"gradproof: internal error: {type(error).__name__}: {error}")
            say("  This is a fault of Gradproof. GRADPROOF_DEBUG=1 shows where; please report it.")
            return 3
