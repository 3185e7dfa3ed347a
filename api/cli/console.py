"""How the command line speaks: people on stderr or a terminal, machines on stdout.

Text that comes from submitted code has had its control characters taken out before it gets here; this module adds
nothing to it but colour.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console

from services.problems import BadInputError


class OutputFileError(BadInputError):
    """The file named by --output can't be written."""

    code = "output-file"
    title = "The output can't be written"


def people() -> Console:
    """The console for everything that is not the result itself: progress, warnings, hints."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for a person, on stderr."""
    typer.echo(text, err=True)


def deliver(text: str, output: Path | None) -> None:
    """Write the result: to `output`, or else to stdout."""
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputFileError(f"{output}: {error.strerror or error}", path=str(output)) from error
