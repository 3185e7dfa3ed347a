"""Draws the graph of a call as one SVG: a box for each operation or module, coloured where something was found.

What is drawn comes out of the sandbox, so it is validated here, bounded, and reaches the picture as numbers and escaped
text alone. There are no scripts, no links and no styles in it: colours come from `graph.css` by the classes of the
boxes, so that it is right in light and dark, and every mark is also said in words. This module must not know reports.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from services.reports.graph_layout import Layout, Point, place
from services.reports.untrusted import one_line, shorten

MOST_NODES: Final = 100
_MOST_EDGES: Final = 600
_MOST_LINES: Final = 24
_MOST_NAMES: Final = 12
_LAST_LINE: Final = 10_000_000
_LONGEST_TEXT: Final = 120
_LONGEST_LINE: Final = 30  # cells of text in a box; the whole of it shows when a box is pointed at
_MARGIN: Final = 12.0
_PAD: Final = 8.0
_NARROWEST: Final = 64.0
# Monospaced letters are 0.55 to 0.602 of their size wide in every font of the list.
_LETTER: Final = 0.62
_SIZES: Final = (12, 10, 10)  # of the lines of text
_LINE: Final = (15.0, 13.0, 13.0)

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_TIMES: Final = "\N{MULTIPLICATION SIGN}"

Level = Literal["fail", "error", "warning", "note"]
_LEVELS: Final[tuple[Level, ...]] = ("fail", "error", "warning", "note")
_KINDS: Final = frozenset({"input", "output", "operation", "lines", "module", "several", "parameters"})
_SIGNS: Final[Mapping[Level, str]] = {"fail": "✗", "error": "✗", "warning": "!", "note": "i"}


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was found at a place: `text` says what, in a few words."""

    path: str
    first: int
    last: int
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Node:
    """A box. `lines` are (path, first, last) of what it stands for; `lost` names parameters without gradient."""

    kind: str
    label: str
    about: str
    reads: tuple[int, ...]
    operations: int
    shape: tuple[int, ...]
    lines: tuple[tuple[str, int, int], ...]
    saved: int
    forward: float | None
    backward: float | None
    lost: tuple[str, ...]
    zero: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """The boxes, each reading only boxes before it, and how many operations they stand for."""

    nodes: tuple[Node, ...]
    operations: int
    edges_left: int

    def marked(self, marks: Sequence[Mark]) -> list[tuple[Mark, tuple[int, ...]]]:
        """The marks that lie on a line of a box, each with its boxes."""
        found = []
        for mark in marks:
            boxes = tuple(index for index, node in enumerate(self.nodes) if _touches(node, mark))
            if boxes:
                found.append((mark, boxes))
        return found


def read_graph(value: object) -> Graph | None:
    """The evidence of a check as a graph; None if it is anything else, too large, or has an edge that leads back."""
    if not isinstance(value, Mapping):
        return None
    nodes, files = value.get("nodes"), value.get("files")
    if not isinstance(nodes, list) or not 1 <= len(nodes) <= MOST_NODES or not isinstance(files, list):
        return None
    paths = [path if isinstance(path, str) else "" for path in files[:_LAST_LINE]]
    read = [_node(index, item, paths) for index, item in enumerate(nodes)]
    known = tuple(node for node in read if node is not None)
    if len(known) < len(read) or sum(len(node.reads) for node in known) > _MOST_EDGES:
        return None
    return Graph(known, _count(value.get("operations")), _count(value.get("edges_left")))


def graph_picture(graph: Graph, marks: Sequence[Mark] = (), *, identity: str = "graph", style: str = "") -> str:
    """The picture. `identity` begins the ids in it; with a `style` it is a file of its own, with a background."""
    hits: dict[int, list[Mark]] = {}
    for mark, boxes in graph.marked(marks):
        for box in boxes:
            hits.setdefault(box, []).append(mark)
    texts = [_texts(node, hits.get(index, [])) for index, node in enumerate(graph.nodes)]
    layout = place([_size(lines) for lines in texts], [node.reads for node in graph.nodes])
    width, height = math.ceil(layout.width + 2 * _MARGIN), math.ceil(layout.height + 2 * _MARGIN)
    name = escape(identity)
    extra = ' xmlns="http://www.w3.org/2000/svg"' if style else ""
    lines = [
        f'<svg{extra} class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" fill="none" stroke="currentColor" '
        "font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\">",
        f'<title id="{name}-title">{escape(_title(graph))}</title>',
        f'<desc id="{name}-desc">{escape(_description(graph, hits))}</desc>',
    ]
    if style:
        lines += [f"<style>{style}</style>", f'<rect class="ground" width="{width}" height="{height}" stroke="none"/>']
    lines += _edges(layout)
    for index, node in enumerate(graph.nodes):
        lines += _box(node, texts[index], hits.get(index, []), layout.boxes[index])
    return "\n".join([*lines, "</svg>"])


def _edges(layout: Layout) -> Iterable[str]:
    for ways, ends in zip(layout.ways, layout.ends, strict=True):
        if not ways:
            continue
        path = "".join(_way(*way) for way in ways)
        heads = "".join(f"M{_number(x - 4)} {_number(y - 6)}L{_number(x)} {_number(y)}l4 -6" for x, y in _shifted(ends))
        yield f'<path class="edge" d="{path}{heads}"/>'


def _way(start: Point, end: Point) -> str:
    (x, y), (to_x, to_y) = _shifted([start, end])
    if x == to_x:
        return f"M{_number(x)} {_number(y)}V{_number(to_y)}"
    middle = _number((y + to_y) / 2)
    return f"M{_number(x)} {_number(y)}C{_number(x)} {middle} {_number(to_x)} {middle} {_number(to_x)} {_number(to_y)}"


def _shifted(points: Iterable[Point]) -> list[Point]:
    return [(x + _MARGIN, y + _MARGIN) for x, y in points]


def _box(node: Node, texts: Sequence[str], hits: Sequence[Mark], corner: Point) -> Iterable[str]:
    ((left, top),) = _shifted([corner])
    width, height = _size(texts)
    level = min((mark.level for mark in hits), key=_LEVELS.index, default=None)
    classes = f"node is-{node.kind}" + (f" hit-{level}" if level else "") + (" lost" if node.lost or node.zero else "")
    yield f'<g class="{classes}"><title>{escape(_whole(node, hits))}</title>'
    rounded = 12 if node.kind in {"input", "output"} else 3
    yield (
        f'<rect x="{_number(left)}" y="{_number(top)}" width="{_number(width)}" height="{_number(height)}" '
        f'rx="{rounded}"/>'
    )
    at = top + _PAD / 2
    for position, text in enumerate(texts):
        at += _LINE[position]
        kind = ("name", "about", "mark")[position]
        if text:
            yield (
                f'<text class="{kind}" x="{_number(left + _PAD)}" y="{_number(at - 3)}" '
                f'font-size="{_SIZES[position]}" fill="currentColor" stroke="none">{escape(text)}</text>'
            )
    yield "</g>"


def _texts(node: Node, hits: Sequence[Mark]) -> list[str]:
    """What stands in a box: its name, what it is of, and, if there is something to say, a third line."""
    about = [node.about] if node.about else []
    if node.operations > 1:
        about.append(f"{node.operations} ops")
    elif node.shape:
        about.append(_TIMES.join(map(str, node.shape)))
    said = [f"{_SIGNS[hits[0].level]} {hits[0].text}"] if hits else []
    if node.lost:
        said.append(f"no gradient: {', '.join(_last(name) for name in node.lost)}")
    if node.zero:
        said.append(f"zero gradient: {', '.join(_last(name) for name in node.zero)}")
    lines = [_fit(node.label), _fit(_fit_all(about)), *([_fit("; ".join(said))] if said else [])]
    return lines if lines[-1] else lines[:-1]


def _fit_all(parts: Sequence[str]) -> str:
    """What counts or measures stays whole; the name before it is cut."""
    *names, last = parts or [""]
    room = _LONGEST_LINE - _cells(last) - 3
    return " · ".join([*(_fit(name, max(room, 8)) for name in names), last])


def _size(lines: Sequence[str]) -> tuple[float, float]:
    width = max(_cells(text) * size * _LETTER for text, size in zip(lines, _SIZES, strict=False))
    return max(width + 2 * _PAD, _NARROWEST), sum(_LINE[: len(lines)]) + _PAD


def _fit(text: str, limit: int = _LONGEST_LINE) -> str:
    if _cells(text) <= limit:
        return text
    kept = ""
    for letter in text:
        if _cells(kept + letter) > limit - 1:
            break
        kept += letter
    return f"{kept}…"


def _cells(text: str) -> int:
    """Letters of East Asian scripts are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _whole(node: Node, hits: Sequence[Mark]) -> str:
    said = [node.label, *([node.about] if node.about else [])]
    if node.shape:
        said.append(f"shape {_TIMES.join(map(str, node.shape))}")
    if node.operations > 1:
        said.append(f"{node.operations} operations")
    said += [_place(*line) for line in node.lines[:3]]
    if node.forward is not None:
        said.append(f"forward {node.forward:.3g} ms")
    if node.backward is not None:
        said.append(f"backward {node.backward:.3g} ms")
    if node.saved:
        said.append(f"keeps {in_bytes(node.saved)}")
    said += [f"no gradient: {name}" for name in node.lost] + [f"zero gradient: {name}" for name in node.zero]
    return "; ".join([*said, *(f"{mark.text} at {_place(mark.path, mark.first, mark.last)}" for mark in hits[:5])])


def _place(path: str, first: int, last: int) -> str:
    return f"{one_line(path)}:{first}" if first == last else f"{one_line(path)}:{first}-{last}"


def _title(graph: Graph) -> str:
    number = graph.operations
    return f"Autograd graph of one call: {number} operation{'' if number == 1 else 's'}"


def _description(graph: Graph, hits: Mapping[int, Sequence[Mark]]) -> str:
    said = f"{len(graph.nodes)} boxes from the inputs above to the outputs below."
    if hits:
        texts = dict.fromkeys(mark.text for marks in hits.values() for mark in marks)
        said += f" {len(hits)} of them have something that was found at their line: {'; '.join(texts)}."
    lost = [name for node in graph.nodes for name in (*node.lost, *node.zero)]
    if lost:
        said += f" Parameters without gradient: {', '.join(lost)}."
    if graph.edges_left:
        said += f" {graph.edges_left} edges are not drawn."
    return shorten(said, 1000)


def _touches(node: Node, mark: Mark) -> bool:
    return any(path == mark.path and first <= mark.last and mark.first <= last for path, first, last in node.lines)


def _node(index: int, value: object, files: Sequence[str]) -> Node | None:
    if not isinstance(value, Mapping):
        return None
    kind, reads = value.get("kind"), value.get("from")
    if not isinstance(kind, str) or kind not in _KINDS or not isinstance(reads, list):
        return None
    if not all(_is_whole(item) and 0 <= item < index for item in reads):
        return None
    lost = value.get("lost")
    marks = lost if isinstance(lost, Mapping) else {}
    return Node(
        kind=kind,
        label=_text(value.get("label")) or "?",
        about=_text(value.get("about")),
        reads=tuple(sorted(set(reads))),
        operations=_count(value.get("operations")) or 1,
        shape=_shape(value.get("shape")),
        lines=_lines(value.get("lines"), files),
        saved=_count(value.get("saved_bytes")),
        forward=measured(value.get("forward_ms")),
        backward=measured(value.get("backward_ms")),
        lost=_names(marks.get("none")),
        zero=_names(marks.get("zero")),
    )


def _lines(value: object, files: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    found = []
    for item in value[:_MOST_LINES] if isinstance(value, list) else ():
        if isinstance(item, list) and len(item) == 3 and all(_is_whole(number) for number in item):
            number, first, last = item
            if 0 <= number < len(files) and 1 <= first <= last <= _LAST_LINE:
                found.append((files[number], first, last))
    return tuple(found)


def _shape(value: object) -> tuple[int, ...]:
    sizes = value[:8] if isinstance(value, list) else []
    return tuple(sizes) if all(_is_whole(size) and 0 <= size < 10**12 for size in sizes) else ()


def _names(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(_text, value[:_MOST_NAMES]))) if isinstance(value, list) else ()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else 0


def _text(value: object) -> str:
    return shorten(one_line(value), _LONGEST_TEXT) if isinstance(value, str) else ""


def measured(value: object) -> float | None:
    """A time in milliseconds, if it can be one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return float(value)


def in_bytes(number: int) -> str:
    """`512 B`, `5.1 kB`, `1.34 MB`."""
    power = min(max((len(str(number)) - 1) // 3, 0), len(_UNITS) - 1)
    return f"{number / 1000**power:.3g} {_UNITS[power]}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
