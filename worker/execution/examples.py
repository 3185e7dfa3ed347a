"""Running a repository's own examples: what became of each, and the calls that were recorded.

As with a batch of targets, everything that befalls the sandbox is a result, and nothing that it says is believed: of
what is heard no more is kept than a report and a request can hold.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.reports.document import ExampleInfo
from services.settings import Settings
from worker.execution.batch import Call, UnfinishedCause
from worker.execution.causes import cause_of
from worker.execution.command import START_ALLOWANCE_S, probe_command
from worker.execution.messages import (
    DoneMessage,
    ExampleMessage,
    MinedMessage,
    ReadyMessage,
    RefusedLineError,
    parse_line,
)
from worker.sandbox.launcher import Launcher
from worker.sandbox.model import Limits, Outcome

# The probe takes five recorded calls for a target; a report of 500 examples is as long as anybody reads.
MOST_CALLS: Final = 5
MOST_EXAMPLES: Final = 500
# Of all recorded calls together: they are stored with the targets and sent with requests.
MOST_TEXT: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Examples:
    """What to run: the examples of the snapshot at `source`, for the calls of `targets` (names)."""

    source: Path
    targets: tuple[str, ...]
    python: Path
    layer: Path | None = None


@dataclass(frozen=True, slots=True)
class ExamplesOutcome:
    """What running them brought. `cause` and `detail` say what ended it before its time; None: nothing did.

    `calls` holds, by the name of a target, its recorded calls, the best first. `peak_memory` in bytes is that of the
    sandbox; None if nobody counted.
    """

    tried: tuple[ExampleInfo, ...]
    calls: Mapping[str, Sequence[Call]]
    cause: UnfinishedCause | None
    detail: str
    torch: str | None
    peak_memory: int | None


def run_examples(
    examples: Examples, *, launcher: Launcher, settings: Settings, cancelled: Callable[[], bool]
) -> ExamplesOutcome:
    """Run them in a sandbox of their own. Raises only what a sandbox raises that can't be set up."""
    budget_s = settings.examples_budget.total_seconds()
    asked = {"mine": {"budget_s": budget_s, "targets": list(examples.targets)}}
    ears = _Ears(frozenset(examples.targets))
    outcome = launcher.run(
        probe_command(examples.source, examples.python, launcher.mode, asked, layer=examples.layer),
        Limits(wall_s=START_ALLOWANCE_S + budget_s, memory=settings.sandbox_memory),
        ears.hear,
        cancelled,
    )
    return ears.conclude(outcome)


@dataclass
class _Ears:
    targets: frozenset[str]
    tried: dict[tuple[str, str], ExampleMessage] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    torch: str | None = None
    done: bool = False
    text: int = 0
    refused: int = 0

    def hear(self, line: bytes) -> None:
        try:
            message = parse_line(line)
        except RefusedLineError:
            self.refused += 1
            return
        match message:
            case ReadyMessage(torch=torch):
                self.torch = torch
            case ExampleMessage(place=place, kind=kind) if len(self.tried) < MOST_EXAMPLES:
                self.tried.setdefault((place, kind), message)
            case MinedMessage():
                self._keep(message)
            case DoneMessage():
                self.done = True
            case _:
                pass

    def _keep(self, message: MinedMessage) -> None:
        recipe = message.recipe
        call = Call(recipe.constructor, tuple(recipe.inputs), recipe.provenance, recipe.found_by)
        kept = self.calls.setdefault(message.target, []) if message.target in self.targets else None
        size = sum(map(len, (call.constructor or "", call.provenance, *call.inputs)))
        if kept is None or len(kept) >= MOST_CALLS or self.text + size > MOST_TEXT:
            return
        if all((call.constructor, call.inputs) != (known.constructor, known.inputs) for known in kept):
            kept.append(call)
            self.text += size

    def conclude(self, outcome: Outcome) -> ExamplesOutcome:
        cause, detail = (None, "") if self.done else cause_of(outcome, refused=self.refused)
        starts = _Starts(message.place for message in self.tried.values())
        captured = Counter(starts.before(call.provenance) for calls in self.calls.values() for call in calls)
        return ExamplesOutcome(
            tried=tuple(
                ExampleInfo(
                    place=message.place,
                    kind=message.kind,
                    outcome=message.outcome,
                    detail=message.detail,
                    captured=captured[message.place],
                )
                for message in self.tried.values()
            ),
            calls={name: tuple(calls) for name, calls in self.calls.items() if calls},
            cause=cause,
            detail=detail,
            torch=self.torch,
            peak_memory=outcome.peak_memory,
        )


class _Starts:
    """The places at which examples begin, to tell in which of them a line lies."""

    def __init__(self, places: Iterable[str]) -> None:
        self._lines: dict[str, list[int]] = {}
        for place in places:
            file, line = _split(place)
            insort(self._lines.setdefault(file, []), line)

    def before(self, provenance: str) -> str | None:
        """The place of the example around the line that a recorded call stands in: `README.md:4` for `README.md:8`."""
        file, line = _split(provenance.partition(";")[0].strip())
        lines = self._lines.get(file, [])
        found = bisect_right(lines, line)
        return f"{file}:{lines[found - 1]}" if found else None


def _split(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdecimal() and len(line) < 10 else 0
