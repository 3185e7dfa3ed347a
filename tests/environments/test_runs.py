"""A run sees its layer behind the interpreter's own packages, can't write to it, and goes on without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.analyses.model import AnalysisOptions
from services.reports.document import Report
from services.settings import Settings
from services.snapshots.directories import read_directory
from tests.environments.wheels import write_wheel
from worker.local import LocalAnalysis, LocalOptions, SilentProgress

SOURCE = """
import torch
import halves
import einops
import typing_extensions


class Halved(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            open(halves.__file__, "a").close()
        except OSError:
            return halves.half(x)
        return x.detach()
"""


PLAIN = """
import torch
import halves


class Halved(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halves.half(x)
"""


def run(tmp_path: Path, requirements: str, text: str) -> Report:
    source = tmp_path / "source"
    source.mkdir()
    (source / "halved.py").write_text(text)
    (source / "requirements.txt").write_text(requirements)
    settings = Settings(data_dir=tmp_path / "data", environment="wheels", environment_index=str(tmp_path / "index"))
    options = LocalOptions(analysis=AnalysisOptions(checks=("gradcheck",)))
    tree = read_directory(source)
    return LocalAnalysis.run(tree, settings=settings, options=options, progress=SilentProgress()).report


@pytest.fixture(autouse=True)
def index(tmp_path: Path) -> None:
    # The wheel also brings an einops and a typing_extensions, which the interpreter has already.
    taken = "raise ImportError('taken from the layer')\n"
    files = {
        "halves.py": "def half(x):\n    return x / 2\n",
        "einops/__init__.py": taken,
        "typing_extensions.py": taken,
    }
    write_wheel(tmp_path / "index", "halves", "1.0", files)


def test_what_the_layer_adds_is_imported_read_only_and_can_hide_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, "halves\n", SOURCE)
    (target,) = report.targets
    assert target.not_run_detail == ""
    assert [(check.check, check.verdict) for check in target.checks] == [("gradcheck", "pass")]
    assert report.tool.environment is not None
    assert report.tool.environment.packages == ["halves==1.0"]


def test_the_analysis_goes_on_without_a_layer_that_could_not_be_built(tmp_path: Path) -> None:
    report = run(tmp_path, "halves==9.0\n", PLAIN)
    assert report.analysis.status == "finished"
    assert report.tool.environment is not None
    assert "halves" in (report.tool.environment.reason or "")
    assert [(item.imported, item.targets) for item in report.missing] == [("halves", 1)]
