"""A picture of two Jacobians shows each number where it belongs, and lets nothing else into the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from services.reports.jacobian_picture import LARGEST, Jacobians, jacobian_picture, read_jacobians
from services.reports.untrusted import one_line
from tests.reports.samples import HOSTILE_TEXTS, check, failing, norm, report_of, target, wrong_gradient
from tools import draw_jacobians

SVG = "{http://www.w3.org/2000/svg}"


def record(**changes: Any) -> dict[str, Any]:
    """What a check says of a function of three elements with two outputs, wrong in one cell."""
    values = {
        "variable": "x",
        "output": "y",
        "rows": 2,
        "columns": 3,
        "analytic": [[1.0, 0.0, -4.0], [0.0, 2.0, 0.0]],
        "reference": [[1.0, 0.0, 4.0], [0.0, 2.0, 0.0]],
    }
    return values | changes


def read(**changes: Any) -> Jacobians:
    found = read_jacobians(record(**changes))
    assert found is not None
    return found


def titles(svg: str) -> list[str]:
    """What shows when a cell is pointed at, in the order of the panels."""
    return [element.text or "" for rect in ET.fromstring(svg).iter(f"{SVG}rect") for element in rect]


def fills(svg: str) -> dict[str, str]:
    return {
        element.text or "": rect.get("fill") or "" for rect in ET.fromstring(svg).iter(f"{SVG}rect") for element in rect
    }


def test_each_panel_shows_its_numbers_and_zeros_are_the_background() -> None:
    assert titles(jacobian_picture(read(), standalone=True)) == [
        *("0", "row 0, column 0: 1", "row 0, column 2: -4", "row 1, column 1: 2"),
        *("0", "row 0, column 0: 1", "row 0, column 2: 4", "row 1, column 1: 2"),
        *("0", "row 0, column 2: -8"),
    ]


def test_the_picture_says_in_words_what_it_shows() -> None:
    root = ET.fromstring(jacobian_picture(read(), identity="a", standalone=True))
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text == "Jacobian of y by x: autograd against the reference"
    assert description.text is not None
    assert "differ most at row 0, column 2: autograd returns -4, the reference is 4" in description.text
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}" == "a-title a-desc"
    assert root.get("role") == "img"


def test_the_sign_is_a_hue_and_the_size_is_a_lightness() -> None:
    shown = fills(jacobian_picture(read(), standalone=True))
    above, below, little = shown["row 0, column 2: 4"], shown["row 0, column 2: -4"], shown["row 0, column 0: 1"]
    channels = {name: tuple(int(name[start : start + 2], 16) for start in (1, 3, 5)) for name in (above, below, little)}
    assert channels[above][0] > channels[above][2]  # orange: more red than blue
    assert channels[below][0] < channels[below][2]
    assert sum(channels[little]) > sum(channels[above])


def test_what_is_not_finite_has_a_colour_and_a_mark_of_its_own() -> None:
    svg = jacobian_picture(read(analytic=[[1.0, 0.0, "nan"], [0.0, "-inf", 0.0]]), standalone=True)
    shown = fills(svg)
    assert shown["row 0, column 2: nan"] == shown["row 1, column 1: -inf"] == "#1d2126"
    assert svg.count("<path") == 4  # two in the first panel, two in the difference
    assert read(analytic=[[1.0, 0.0, "nan"], [0.0, 2.0, 0.0]]).worst == (0, 2)


def test_what_is_infinite_or_nan_on_both_sides_is_no_difference() -> None:
    both: list[list[Any]] = [["nan", "inf", 1.0]]
    assert read(analytic=both, reference=both).difference == ((0.0, 0.0, 0.0),)


def test_two_pictures_on_one_page_share_no_id() -> None:
    ids = [
        element.get("id")
        for name in ("a", "b")
        for element in ET.fromstring(jacobian_picture(read(), identity=name)).iter()
        if element.get("id")
    ]
    assert len(ids) == len(set(ids)) == 4


def test_a_picture_within_a_page_takes_the_colour_of_its_text_and_needs_no_style() -> None:
    svg = jacobian_picture(read())
    assert "currentColor" in svg
    assert "style" not in svg
    assert "#ffffff" not in svg


@pytest.mark.parametrize("hostile", HOSTILE_TEXTS)
def test_hostile_names_stay_text(hostile: str) -> None:
    svg = jacobian_picture(read(variable=hostile, output=hostile), standalone=True)
    assert {element.tag for element in ET.fromstring(svg).iter()} <= {
        f"{SVG}{name}" for name in ("svg", "title", "desc", "rect", "text", "path")
    }
    assert (one_line(hostile)[:20] or "the input") in " ".join(ET.fromstring(svg).itertext())


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "picture",
        record(analytic=None),
        record(analytic=[]),
        record(analytic=[[]]),
        record(analytic=[[1.0], [1.0, 2.0]]),
        record(analytic=[[1.0, 0.0], [0.0, 1.0]]),
        record(analytic=[["1", 0.0, 0.0], [0.0, 0.0, 0.0]]),
        record(analytic=[[True, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        record(analytic=[[10**400, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        record(analytic=[[0.0] * 3] * (LARGEST + 1), reference=[[0.0] * 3] * (LARGEST + 1)),
        record(analytic=[[0.0] * (LARGEST + 1)], reference=[[0.0] * (LARGEST + 1)]),
    ],
)
def test_anything_else_is_no_picture(value: object) -> None:
    assert read_jacobians(value) is None


def test_the_largest_picture_stays_within_a_few_hundred_kilobytes() -> None:
    full = [[float(row * LARGEST + column + 1) for column in range(LARGEST)] for row in range(LARGEST)]
    other = [[-value for value in row] for row in full]
    svg = jacobian_picture(read(analytic=full, reference=other))
    assert len(svg) < 400_000
    json.dumps(svg)


def test_a_picture_is_drawn_from_a_report_as_a_file_of_its_own(tmp_path: Path) -> None:
    report = report_of((), (target(checks=(check(),)), norm(checks=(failing(), wrong_gradient()))))
    (tmp_path / "report.json").write_text(report.model_dump_json(), encoding="utf-8")
    picture = tmp_path / "images" / "wrong.svg"
    assert draw_jacobians.main([str(tmp_path / "report.json"), str(picture)]) == 0
    assert ET.fromstring(picture.read_text(encoding="utf-8")).tag == f"{SVG}svg"
    other = [str(tmp_path / "report.json"), str(tmp_path / "none.svg"), "--target", "pkg.a:Square"]
    assert draw_jacobians.main(other) == 1
    assert not (tmp_path / "none.svg").exists()
