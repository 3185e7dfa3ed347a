"""Samples and positions that know what they must not are found at their line; what meets on purpose is no fault."""

from __future__ import annotations

import pytest
import torch
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.batch_consistency import BatchConsistency

from tests.fixtures.probe import batched
from tests.probe.checking import marked_faults, run_check

SEQUENCE = ["torch.randn(2, 6, 8)"]
MASKED = [*SEQUENCE, "torch.tensor([[True] * 6, [True] * 4 + [False] * 2])"]
PADDED = [*SEQUENCE, "torch.tensor([[False] * 6, [False] * 4 + [True] * 2])"]
IMAGE = ["torch.randn(2, 3, 5, 5)"]
INPUTS = {
    "StateViewed": ["torch.randn(2, 6, 4)"],
    "StateTransposed": ["torch.randn(2, 6, 4)"],
    "MaskTiled": MASKED,
    "MaskInterleaved": MASKED,
    "MaskOverHeads": MASKED,
    "SoftmaxOverBatch": IMAGE,
    "ScaledByBatch": IMAGE,
    "ShiftedSoftmax": IMAGE,
    "MinibatchDeviation": IMAGE,
    "IgnoresRunningStatistics": IMAGE,
    "RowsThatMeet": ["torch.randn(4, 4)"],
    "Similarities": ["torch.randn(4, 6)"],
    "CausalConvolution": ["torch.randn(2, 4, 9)"],
    "CausalConvolutionCentred": ["torch.randn(2, 4, 9)"],
    "AveragesPadding": PADDED,
    "AveragesTheRest": PADDED,
    "ReadsBackwardsThroughPadding": [*SEQUENCE, "torch.tensor([6, 4])"],
    "PacksSequences": [*SEQUENCE, "torch.tensor([6, 4])"],
}


def run(name: str) -> CheckResult:
    return run_check(BatchConsistency(), getattr(batched, name), INPUTS.get(name, SEQUENCE))


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("batched.py"))
def test_what_reaches_another_fails_at_the_line_that_lets_it(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert (result.verdict, result.path, result.line) == ("fail", "batched.py", line), result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


APART = ("StateTransposed", "MaskInterleaved", "SequenceFirst", "ShiftedSoftmax", "CausalConvolution")
HIDDEN = ("CausalAttention", "AveragesTheRest", "PacksSequences")


@pytest.mark.parametrize("name", [*APART, *HIDDEN])
def test_what_stays_apart_passes(name: str) -> None:
    result = run(name)
    assert result.verdict == "pass", result


@pytest.mark.parametrize(("name", "evidence"), [("CausalAttention", "causal"), ("AveragesTheRest", "padding")])
def test_a_pass_says_what_was_hidden(name: str, evidence: str) -> None:
    assert evidence in run(name).evidence


@pytest.mark.parametrize("name", ["MinibatchDeviation", "RowsThatMeet"])
def test_what_meets_on_purpose_or_may_be_no_batch_is_no_failure(name: str) -> None:
    assert run(name).verdict == "inconclusive"


def test_a_comparison_of_all_samples_keeps_none_apart() -> None:
    assert run("Similarities").verdict == "skipped"


@pytest.mark.parametrize(
    ("kind", "constructor", "inputs"),
    [
        (torch.nn.BatchNorm2d, "BatchNorm2d(3)", IMAGE),
        (torch.nn.Linear, "Linear(8, 2)", ["torch.randn(1, 8)"]),
        (torch.nn.LSTM, "LSTM(8, 3, batch_first=True)", SEQUENCE),
        (torch.nn.LSTM, "LSTM(8, 3, bidirectional=True)", SEQUENCE),
        (torch.nn.TransformerEncoderLayer, "TransformerEncoderLayer(8, 2, 16, batch_first=True)", SEQUENCE),
        (torch.nn.TransformerEncoderLayer, "TransformerEncoderLayer(8, 2, 16)", SEQUENCE),
        (torch.nn.Embedding, "Embedding(10, 4)", ["torch.randint(0, 10, (2, 5))"]),
    ],
)
def test_layers_of_torch_pass(kind: type, constructor: str, inputs: list[str]) -> None:
    result = run_check(BatchConsistency(), kind, inputs, constructor=constructor)
    assert result.verdict == "pass", result


def test_a_loss_has_no_samples_to_keep_apart() -> None:
    inputs = ["torch.randn(4, 3)", "torch.tensor([0, 1, 2, 0])"]
    assert run_check(
        BatchConsistency(), torch.nn.CrossEntropyLoss, inputs, constructor="CrossEntropyLoss()"
    ).verdict == ("skipped")
