"""What the check `portrait` shows: its graph as a picture with what was found on it, and tables of what things cost.

All of it comes out of the sandbox and is validated here and in `graph_picture`. Nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.reports.document import CheckInfo, FindingInfo, TargetInfo
from services.reports.graph_picture import Graph, Level, Mark, graph_picture, in_bytes, measured, read_graph
from services.reports.untrusted import one_line, shorten

KEYS: Final = frozenset({"graph", "profile"})
_MOST_ROWS: Final = 10
_LONGEST: Final = 100
_LONGEST_MARK: Final = 60
# A finding that spans more lines than this is about where it begins: a class, a function.
_LONGEST_SPAN: Final = 8

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A finding or failing check on the picture, with where the page tells about it."""

    mark: Mark
    anchor: str


@dataclass(frozen=True, slots=True)
class Portrait:
    """`picture` is SVG, or empty where the page had no room for it; `found` is what is coloured on it."""

    picture: str
    found: tuple[Found, ...]
    sums: str
    modules: tuple[Row, ...]
    modules_left: int
    kept: tuple[Row, ...]


def finding_mark(finding: FindingInfo) -> Mark:
    """Where a finding lies; what execution refuted only as a note."""
    last = finding.end_line if finding.end_line - finding.start_line <= _LONGEST_SPAN else finding.start_line
    level: Level = "note" if finding.verdict == "not_reproduced" else finding.severity
    return Mark(finding.path, finding.start_line, last, level, f"{finding.rule} {finding.name}")


def failure_mark(target: TargetInfo, check: CheckInfo) -> Mark | None:
    """Where a failing check lies, if it could be attributed."""
    if check.verdict != "fail" or check.path is None or check.line is None:
        return None
    cause = f": {check.diagnosis.cause.replace('_', ' ')}" if check.diagnosis is not None else ""
    said = f"{check.check}{cause}" if (check.path, check.line) != (target.path, target.line) else check.check
    return Mark(check.path, check.line, check.line, "fail", shorten(one_line(said), _LONGEST_MARK))


def read_portrait(evidence: Mapping[str, object]) -> tuple[Graph | None, Mapping[str, object]]:
    """The graph and the profile as far as they have the shape that the probe gives them."""
    costs = evidence.get("profile")
    return read_graph(evidence.get("graph")), costs if isinstance(costs, Mapping) else {}


def draw(
    graph: Graph, costs: Mapping[str, object], found: Sequence[Found], anchor: str, *, with_picture: bool = True
) -> Portrait:
    """The picture with what lies on it, and the costs. `anchor` is that of the check, for ids."""
    on_it = {id(mark) for mark, _ in graph.marked([item.mark for item in found])}
    shown = tuple(item for item in found if id(item.mark) in on_it)
    modules = _rows(costs.get("modules"), _module)
    in_all = costs.get("modules_in_all")
    return Portrait(
        picture=graph_picture(graph, [item.mark for item in shown], identity=f"{anchor}-graph") if with_picture else "",
        found=shown,
        sums=_sums(costs),
        modules=modules,
        modules_left=max(in_all - len(modules), 0) if isinstance(in_all, int) and in_all < 10**9 else 0,
        kept=_rows(costs.get("operations"), _operation),
    )


def _sums(costs: Mapping[str, object]) -> str:
    said = [f"{name} {_time(costs.get(key))}" for name, key in (("forward", "forward_ms"), ("backward", "backward_ms"))]
    return f"{', '.join(said)}; {_bytes(costs.get('saved_bytes'))} kept for backward"


def _rows(value: object, row: Callable[[Mapping[str, object]], Row]) -> tuple[Row, ...]:
    items = value[:_MOST_ROWS] if isinstance(value, list) else []
    return tuple(row(item) for item in items if isinstance(item, Mapping))


def _module(item: Mapping[str, object]) -> Row:
    calls = item.get("calls")
    return (
        _text(item.get("name")) or "(the target itself)",
        _text(item.get("class")),
        str(calls) if isinstance(calls, int) and 0 <= calls < 10**9 else "",
        _time(item.get("own_forward_ms")),
        _time(item.get("own_backward_ms")),
        _bytes(item.get("own_saved_bytes")),
        _time(item.get("forward_ms")),
        _time(item.get("backward_ms")),
        _bytes(item.get("saved_bytes")),
    )


def _operation(item: Mapping[str, object]) -> Row:
    path, line, count = _text(item.get("path")), item.get("line"), item.get("count")
    known = bool(path) and isinstance(line, int) and 1 <= line <= 10_000_000
    return (
        _text(item.get("name")),
        f"{path}:{line}" if known else "",
        str(count) if isinstance(count, int) and 0 <= count < 10**9 else "",
        _bytes(item.get("saved_bytes")),
        _time(item.get("backward_ms")),
    )


def _text(value: object) -> str:
    return shorten(one_line(value), _LONGEST) if isinstance(value, str) else ""


def _time(value: object) -> str:
    number = measured(value)
    return "not known" if number is None else f"{number:.3g} ms"


def _bytes(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**15:
        return "not known"
    return in_bytes(value)
