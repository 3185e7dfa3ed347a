"""`gradproof check --write-targets`: the harnesses that ran, as declared targets of the repository.

A file may follow the option or not, which the option parser does not know: what follows counts as the file if it ends
in `.toml` or is `-`, and is a path to check otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from typer.core import TyperCommand

from api.cli.console import deliver, people
from services.configuration import is_configured
from services.configuration.model import TargetTable
from services.configuration.writing import (
    TargetsFileError,
    configuration_file,
    declarable,
    targets_text,
    with_targets,
    write,
)
from services.reports.document import Report
from services.snapshots.places import top_of

OPTION: Final = "--write-targets"
STDOUT: Final = "-"
OF_THE_DIRECTORY: Final = "+"


class CommandWithTargets(TyperCommand):
    """A command whose option may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the option its value where it has none."""
        given = list(args)
        for index, word in enumerate(args[: args.index("--")] if "--" in args else args):
            following = args[index + 1] if index + 1 < len(args) else ""
            if word == OPTION and not (following == STDOUT or following.endswith(".toml")):
                given[index] = f"{OPTION}={OF_THE_DIRECTORY}"
        return super().parse_args(ctx, given)


def place_for(word: str, paths: Sequence[str], root: Path | None) -> Path | None:
    """Where targets go; None for stdout, which is for a single file, an archive or a URL, too."""
    if word == STDOUT:
        return None
    if word != OF_THE_DIRECTORY:
        return Path(word)
    places = [Path(path) for path in paths]
    if not all(path.exists() for path in places) or (len(places) == 1 and places[0].is_file()):
        return None
    return configuration_file(top_of([path.resolve() for path in places], is_configured, root=root)[0])


def require_usable(place: Path | None, *, static_only: bool, stdout_is_taken: bool) -> None:
    """Before anything is run. Raises `TargetsFileError`."""
    if static_only:
        raise TargetsFileError(f"{OPTION} goes with running the code: leave --static-only out")
    if place is None and stdout_is_taken:
        raise TargetsFileError(
            f"the targets and the report can't both go to stdout: name a file with {OPTION} or --output"
        )
    if place is not None:
        with_targets(place, ())
        if not place.resolve().parent.is_dir():
            raise TargetsFileError(f"{place}: there is no such directory", path=str(place))


def write_harnesses(report: Report, place: Path | None) -> None:
    """Write the harnesses that ran. Raises `TargetsFileError`."""
    tables: dict[str, TargetTable] = {}
    unfit = []
    for target in report.targets:
        if target.harness is None or target.harness.source == "declared":
            continue
        table = declarable(target.name, target.harness.constructor, target.harness.inputs)
        if table is None:
            unfit.append(target.name)
        else:
            tables.setdefault(target.name, table)
    if place is None:
        deliver(targets_text(tables.values()).lstrip("\n"), None)
        added, left_out = len(tables), unfit
    else:
        written = with_targets(place, tables.values())
        if written.added:
            write(place, written.text)
        added, left_out = len(written.added), [*unfit, *written.left_out]
        people().print(f"{added} targets are declared in {escape(str(place))} from now on.", highlight=False)
    if left_out:
        people().print(f"{len(left_out)} could not be declared: {escape(', '.join(left_out[:5]))}", highlight=False)
