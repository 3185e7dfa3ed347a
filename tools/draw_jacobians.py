"""Draw the Jacobians of a failing check of a JSON report as an SVG file, for a page of the documentation.

    gradproof check path --format json --output report.json
    python -m tools.draw_jacobians report.json docs/images/wrong-gradient.svg [--target pkg.a:Square]

Takes the first failing check that has Jacobians in its evidence.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.reports.document import Report
from services.reports.jacobian_picture import Jacobians, jacobian_picture, read_jacobians


def find_jacobians(report: Report, target: str | None = None) -> Jacobians | None:
    """The Jacobians of the first failing check that has some, of one target or of any."""
    found = (
        read_jacobians(check.evidence.get("jacobians"))
        for item in report.targets
        if target in (None, item.name)
        for check in item.checks
        if check.verdict == "fail"
    )
    return next((jacobians for jacobians in found if jacobians is not None), None)


def main(arguments: list[str]) -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--target")
    asked = parser.parse_args(arguments)
    jacobians = find_jacobians(Report.model_validate_json(asked.report.read_text(encoding="utf-8")), asked.target)
    if jacobians is None:
        sys.stderr.write("no failing check of this report has Jacobians small enough to draw\n")
        return 1
    asked.picture.parent.mkdir(parents=True, exist_ok=True)
    asked.picture.write_text(jacobian_picture(jacobians, standalone=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
