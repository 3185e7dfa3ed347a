"""The bound of a check's memory on a real device, and what is said when it does not suffice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.support import compare

pytestmark = pytest.mark.gpu

# 3 GiB beside the input, on CUDA alone.
LARGE = """
import torch
from torch import nn


class Large(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            torch.empty(3 * 2**30, dtype=torch.uint8, device=x.device)
        return torch.tanh(x)
"""
GOES_ON = LARGE.replace(
    "            torch.empty(3 * 2**30, dtype=torch.uint8, device=x.device)",
    "            try:\n                torch.empty(3 * 2**30, dtype=torch.uint8, device=x.device)\n"
    "            except torch.cuda.OutOfMemoryError:\n                return 1.5 * torch.tanh(x)",
)


def test_what_fits_the_default_bound_is_compared(tmp_path: Path) -> None:
    check = compare(LARGE, tmp_path)
    assert check.verdict == "pass", check.summary


@pytest.mark.parametrize("source", [LARGE, GOES_ON], ids=["raises", "catches it and goes on"])
def test_what_does_not_fit_is_an_error_of_the_surroundings(tmp_path: Path, source: str) -> None:
    check = compare(source, tmp_path, device_memory=2**30)
    assert check.diagnosis is not None, check.summary
    assert (check.verdict, check.diagnosis.cause) == ("error", "out_of_memory"), check.summary
    assert "a check may take 1 GiB of it" in check.summary
