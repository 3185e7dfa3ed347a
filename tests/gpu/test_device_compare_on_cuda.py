"""The whole path of device_compare on a real GPU, sandbox included: device files, driver, probe, verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.analyses.model import AnalysisOptions
from services.reports.document import CheckInfo
from services.settings import Settings
from services.snapshots.directories import read_directory
from worker.devices import cuda_device_nodes
from worker.local import LocalAnalysis, LocalOptions, SilentProgress

pytestmark = pytest.mark.gpu

RIGHT = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim: int = 16):
        super().__init__()
        self.up = nn.Linear(dim, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.nn.functional.gelu(self.up(x)))
"""

TF32 = RIGHT.replace("from torch import nn\n", "from torch import nn\n\ntorch.backends.cuda.matmul.allow_tf32 = True\n")

WRONG_ON_CUDA = RIGHT.replace(
    "return self.norm(", "scale = 1.5 if x.is_cuda else 1.0\n        return scale * self.norm("
)

LEFT_BEHIND = RIGHT.replace(
    "        self.norm =", "        self.shift = torch.linspace(0, 1, 32)\n        self.norm ="
).replace("gelu(self.up(x))", "gelu(self.up(x) + self.shift)")

ATOMIC = """
import torch
from torch import nn


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slot = torch.arange(x.shape[0], device=x.device) % 3
        return torch.zeros(3, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, slot, torch.tanh(x))
"""


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not cuda_device_nodes():
        pytest.fail("no NVIDIA device files in /dev: `make test-gpu` needs a machine with a CUDA device")


def compare(source: str, directory: Path) -> CheckInfo:
    """What device_compare says of the module in `source`."""
    (directory / "layers.py").write_text(source)
    with read_directory(directory) as tree:
        options = LocalOptions(analysis=AnalysisOptions(checks=("device_compare",)), device="cuda")
        report = LocalAnalysis.run(tree, settings=Settings(), options=options, progress=SilentProgress()).report
    (target,) = report.targets
    assert target.harness is not None, target.not_run_detail
    (check,) = target.checks
    return check


def test_a_right_module_agrees_and_the_report_names_the_device(tmp_path: Path) -> None:
    check = compare(RIGHT, tmp_path)
    assert check.verdict == "pass", check.summary
    assert check.device.startswith("cuda")


def test_reduced_precision_is_explained_and_not_called_a_bug(tmp_path: Path) -> None:
    check = compare(TF32, tmp_path)
    assert check.verdict == "pass", check.summary
    assert check.diagnosis is None or check.diagnosis.cause in ("tf32", "reduced_precision")  # none without TF32
    assert check.evidence["settings_at_import"]


def test_a_module_that_computes_something_else_on_cuda_fails(tmp_path: Path) -> None:
    check = compare(WRONG_ON_CUDA, tmp_path)
    assert check.verdict == "fail", check.summary
    assert check.diagnosis is not None
    assert check.diagnosis.cause == "device_dependent_code"
    assert (check.path, check.line) == ("layers.py", _line(WRONG_ON_CUDA, "return scale"))


def test_a_tensor_that_stays_behind_fails_where_it_is_kept(tmp_path: Path) -> None:
    check = compare(LEFT_BEHIND, tmp_path)
    assert check.verdict == "fail", check.summary
    assert check.diagnosis is not None
    assert check.diagnosis.cause == "left_behind"
    assert check.line == _line(LEFT_BEHIND, "self.shift =")


def test_order_noise_of_atomic_sums_passes(tmp_path: Path) -> None:
    check = compare(ATOMIC, tmp_path)
    assert check.verdict == "pass", check.summary


def _line(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)
