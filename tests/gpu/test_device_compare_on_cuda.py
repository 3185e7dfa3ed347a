"""The whole path of device_compare on a real GPU, sandbox included: device files, driver, probe, verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.support import compare, line_of

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
    assert (check.path, check.line) == ("layers.py", line_of(WRONG_ON_CUDA, "return scale"))


def test_a_tensor_that_stays_behind_fails_where_it_is_kept(tmp_path: Path) -> None:
    check = compare(LEFT_BEHIND, tmp_path)
    assert check.verdict == "fail", check.summary
    assert check.diagnosis is not None
    assert check.diagnosis.cause == "left_behind"
    assert check.line == line_of(LEFT_BEHIND, "self.shift =")


def test_order_noise_of_atomic_sums_passes(tmp_path: Path) -> None:
    check = compare(ATOMIC, tmp_path)
    assert check.verdict == "pass", check.summary
