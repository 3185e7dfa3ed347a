"""How far results are off by type and by device, as far as a check measured it: a table for every page alike.

`autocast` measures each narrow type against float64, `device_compare` each tensor of a device against the CPU. The
numbers come out of the sandbox: each is taken only in the shape that the probe gives it. This module must not judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.reports.document import CheckInfo
from services.reports.untrusted import one_line, shorten

_MOST_ROWS: Final = 24
_LONGEST: Final = 80
# The scale of the bars: from half of what float64 can tell apart to being off by all of it.
_FINEST: Final = -16.0
_COARSEST: Final = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """One tensor, or kind of result, in one type on one device.

    `error` is relative to its size, `expected` what rounding alone explains; None where it isn't known or not finite
    (then `not_finite` says what). `length` and `mark` are the same two on a logarithmic scale from 0 to 100.
    """

    check: str
    what: str
    dtype: str
    device: str
    error: float | None
    expected: float | None
    not_finite: str

    @property
    def error_text(self) -> str:
        """The error for a person."""
        return self.not_finite or _text(self.error)

    @property
    def expected_text(self) -> str:
        """What rounding alone explains, for a person."""
        return _text(self.expected)

    @property
    def length(self) -> int:
        """The bar of the error: 0 for none or up to 1e-16, 100 for 1 and beyond and for what isn't finite."""
        return 100 if self.not_finite else _scaled(self.error)

    @property
    def mark(self) -> int | None:
        """Where the expected error stands on the same scale."""
        return None if self.expected is None else _scaled(self.expected)

    @property
    def is_beyond(self) -> bool:
        """Whether it is off by more than six times what rounding explains, as `device_compare` draws the line."""
        return bool(self.not_finite) or (
            self.error is not None and self.expected is not None and self.error > 6 * max(self.expected, 2.0**-24)
        )


def measured_errors(checks: Sequence[CheckInfo]) -> tuple[MeasuredError, ...]:
    """What these checks measured, at most 24 rows, in the order of the checks."""
    rows = [row for check in checks for row in (*_by_type(check), *_by_tensor(check))]
    return tuple(rows[:_MOST_ROWS])


def _by_type(check: CheckInfo) -> list[MeasuredError]:
    return [
        MeasuredError(
            check=check.check,
            what=_words(item.get("worst")) or _words(item.get("of")),
            dtype=_dtype(item),
            device=shorten(one_line(check.device), _LONGEST),
            error=_number(item.get("error")),
            expected=_number(item.get("rounding_alone")),
            not_finite=_not_finite(item),
        )
        for item in _items(check.evidence.get("errors"))
        if isinstance(item.get("dtype"), str)
    ]


def _by_tensor(check: CheckInfo) -> list[MeasuredError]:
    return [
        MeasuredError(
            check=check.check,
            what=_words(item.get("tensor")),
            dtype=_words(check.evidence.get("format")),
            device=shorten(one_line(check.device), _LONGEST),
            error=_number(item.get("device_error")),
            expected=_number(item.get("cpu_error")),
            not_finite=_not_finite(item),
        )
        for item in _items(check.evidence.get("tensors"))
        if "device_error" in item
    ]


def _items(value: object) -> list[Mapping[str, object]]:
    return [item for item in value[:_MOST_ROWS] if isinstance(item, Mapping)] if isinstance(value, list) else []


def _dtype(item: Mapping[str, object]) -> str:
    given = item.get("inputs")
    own = _words(item.get("dtype"))
    return f"{own}, inputs in {_words(given)}" if isinstance(given, str) and given != item.get("dtype") else own


def _words(*values: object) -> str:
    said = dict.fromkeys(one_line(value) for value in values if isinstance(value, str) and value)
    return shorten(", ".join(said), _LONGEST)


def _not_finite(item: Mapping[str, object]) -> str:
    said = item.get("not_finite")
    if isinstance(said, list) and said:
        return f"not finite: {_words(*said[:4])}" if any(isinstance(name, str) for name in said) else "not finite"
    error = item.get("error", item.get("device_error"))
    return "not finite" if isinstance(error, str) and error in {"nan", "inf", "-inf"} else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _text(value: float | None) -> str:
    return "not known" if value is None else "none" if value == 0 else f"{value:.2g}"


def _scaled(value: float | None) -> int:
    if value is None or value <= 0:
        return 0
    share = (math.log10(value) - _FINEST) / (_COARSEST - _FINEST)
    return round(100 * min(max(share, 0.0), 1.0))
