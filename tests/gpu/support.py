"""`gradproof check --device cuda` on one file, in this process but for the sandbox."""

from __future__ import annotations

from pathlib import Path

from services.analyses.model import AnalysisOptions
from services.reports.document import CheckInfo
from services.settings import Settings
from services.snapshots.directories import read_directory
from worker.local import LocalAnalysis, LocalOptions, SilentProgress


def compare(source: str, directory: Path, **settings: object) -> CheckInfo:
    """What device_compare says of the module in `source`; `settings` on top of the environment's."""
    (directory / "layers.py").write_text(source)
    with read_directory(directory) as tree:
        options = LocalOptions(analysis=AnalysisOptions(checks=("device_compare",)), device="cuda")
        ours = Settings().model_copy(update=settings)
        report = LocalAnalysis.run(tree, settings=ours, options=options, progress=SilentProgress()).report
    (target,) = report.targets
    assert target.harness is not None, target.not_run_detail
    (check,) = target.checks
    return check


def line_of(source: str, text: str) -> int:
    """The number of the line that holds `text`."""
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)
