"""What a state dict leaves behind is found, with the line that keeps it; what is no loss stays silent."""

from __future__ import annotations

import pytest
import torch
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.state_dict import StateDict

from tests.fixtures.probe import kept_state
from tests.probe.checking import marked_faults, run_check


def run(name: str, constructor: str | None = None) -> CheckResult:
    width = 16 if name == "RandomBufferLeftOut" else 4
    return run_check(StateDict(), getattr(kept_state, name), [f"torch.randn(3, {width})"], constructor=constructor)


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("kept_state.py"))
def test_what_is_left_behind_fails_at_the_line_that_keeps_it(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert (result.verdict, result.path, result.line) == ("fail", "kept_state.py", line), result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


@pytest.mark.parametrize("name", ["ConstantTables", "CachedMask", "Aliased", "RecordsByHooks"])
def test_what_every_instance_computes_alike_is_no_loss(name: str) -> None:
    assert run(name).verdict == "pass"


def test_what_the_caller_hands_over_is_handed_over_again() -> None:
    assert run("CallerGivesWeights", "CallerGivesWeights(torch.randn(4))").verdict == "pass"


def test_modules_in_a_tuple_of_the_caller_are_no_failure() -> None:
    constructor = "ChainsWhatItIsGiven((nn.Linear(4, 4), nn.Linear(4, 4)))"
    result = run("ChainsWhatItIsGiven", constructor)
    assert result.verdict == "inconclusive", result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == "given_by_caller"


@pytest.mark.parametrize(("name", "cause"), [("FrozenTeacher", "kept_apart"), ("CarriesHiddenState", "carried_state")])
def test_what_is_kept_out_on_purpose_is_named_but_no_failure(name: str, cause: str) -> None:
    result = run(name)
    assert result.verdict == "inconclusive", result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


@pytest.mark.parametrize(
    ("kind", "constructor", "inputs"),
    [
        (torch.nn.Linear, "Linear(4, 3)", ["torch.randn(2, 4)"]),
        (torch.nn.BatchNorm1d, "BatchNorm1d(4)", ["torch.randn(5, 4)"]),
        (torch.nn.LSTM, "LSTM(4, 3, batch_first=True)", ["torch.randn(2, 5, 4)"]),
        (
            torch.nn.TransformerEncoderLayer,
            "TransformerEncoderLayer(8, 2, 16, batch_first=True)",
            ["torch.randn(2, 5, 8)"],
        ),
    ],
)
def test_layers_of_torch_pass(kind: type, constructor: str, inputs: list[str]) -> None:
    result = run_check(StateDict(), kind, inputs, constructor=constructor)
    assert result.verdict == "pass", result
    assert result.evidence["trained"] == 2


def test_a_module_without_state_is_skipped() -> None:
    assert run_check(StateDict(), torch.nn.ReLU, ["torch.randn(2, 4)"], constructor="ReLU()").verdict == "skipped"
