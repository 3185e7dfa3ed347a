"""How many units in the last place the numbers of two ways of running are apart: a chart for each type and device.

`compile_equivalence` and `device_compare` count that for outputs and gradients (`units_apart`), and how many numbers
are further off than they allow. The counts come out of the sandbox: each is taken only in the shape that the probe
gives it. This module must not judge: what a sentence makes of the counts is what the check's verdict says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.reports.document import CheckInfo, CheckVerdict
from services.reports.untrusted import one_line, shorten

KEY: Final = "units_apart"
# Where the buckets of the probe end; the last has no end.
_ENDS: Final = (0, *(2**power for power in range(24)), None)
_MOST_CHARTS: Final = 12
_LONGEST: Final = 80
_LARGEST: Final = 2**63 - 1  # the probe tells no more than this
_FAR: Final = 1024  # what a sentence calls far apart: in float32, about one part in ten thousand

# The picture, in units of its box. As wide as a telephone shows it, so that its texts can be read there.
WIDTH: Final = 320
HEIGHT: Final = 132
_LEFT: Final = 30
_TOP: Final = 14  # room for the sign above a bar
_GROUND: Final = HEIGHT - 18
# Up to 1,024 units are shown in any case: that a few units are few has to be seen.
_FEWEST_COLUMNS: Final = 12
_TICKS: Final[Mapping[int, str]] = {0: "0", 1: "1", 5: "16", 9: "256", 13: "4k", 17: "64k", 21: "1M", 25: "more"}
_NOTHING: Final = 0.5  # stands on the ground, so that a single number has a bar as well


@dataclass(frozen=True, slots=True)
class Bar:
    """The numbers that are so many units apart; `beyond` of them further off than the check allows.

    `x`, `width` and the rest are places in the picture: both bars stand on the ground, and are logarithmic.
    """

    label: str
    tick: str
    elements: int
    beyond: int
    x: float
    width: float
    y: float
    beyond_y: float

    @property
    def middle(self) -> float:
        """Where what belongs to it is written."""
        return round(self.x + self.width / 2, 2)

    @property
    def height(self) -> float:
        """Of all its numbers."""
        return round(_GROUND - self.y, 2)

    @property
    def beyond_height(self) -> float:
        """Of those that are further off than the check allows."""
        return round(_GROUND - self.beyond_y, 2)


@dataclass(frozen=True, slots=True)
class Line:
    """A height of the picture, and how many numbers it stands for."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class UnitHistogram:
    """One type of results, of one way of running against another. `bars` is empty where all numbers are the same."""

    check: str
    compared: str
    against: str
    dtype: str
    device: str
    verdict: CheckVerdict
    explained: bool
    buckets: tuple[tuple[int, int], ...]
    largest: int
    worst: str
    not_finite: int
    left_out: int
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def title(self) -> str:
        """What is compared with what."""
        on = "" if self.device in self.compared else f" on {self.device}"
        return f"{self.dtype}{on}, {self.compared} against {self.against}"

    @property
    def elements(self) -> int:
        """All numbers that were compared."""
        return sum(number for number, _ in self.buckets) + self.not_finite

    @property
    def beyond(self) -> int:
        """Those further off than the check allows."""
        return sum(beyond for _, beyond in self.buckets)

    @property
    def sentence(self) -> str:
        """How to read it."""
        return ". ".join(self._said()) + "."

    def _said(self) -> list[str]:
        same = self.buckets[0][0]
        said = []
        if same == self.elements:
            said = [f"All {same:,} numbers are the same"] if same else []
        else:
            said = [f"{_share(same, self.elements)} of the {self.elements:,} numbers agree exactly{self._others()}"]
        if self.not_finite:
            said.append(f"{self.not_finite:,} {_are(self.not_finite)} infinite or NaN on one side only")
        if self.left_out:
            said.append(f"{_counted(self.left_out, 'result')} had no counterpart of the same shape and type")
        return said or ["There were no numbers to compare"]

    def _others(self) -> str:
        if not self.largest:
            return ""
        if not self.beyond:
            apart = _counted(self.largest, "unit")
            return f"; the others are up to {apart} apart, none further than the check allows: that is rounding"
        far = sum(beyond for (_, beyond), end in zip(self.buckets, _ENDS, strict=True) if end is None or end > _FAR)
        of_them = "" if far == self.beyond else f" {far:,} of them"
        size = f"{of_them} by more than {_FAR:,} units" if far else f" by up to {_counted(self.largest, 'unit')}"
        return f"; {self.beyond:,} {_are(self.beyond)} further off than the check allows,{size}: {self._meaning()}"

    def _meaning(self) -> str:
        if self.verdict == "fail":
            return "that is not rounding"
        if self.verdict != "pass":
            return "the check says why that decides nothing"
        if self.explained:
            return "the check says why that is no fault"
        return "the check judges whole tensors, and takes it for rounding"


def unit_histograms(checks: Sequence[CheckInfo]) -> tuple[UnitHistogram, ...]:
    """What these checks counted, at most 12, with as many columns in each: so they can be laid beside each other."""
    found = [read for check in checks for record in _records(check) if (read := _read(check, record)) is not None]
    found = found[:_MOST_CHARTS]
    last = max((number for one in found for number, (elements, _) in enumerate(one.buckets) if elements), default=0)
    columns = max(_FEWEST_COLUMNS, last + 1)
    return tuple(_drawn(one, columns) for one in found)


def unit_sentences(check: CheckInfo) -> tuple[str, ...]:
    """The same in words, for what shows no pictures."""
    return tuple(f"{one.title}: {one.sentence}" for one in unit_histograms([check]))


def _records(check: CheckInfo) -> list[object]:
    value = check.evidence.get(KEY)
    return value[:_MOST_CHARTS] if isinstance(value, list) else []


def _read(check: CheckInfo, record: object) -> UnitHistogram | None:
    if not isinstance(record, Mapping):
        return None
    buckets = _buckets(record.get("buckets"))
    words = [_words(record.get(key)) for key in ("compared", "against", "dtype")]
    if buckets is None or not all(words):
        return None
    return UnitHistogram(
        check=check.check,
        compared=words[0],
        against=words[1],
        dtype=words[2],
        device=_words(check.device),
        verdict=check.verdict,
        explained=check.diagnosis is not None,
        buckets=buckets,
        largest=_number(record.get("largest")) or 0,
        worst=_words(record.get("worst")),
        not_finite=_number(record.get("not_finite")) or 0,
        left_out=_number(record.get("left_out")) or 0,
    )


def _buckets(value: object) -> tuple[tuple[int, int], ...] | None:
    """Elements and how many of them are beyond, for each of `_ENDS`."""
    if not isinstance(value, list) or len(value) > len(_ENDS):
        return None
    found = dict.fromkeys(_ENDS, (0, 0))
    for item in value:
        end = item.get("up_to", 0) if isinstance(item, Mapping) else 0
        if not isinstance(item, Mapping) or "up_to" not in item or isinstance(end, bool | float) or end not in _ENDS:
            return None
        elements, beyond = _number(item.get("elements")), _number(item.get("beyond"))
        if elements is None or beyond is None:
            return None
        found[end] = (elements, min(beyond, elements))
    return tuple(found.values())


def _drawn(told: UnitHistogram, columns: int) -> UnitHistogram:
    if not any(elements for elements, _ in told.buckets[1:]):
        return told
    most = max(elements for elements, _ in told.buckets)
    step = (WIDTH - _LEFT) / columns
    bars = tuple(
        Bar(
            label=_label(number),
            tick=_TICKS.get(number, ""),
            elements=elements,
            beyond=beyond,
            x=round(_LEFT + number * step + step * 0.08, 2),
            width=round(step * 0.84, 2),
            y=_height(elements, most),
            beyond_y=_height(beyond, most),
        )
        for number, (elements, beyond) in enumerate(told.buckets[:columns])
    )
    powers = range(0, int(math.log10(most)) + 1, 1 if most < 10**4 else 2)
    return replace(told, bars=bars, lines=tuple(Line(_height(10**power, most), _short(power)) for power in powers))


def _height(number: int, most: int) -> float:
    """From above, as SVG has it."""
    if number < 1:
        return float(_GROUND)
    return round(_GROUND - (_GROUND - _TOP) * math.log(number / _NOTHING) / math.log(most / _NOTHING), 2)


def _label(number: int) -> str:
    end = _ENDS[number]
    if end is None:
        return f"more than {_ENDS[number - 1]:,}"
    before = (_ENDS[number - 1] or 0) + 1 if number else 0
    return f"{end:,}" if before == end else f"{before:,} to {end:,}"


def _short(power: int) -> str:
    thousands, rest = divmod(power, 3)
    return f"{10**rest}{'kMGTPE'[thousands - 1] if thousands else ''}"


def _share(part: int, whole: int) -> str:
    percent = round(100 * part / whole)
    if not part:
        return "None"
    return "Less than 1 %" if percent == 0 else "More than 99 %" if percent == 100 else f"{percent} %"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _counted(number: int, noun: str) -> str:
    text = f"{number:,}" if number < 10**9 else f"{number:.1e}"
    return f"{text} {noun}{'' if number == 1 else 's'}"


def _words(value: object) -> str:
    return shorten(one_line(value), _LONGEST) if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None
