"""Checks of a target on the variants of its harness, each in a child of its own, in a process without other targets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probe.conftest import PROBE

SOURCE = """
import torch


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.factor * grad_output, None


class Loss(torch.nn.Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(reduction)
        self.reduction = reduction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _Twice.apply(x, 3 if self.reduction == "sum" else 2)
        return y if self.reduction == "none" else getattr(y, self.reduction)()
"""
# Runs checks of `Loss` with the variants that are given, and prints the results.
PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gradproof_probe.check_runs import CheckRuns
from gradproof_probe.importing import import_target
from gradproof_probe.request import Entry, ProbeLimits, Request, Target
from gradproof_probe.supervisor import prepare
from gradproof_probe.target_budget import Budget

source, options, target_s = Path(sys.argv[2]), json.loads(sys.argv[3]), float(sys.argv[4])
target = Target("loss:Loss", "module", "loss.py", 1, "", "loss", "Loss")
entry = Entry("j", target, None, (), ("gradcheck",))
request = Request(source, "cpu", 0, False, ProbeLimits(), {}, (entry,))
prepare(request)
runs = CheckRuns(request, entry, import_target(source, target), Budget(0.0, 20.0), time.monotonic() + target_s,
    unit_s=1.0 if target_s < 1 else 0.0)
recipe = {
    "source": "synthesised", "grade": "C", "constructor": "Loss()", "inputs": ["torch.randn(3)"], "provenance": "p",
    "variants": [{"constructor": f"Loss({o})", "inputs": ["torch.randn(3)"], "option": o} for o in options],
}
print(json.dumps(runs.answer(recipe, "gradcheck", later=0)["result"]))
"""


@pytest.fixture
def result(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    (tmp_path / "loss.py").write_text(SOURCE, encoding="utf-8")
    options, target_s = request.param
    words = [sys.executable, "-c", PROGRAM, str(PROBE), str(tmp_path), json.dumps(options), str(target_s)]
    done = subprocess.run(words, capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


ALL = ["reduction='none'", "reduction='sum'", "reduction='nothing'"]


@pytest.mark.parametrize("result", [(ALL, 120.0)], indirect=True)
def test_a_fault_of_one_mode_is_found_and_its_script_shows_it(result: dict[str, Any], tmp_path: Path) -> None:
    assert result["verdict"] == "fail"
    assert result["summary"].startswith("with reduction='sum': ")
    assert result["evidence"]["option"] == "reduction='sum'"
    assert result["evidence"]["options"] == {"reduction='none'": "pass", "reduction='sum'": "fail"}
    script = tmp_path / "repro.py"
    script.write_text(result["repro"], encoding="utf-8")
    assert "reduction='sum'" in result["repro"]
    assert (
        subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, check=False).returncode == 1
    )


@pytest.mark.parametrize("result", [(["reduction='none'"], 120.0)], indirect=True)
def test_modes_that_are_right_are_listed(result: dict[str, Any]) -> None:
    assert (result["verdict"], result["evidence"]["options"]) == ("pass", {"reduction='none'": "pass"})
    assert "option" not in result["evidence"]


@pytest.mark.parametrize("result", [([], 0.05)], indirect=True)
def test_what_the_time_of_the_target_does_not_suffice_for_is_left_out_and_says_so(result: dict[str, Any]) -> None:
    assert (result["verdict"], result["evidence"]["left_out"]) == ("skipped", "budget")
    assert result["evidence"]["needed_s"] == pytest.approx(4.0), "a tenth of 40 calls of a second: it adapts"
    assert "it takes about 4" in result["summary"]
