"""The picture of a graph: boxes that don't overlap, edges between them, colours where something was found, and no
markup but our own whatever a name says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from services.reports.formats import FORMATS
from services.reports.formats.base import Rendering
from services.reports.formats.html import graph_style
from services.reports.graph_layout import MOST_IN_A_ROW, Layout, place
from services.reports.graph_picture import MOST_NODES, Graph, Mark, graph_picture, in_bytes, read_graph
from services.reports.untrusted import one_line
from tests.reports.samples import HOSTILE_TEXTS, SOURCE, check, failing, finding, norm, report_of, target
from tools import draw_graph

SVG = "{http://www.w3.org/2000/svg}"
STYLE = graph_style()
LETTER = 0.602  # of DejaVu Sans Mono, the widest of the fonts that are asked for


def box(kind: str = "operation", label: str = "add", reads: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    return {"kind": kind, "label": label, "from": list(reads), "lines": []} | more


def record(*boxes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nodes": list(boxes), "files": ["pkg/a.py"], "operations": len(boxes), "whole": True} | more


def diamond(**changes: Any) -> dict[str, Any]:
    """`x / x.norm()` of the sample."""
    return record(
        box("input", "x", shape=[2, 3]),
        box(label="linalg_vector_norm", reads=(0,), lines=[[0, 18, 18]], shape=[], saved_bytes=4),
        box(label="div", reads=(0, 1), lines=[[0, 18, 18]], shape=[2, 3], saved_bytes=48, backward_ms=0.01, **changes),
        box("output", "output", (2,)),
    )


def read(value: dict[str, Any]) -> Graph:
    graph = read_graph(value)
    assert graph is not None
    return graph


def crowded(seed: int, number: int = MOST_NODES) -> dict[str, Any]:
    """As many boxes as there may be, with long names, and edges near and far."""
    draw = random.Random(seed)
    boxes = [
        box(
            label=draw.choice(["add", "scaled_dot_product_attention_of_a_long_name", "混合注意力层的名称很长很长很长"]),
            reads=tuple(sorted({draw.randrange(index) for _ in range(draw.choice([0, 1, 1, 2, 5]))} if index else ())),
            about=draw.choice(["", "layers.11.attention.projection.dropout"]),
            operations=draw.choice([1, 64]),
            lost={"none": ["weight", "bias"]} if draw.random() < 0.1 else {},
        )
        for index in range(number)
    ]
    return record(*boxes)


def rectangles(svg: str) -> list[tuple[float, float, float, float]]:
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        left, top, width, height = (float(rect.get(name) or "") for name in ("x", "y", "width", "height"))
        found.append((left, top, left + width, top + height))
    return found


def cells(text: str) -> int:
    return sum(2 if ord(letter) > 0x2E80 else 1 for letter in text)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_a_hundred_boxes_none_overlaps_another_and_every_text_lies_in_its_own(seed: int) -> None:
    svg = graph_picture(read(crowded(seed)), style=STYLE)
    boxes = rectangles(svg)
    assert len(boxes) == MOST_NODES
    for index, (left, top, right, bottom) in enumerate(boxes):
        for other_left, other_top, other_right, other_bottom in boxes[:index]:
            assert right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
    for group, (left, top, right, bottom) in zip(ET.fromstring(svg).iter(f"{SVG}g"), boxes, strict=True):
        for text in group.iter(f"{SVG}text"):
            x, y, size = (float(text.get(name) or "") for name in ("x", "y", "font-size"))
            assert left < x
            assert x + cells(text.text or "") * size * LETTER < right
            assert top < y - 0.8 * size
            assert y + 0.25 * size < bottom
    root = ET.fromstring(svg)
    width, height = float(root.get("width") or ""), float(root.get("height") or "")
    assert all(left >= 0 and top >= 0 and right <= width and bottom <= height for left, top, right, bottom in boxes)


@pytest.mark.parametrize("seed", [4, 5])
def test_no_edge_runs_through_a_box(seed: int) -> None:
    sizes = [(80.0, 40.0 + 13.0 * (index % 2)) for index in range(60)]
    draw = random.Random(seed)
    reads = [sorted({draw.randrange(index) for _ in range(2)}) if index > 3 else [] for index in range(60)]
    layout = place(sizes, reads)
    for start, end in (piece for ways in layout.ways for piece in ways):
        for (left, top), (width, height) in zip(layout.boxes, sizes, strict=True):
            # Between two rows, or straight down beside all boxes.
            if start[1] < top + height and end[1] > top:
                assert start[0] == end[0]
                assert not left < start[0] < left + width


def test_what_is_read_stands_above_what_reads_it_and_rows_stay_narrow() -> None:
    reads: list[list[int]] = [[], *([0] for _ in range(40)), list(range(1, 41))]
    layout: Layout = place([(70.0, 30.0)] * 42, reads)
    assert all(layout.boxes[source][1] < layout.boxes[index][1] for index, read in enumerate(reads) for source in read)
    tops = [top for _, top in layout.boxes]
    assert max(tops.count(top) for top in tops) <= MOST_IN_A_ROW


def test_what_reads_nothing_stands_right_above_its_reader() -> None:
    layout = place([(70.0, 30.0)] * 6, [[], [0], [1], [2], [], [3, 4]])
    assert layout.boxes[4][1] == layout.boxes[3][1]


def test_a_box_is_coloured_by_what_was_found_at_its_line() -> None:
    def classes(*marks: Mark) -> list[str]:
        return [
            group.get("class") or ""
            for group in ET.fromstring(graph_picture(graph, marks, style=STYLE)).iter(f"{SVG}g")
        ]

    graph = read(diamond())
    plain = ["node is-input", "node is-operation", "node is-operation", "node is-output"]
    assert classes() == classes(Mark("pkg/b.py", 18, 18, "error", "other file")) == plain
    assert classes(Mark("pkg/a.py", 17, 17, "error", "other line")) == plain
    assert classes(Mark("pkg/a.py", 17, 18, "warning", "GP102"))[1:3] == ["node is-operation hit-warning"] * 2
    both = (Mark("pkg/a.py", 18, 18, "note", "a"), Mark("pkg/a.py", 18, 18, "fail", "b"))
    assert classes(*both)[1] == "node is-operation hit-fail"


def test_what_a_colour_says_is_said_in_words_too() -> None:
    graph = read(diamond(lost={"none": ["layer.bias"], "zero": ["layer.weight"]}))
    svg = graph_picture(graph, [Mark("pkg/a.py", 18, 18, "warning", "GP102 hand-normalisation")], style=STYLE)
    root = ET.fromstring(svg)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert "! GP102 hand-normalisation" in texts
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert "no gradient: layer.bias" in titles[3]
    assert "zero gradient: layer.weight" in titles[3]
    assert "keeps 48 B" in titles[3]
    description = root.find(f"{SVG}desc")
    assert description is not None
    assert "GP102 hand-normalisation" in (description.text or "")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "graph-title graph-desc"


def test_without_a_gradient_a_box_is_marked() -> None:
    svg = graph_picture(read(diamond(lost={"none": ["bias"]})), style=STYLE)
    assert "no gradient: bias" in [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert svg.count('class="node is-operation lost"') == 1


@pytest.mark.parametrize("hostile", HOSTILE_TEXTS)
def test_hostile_names_stay_text(hostile: str) -> None:
    value = record(
        box("input", hostile),
        box("module", hostile, (0,), about=hostile, lines=[[0, 1, 2]], lost={"none": [hostile], "zero": [hostile]}),
        files=[hostile],
    )
    svg = graph_picture(read(value), [Mark(hostile, 1, 1, "error", one_line(hostile))], style=STYLE)
    known = {"svg", "title", "desc", "style", "rect", "text", "path", "g"}
    assert {element.tag for element in ET.fromstring(svg).iter()} == {f"{SVG}{name}" for name in known}
    assert not any("\u202e" in text or "\u2066" in text for text in ET.fromstring(svg).itertext())
    attributes = {name for element in ET.fromstring(svg).iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        record(),
        record(*[box()] * (MOST_NODES + 1)),
        record(box("script")),
        record(box(reads=(0,))),
        record(box(), box(reads=(5,))),
        record(box(), {"kind": "operation", "label": "add", "from": ["0"]}),
        record(box(), {"kind": "operation", "label": "add", "from": [True]}),
        record({"kind": ["operation"], "from": []}),
        {"nodes": ["box"], "files": []},
        record(*[box(reads=tuple(range(index))) for index in range(60)]),
        record(box(), files=None),
    ],
)
def test_anything_else_is_no_picture(value: object) -> None:
    assert read_graph(value) is None


def test_nonsense_beside_the_boxes_is_left_out() -> None:
    odd = box(
        lines=[[0, 5, 2], [7, 1, 1], "x", [0, 1]],
        shape=[1, "2"],
        saved_bytes=-1,
        backward_ms="nan",
        forward_ms=10**400,
        operations=True,
        lost=[1],
    )
    (node,) = read(record(odd)).nodes
    assert (node.lines, node.shape, node.saved, node.backward, node.forward) == ((), (), 0, None, None)
    assert (node.operations, node.lost, node.zero) == (1, (), ())


def test_bytes_are_said_in_units() -> None:
    assert [in_bytes(number) for number in (0, 999, 1000, 5120, 1_344_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "5.12 kB",
        "1.34 MB",
    ]


def page(*checks: Any) -> ET.Element:
    """The HTML report of `Norm` with these checks and the finding at its division, parsed as XML where it is ours."""
    report = report_of((finding(),), (norm(checks=checks),))
    html = FORMATS["html"].render(report, Rendering())
    assert isinstance(html, str)
    begin, end = html.index("<svg"), html.index("</svg>") + len("</svg>")
    whole = f'<page xmlns="http://www.w3.org/2000/svg">{html[begin:end]}<text>{html.count("<svg")}</text></page>'
    return ET.fromstring(whole)


def portrait(**changes: Any) -> Any:
    costs = {
        "forward_ms": 0.02,
        "backward_ms": 0.05,
        "saved_bytes": 52,
        "modules": [
            {
                "name": "<b>",
                "class": "Norm\u202e",
                "calls": 1,
                "own_forward_ms": 0.02,
                "own_saved_bytes": 52,
                "forward_ms": "nan",
            }
        ],
        "modules_in_all": 3,
        "operations": [
            {"name": "div", "path": "pkg/a.py", "line": 18, "count": 1, "saved_bytes": 48, "backward_ms": None}
        ],
    }
    return check(check="portrait", evidence={"graph": diamond(), "profile": costs} | changes)


def test_a_report_shows_the_graph_with_the_finding_on_it_and_the_costs() -> None:
    groups = [group.get("class") for group in page(check(), portrait()).iter(f"{SVG}g")]
    assert groups[1:3] == ["node is-operation hit-warning"] * 2
    html = FORMATS["html"].render(report_of((finding(),), (norm(checks=(portrait(),)),)), Rendering())
    assert isinstance(html, str)
    assert '<a href="#finding-1">GP102 hand-normalisation</a> at pkg/a.py:18' in html
    assert "forward 0.02 ms, backward 0.05 ms; 52 B kept for backward" in html
    assert "&lt;b&gt;" in html
    assert "Norm[U+202E]" in html
    assert "<td>pkg/a.py:18</td>" in html
    assert "2 more cost less" in html
    assert '"nodes"' not in html  # told by the picture, and not once more as JSON
    assert ".graph .node" in html


def test_a_failing_check_colours_the_line_that_it_names() -> None:
    fault = failing(path="pkg/a.py", line=18)
    groups = [group.get("class") for group in page(fault, portrait()).iter(f"{SVG}g")]
    assert groups[1:3] == ["node is-operation hit-fail"] * 2


def test_evidence_that_is_no_graph_is_shown_as_it_is() -> None:
    html = FORMATS["html"].render(
        report_of((), (norm(checks=(check(check="portrait", evidence={"graph": {"nodes": "none"}}),)),)), Rendering()
    )
    assert isinstance(html, str)
    assert "<svg" not in html
    assert "nodes" in html


def test_a_page_draws_as_many_graphs_as_it_has_room_for_and_says_so() -> None:
    large = portrait(graph=crowded(6))
    targets = tuple(norm(name=f"pkg.a:Norm{number}", checks=(large,)) for number in range(31))
    html = FORMATS["html"].render(report_of((), targets), Rendering())
    assert isinstance(html, str)
    assert html.count("<svg") == 30
    assert html.count("There was no room for one more graph") == 1


def test_the_source_of_the_sample_has_the_division_where_the_graph_says() -> None:
    assert "x / x.norm()" in SOURCE.splitlines()[17]


def test_a_graph_is_drawn_from_a_report_as_a_file_of_its_own(tmp_path: Path) -> None:
    report = report_of((finding(),), (target(checks=(check(),)), norm(checks=(portrait(),))))
    (tmp_path / "report.json").write_text(report.model_dump_json(), encoding="utf-8")
    picture = tmp_path / "images" / "graph.svg"
    assert draw_graph.main([str(tmp_path / "report.json"), str(picture)]) == 0
    drawn = picture.read_text(encoding="utf-8")
    assert ET.fromstring(drawn).tag == f"{SVG}svg"
    assert "hit-warning" in drawn
    assert ".graph .node" in drawn  # the style is in the file
    other = [str(tmp_path / "report.json"), str(tmp_path / "none.svg"), "--target", "pkg.a:Square"]
    assert draw_graph.main(other) == 1
    assert not (tmp_path / "none.svg").exists()
