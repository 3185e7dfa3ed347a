"""Draws a wrong gradient: the Jacobian that autograd returned, the right one, and their difference, as one SVG.

Three heat maps beside each other, for a page, a report or the documentation. The numbers come out of the sandbox, so
they are validated here and nothing of them reaches the picture but numbers and escaped names. This module must not
know reports, checks or torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from services.reports.untrusted import one_line, shorten

LARGEST: Final = 32  # rows or columns: beyond that a cell is too small to point at
_LONGEST_NAME: Final = 60

# ColorBrewer's blues and oranges meet in a light grey: told apart with every common kind of colour blindness, and the
# ends differ from the middle in lightness too, so that a print without colour still shows where something is wrong.
_BELOW: Final = (0x21, 0x66, 0xAC)
_ZERO: Final = (0xF7, 0xF7, 0xF7)
_ABOVE: Final = (0xB3, 0x58, 0x06)
_NOT_FINITE: Final = "#1d2126"

_PANEL: Final = 168  # the size that a heat map fills at most, in pixels
_SMALLEST_CELL: Final = 5
_LARGEST_CELL: Final = 28
_GAP: Final = 28
_MARGIN: Final = 10
_HEAD: Final = 24  # above the maps: their titles
_FOOT: Final = 58  # below them: what the axes are, and the scale
_SCALE_STEPS: Final = 9
_NARROWEST_PANEL: Final = 140  # room for a title

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Jacobians:
    """Two matrices of one shape: a row for each element of the output, a column for each element of the variable."""

    variable: str
    output: str
    analytic: Matrix
    reference: Matrix

    @property
    def rows(self) -> int:
        """Elements of the output."""
        return len(self.analytic)

    @property
    def columns(self) -> int:
        """Elements of the variable."""
        return len(self.analytic[0])

    @property
    def cells(self) -> int:
        """How many cells a picture of these has."""
        return 3 * self.rows * self.columns

    @property
    def difference(self) -> Matrix:
        """What autograd returned less what is right; zero where both are the same, be that infinite or NaN."""
        return tuple(
            tuple(_less(one, other) for one, other in zip(*rows, strict=True))
            for rows in zip(self.analytic, self.reference, strict=True)
        )

    @property
    def worst(self) -> tuple[int, int]:
        """Row and column of the largest difference; one that isn't finite is larger than all others."""
        places = ((row, column) for row in range(self.rows) for column in range(self.columns))
        difference = self.difference
        return max(places, key=lambda place: _size(difference[place[0]][place[1]]))


@dataclass(frozen=True, slots=True)
class _Cell:
    width: int
    height: int


def read_jacobians(value: object) -> Jacobians | None:
    """The evidence of a check as two matrices; None if it is anything else, too large or empty."""
    if not isinstance(value, Mapping):
        return None
    analytic, reference = _matrix(value.get("analytic")), _matrix(value.get("reference"))
    if analytic is None or reference is None:
        return None
    if (len(analytic), len(analytic[0])) != (len(reference), len(reference[0])):
        return None
    return Jacobians(
        _name(value.get("variable"), "the input"), _name(value.get("output"), "the output"), analytic, reference
    )


def jacobian_picture(jacobians: Jacobians, *, identity: str = "jacobians", standalone: bool = False) -> str:
    """The picture as SVG without scripts or styles; each number shows when it is pointed at.

    `identity` begins the ids in it, so that a page can hold several. `standalone`: a file of its own, with a
    background, where a page would set the colour of the text.
    """
    cell = _Cell(_edge(jacobians.columns), _edge(jacobians.rows))
    panel_width = max(cell.width * jacobians.columns, _NARROWEST_PANEL)
    width = 2 * _MARGIN + 3 * panel_width + 2 * _GAP
    height = 2 * _MARGIN + _HEAD + cell.height * jacobians.rows + _FOOT
    shared = _largest((*jacobians.analytic, *jacobians.reference))
    own = _largest(jacobians.difference)
    panels = (
        ("autograd returns", jacobians.analytic, shared),
        ("reference", jacobians.reference, shared),
        ("difference", jacobians.difference, own),
    )
    name = escape(identity)
    extra = ' xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif"' if standalone else ""
    text_colour = "#1d2126" if standalone else "currentColor"
    lines = [
        f'<svg{extra} viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" font-size="12">',
        f'<title id="{name}-title">{escape(_title(jacobians))}</title>',
        f'<desc id="{name}-desc">{escape(_description(jacobians))}</desc>',
    ]
    if standalone:
        lines.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    for number, (title, matrix, scale) in enumerate(panels):
        left = _MARGIN + number * (panel_width + _GAP)
        lines += [
            f'<text x="{left}" y="{_MARGIN + 12}" fill="{text_colour}" font-weight="600">{title}</text>',
            *_map(matrix, scale, left, cell, jacobians.worst),
            *_scale(scale, left, _MARGIN + _HEAD + cell.height * jacobians.rows + 8, text_colour),
        ]
    axes = f"rows: {jacobians.output}; columns: {jacobians.variable}; framed: the largest difference"
    lines.append(
        f'<text x="{_MARGIN}" y="{height - _MARGIN - 2}" fill="{text_colour}">'
        f"{escape(shorten(axes, width // 7))}</text>"
    )
    return "\n".join([*lines, "</svg>"])


def _title(jacobians: Jacobians) -> str:
    return f"Jacobian of {jacobians.output} by {jacobians.variable}: autograd against the reference"


def _description(jacobians: Jacobians) -> str:
    row, column = jacobians.worst
    returned, right = jacobians.analytic[row][column], jacobians.reference[row][column]
    return (
        f"Three heat maps of {jacobians.rows} rows and {jacobians.columns} columns. They differ most at row {row}, "
        f"column {column}: autograd returns {returned:.6g}, the reference is {right:.6g}."
    )


def _edge(number: int) -> int:
    return max(_SMALLEST_CELL, min(_LARGEST_CELL, _PANEL // number))


def _map(matrix: Matrix, scale: float, left: int, cell: _Cell, worst: tuple[int, int]) -> Iterable[str]:
    top = _MARGIN + _HEAD
    frame = f'x="{left}" y="{top}" width="{cell.width * len(matrix[0])}" height="{cell.height * len(matrix)}"'
    # Zeros are the background: most Jacobians are sparse, and a page has a picture for each failure.
    yield f'<rect {frame} fill="{_colour(0.0, 1.0)}"><title>0</title></rect>'
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            if value == 0:
                continue
            x, y = left + column * cell.width, top + row * cell.height
            yield (
                f'<rect x="{x}" y="{y}" width="{cell.width}" height="{cell.height}" fill="{_colour(value, scale)}">'
                f"<title>row {row}, column {column}: {value:.6g}</title></rect>"
            )
            if not math.isfinite(value):  # a shape of its own: no colour of the scale means NaN
                across, down = cell.width - 2, cell.height - 2
                yield (
                    f'<path d="M{x + 1} {y + 1}l{across} {down}m0 {-down}l{-across} {down}" '
                    'stroke="#ffffff" fill="none" pointer-events="none"/>'
                )
    yield f'<rect {frame} fill="none" stroke="#8a9099" pointer-events="none"/>'
    row, column = worst
    yield (
        f'<rect x="{left + column * cell.width}" y="{top + row * cell.height}" width="{cell.width}" '
        f'height="{cell.height}" fill="none" stroke="{_NOT_FINITE}" stroke-width="2" pointer-events="none"/>'
    )


def _scale(scale: float, left: int, top: int, text_colour: str) -> Iterable[str]:
    step = _NARROWEST_PANEL // _SCALE_STEPS
    for number in range(_SCALE_STEPS):
        value = 2 * number / (_SCALE_STEPS - 1) - 1
        yield (
            f'<rect x="{left + number * step}" y="{top}" width="{step}" height="8" fill="{_colour(value, 1.0)}" '
            'pointer-events="none"/>'
        )
    end = left + step * _SCALE_STEPS
    yield f'<text x="{left}" y="{top + 20}" fill="{text_colour}" font-size="10">{-scale:.3g}</text>'
    yield (f'<text x="{end}" y="{top + 20}" fill="{text_colour}" font-size="10" text-anchor="end">{scale:.3g}</text>')


def _colour(value: float, scale: float) -> str:
    if not math.isfinite(value):
        return _NOT_FINITE
    part = min(abs(value) / scale, 1.0)
    end = _ABOVE if value > 0 else _BELOW
    mixed = (round(zero + part * (other - zero)) for zero, other in zip(_ZERO, end, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _largest(matrix: Sequence[Sequence[float]]) -> float:
    """The largest finite size, for the ends of the scale; 1 where there is none."""
    return max((abs(value) for row in matrix for value in row if math.isfinite(value)), default=0.0) or 1.0


def _less(one: float, other: float) -> float:
    same = one == other or (math.isnan(one) and math.isnan(other))
    return 0.0 if same else one - other


def _size(value: float) -> float:
    return abs(value) if math.isfinite(value) else math.inf


def _name(value: object, otherwise: str) -> str:
    return shorten(one_line(value), _LONGEST_NAME) or otherwise if isinstance(value, str) else otherwise


def _matrix(value: object) -> Matrix | None:
    if not isinstance(value, list) or not 1 <= len(value) <= LARGEST:
        return None
    rows: list[tuple[float, ...]] = []
    for row in value:
        if not isinstance(row, list) or not 1 <= len(row) <= LARGEST:
            return None
        numbers = [_number(item) for item in row]
        if None in numbers:
            return None
        rows.append(tuple(number for number in numbers if number is not None))
    return tuple(rows) if len({len(row) for row in rows}) == 1 else None


def _number(value: object) -> float | None:
    """JSON knows no NaN: it comes as a word."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and value not in {"nan", "inf", "-inf"}:
        return None
    try:
        return float(value)
    except OverflowError:
        return None
