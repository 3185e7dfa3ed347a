"""Draw the graph of a target of a JSON report as an SVG file, with the findings and failing checks of the report on it.

    gradproof check path --format json --output report.json
    python -m tools.draw_graph report.json graph.svg [--target pkg.a:Block]

Takes the first target whose check `portrait` has a graph.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.reports.document import Report
from services.reports.formats.html import graph_style
from services.reports.graph_picture import Graph, Mark, graph_picture, read_graph
from services.reports.portraits import failure_mark, finding_mark


def find_graph(report: Report, target: str | None = None) -> Graph | None:
    """The graph of this target, or the first that there is."""
    found = (
        read_graph(check.evidence.get("graph"))
        for item in report.targets
        if target in (None, item.name)
        for check in item.checks
    )
    return next((graph for graph in found if graph is not None), None)


def marks_of(report: Report) -> list[Mark]:
    """What a graph can be coloured by."""
    failures = (failure_mark(target, check) for target in report.targets for check in target.checks)
    return [*map(finding_mark, report.findings), *(mark for mark in failures if mark is not None)]


def main(arguments: list[str]) -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--target")
    asked = parser.parse_args(arguments)
    report = Report.model_validate_json(asked.report.read_text(encoding="utf-8"))
    graph = find_graph(report, asked.target)
    if graph is None:
        sys.stderr.write("no target of this report has a graph to draw\n")
        return 1
    asked.picture.parent.mkdir(parents=True, exist_ok=True)
    asked.picture.write_text(graph_picture(graph, marks_of(report), style=graph_style()) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
