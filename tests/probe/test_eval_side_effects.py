"""Calls in evaluation mode that change something are found at their line; caches, sampling and options are no fault."""

from __future__ import annotations

import pytest
import torch
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.eval_side_effects import EvalSideEffects

from tests.fixtures.probe import evaluated
from tests.probe.checking import marked_faults, run_check


def run(name: str) -> CheckResult:
    inputs = ["torch.randn(3, 4)"] + ["torch.zeros(3, 4)"] * (name == "FillsCacheArgument")
    return run_check(EvalSideEffects(), getattr(evaluated, name), inputs)


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("evaluated.py"))
def test_what_a_call_in_evaluation_mode_does_beside_fails_at_its_line(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert (result.verdict, result.path, result.line) == ("fail", "evaluated.py", line), result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


@pytest.mark.parametrize(
    "name", ["RightDropout", "MaskIsCached", "FirstCallSetsUp", "FillsCacheArgument", "ForksGenerator"]
)
def test_what_leaves_everything_as_it_was_passes(name: str) -> None:
    assert run(name).verdict == "pass"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("DropoutByLiteral", "random_on_purpose"),
        ("MonteCarloDropout", "random_on_purpose"),
        ("Samples", "random_in_eval"),
        ("Remembers", "state_advances"),
        ("WritesAsPart", "input_written"),
    ],
)
def test_what_is_meant_is_named_but_no_failure(name: str, cause: str) -> None:
    result = run(name)
    assert result.verdict == "inconclusive", result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


def test_settings_are_put_back() -> None:
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    for name in ("LeavesDoubleAsDefault", "LeavesGradientsOff"):
        run(name)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before


@pytest.mark.parametrize(
    ("kind", "constructor", "inputs"),
    [
        (torch.nn.BatchNorm2d, "BatchNorm2d(3)", ["torch.randn(2, 3, 4, 4)"]),
        (torch.nn.LSTM, "LSTM(4, 3, dropout=0.5, num_layers=2)", ["torch.randn(5, 2, 4)"]),
        (torch.nn.TransformerEncoderLayer, "TransformerEncoderLayer(8, 2, 16)", ["torch.randn(5, 2, 8)"]),
        (torch.nn.ReLU, "ReLU(inplace=True)", ["torch.randn(3)"]),
    ],
)
def test_layers_of_torch_pass(kind: type, constructor: str, inputs: list[str]) -> None:
    result = run_check(EvalSideEffects(), kind, inputs, constructor=constructor)
    assert result.verdict == "pass", result
