"""Parameters without gradient: each fault fails at its line, and what is meant or merely unused stays silent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradproof_probe.checks.gradient_flow import GradientFlow
from torch import nn

from tests.fixtures.probe import flowing
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

X = ("torch.randn(4, 3)",)


def line_of(value: Any, comment: str) -> int:
    """The line inside this class that ends with this comment."""
    lines = (FIXTURES / "flowing.py").read_text(encoding="utf-8").splitlines()
    start = next(number for number, text in enumerate(lines) if text.startswith(f"class {value.__name__}("))
    return next(number + 1 for number in range(start, len(lines)) if lines[number].endswith(f"# {comment}"))


@pytest.mark.parametrize(
    ("value", "inputs", "cause"),
    [
        (flowing.FloatStrength, ("torch.rand(1, 3, 4, 4)",), "detached"),
        (flowing.CopiedFactors, ("torch.rand(2, 3)",), "detached"),
        (flowing.ThroughNumpy, X, "detached"),
        (flowing.RoundedShift, ("torch.randn(2, 10)",), "detached"),
        (flowing.HardBound, ("torch.randn(6, 2)",), "detached"),
        (flowing.PickedBin, ("torch.randn(6, 4)[:, :1].expand(6, 4).clone()",), "detached"),
        (flowing.Decided, X, "detached"),
        (flowing.GradientPenalty, X, "detached"),
        (flowing.ActorLoss, X, "zero_gradient"),
        (flowing.Rounds, X, "zero_derivative"),
    ],
)
def test_a_parameter_that_decides_the_output_without_gradient_fails_where_the_graph_stops(
    value: Any, inputs: tuple[str, ...], cause: str
) -> None:
    result = run_check(GradientFlow(), value, inputs)
    assert result.verdict == "fail", result
    assert result.diagnosis is not None
    assert (result.path, result.line) == ("flowing.py", line_of(value, "stops here")), result.summary
    assert (
        result.diagnosis.cause in {cause, "detached"} if cause == "zero_gradient" else result.diagnosis.cause == cause
    )


def test_what_a_custom_function_forgets_is_named_with_its_line() -> None:
    result = run_check(GradientFlow(), flowing.ForgetsWeight, X)
    assert (result.verdict, result.line) == ("fail", line_of(flowing.Forgets, "forgotten")), result.summary
    result = run_check(GradientFlow(), flowing.ListsOutputs, X)
    assert (result.verdict, result.line) == ("fail", line_of(flowing.Listing, "untracked")), result.summary


def test_hooks_that_spoil_or_raise_are_named_with_their_line() -> None:
    result = run_check(GradientFlow(), flowing.SpoilingHook, X)
    assert (result.verdict, result.line) == ("fail", line_of(flowing.SpoilingHook, "spoils the other branch"))
    result = run_check(GradientFlow(), flowing.WrongHook, X)
    assert result.diagnosis is not None
    assert (result.verdict, result.diagnosis.cause) == ("fail", "hook_raises"), result
    assert result.line == line_of(flowing.WrongHook, "takes three")


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        (flowing.CopyingHook, X),
        (flowing.OwnHook, X),
        (flowing.Teacher, X),
        (flowing.Codes, X),
        (flowing.OptionalBranch, X),
        (flowing.AuxiliaryLoss, X),
        (flowing.ZeroStart, X),
        (flowing.Logged, X),
        (flowing.SampledAction, X),
    ],
)
def test_what_is_meant_or_takes_no_part_passes(value: Any, inputs: tuple[str, ...]) -> None:
    result = run_check(GradientFlow(), value, inputs)
    assert result.verdict == "pass", (result.summary, result.evidence)


def test_what_takes_no_part_is_named_in_the_evidence() -> None:
    result = run_check(GradientFlow(), flowing.OptionalBranch, X)
    assert result.evidence["without_gradient"] == ["extra.weight", "extra.bias"]
    assert result.evidence["followed"][0]["cause"] == "unused"


@pytest.mark.parametrize(("value", "inputs"), [(flowing.FrozenBackbone, X), (flowing.Adversary, (*X, *X))])
def test_a_module_whose_output_its_caller_detaches_is_left_open(value: Any, inputs: tuple[str, ...]) -> None:
    result = run_check(GradientFlow(), value, inputs)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("inconclusive", "stop_gradient"), result
    assert result.line == line_of(value, "cut")


def test_a_forward_without_any_graph_is_left_open() -> None:
    result = run_check(GradientFlow(), flowing.Chooses, X)
    assert result.verdict == "inconclusive", result.summary
    assert "argmax" in result.summary


def test_a_gradient_that_vanishes_with_depth_passes_with_advice_in_numbers() -> None:
    result = run_check(GradientFlow(), flowing.Vanishing, ("torch.randn(4, 4)",))
    assert result.verdict == "pass", result
    scale = result.evidence["scale"]
    assert scale["first_to_last"] < 1e-4
    assert len(scale["layers"]) == 20
    assert any("standard deviation" in advice for advice in scale["advice"])
    assert any("float16" in advice for advice in scale["advice"])


@pytest.mark.parametrize(
    ("constructor", "inputs"),
    [
        ("nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))", X),
        ("nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())", ("torch.randn(2, 3, 6, 6)",)),
        ("nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)", ("torch.randn(2, 5, 8)",)),
        ("nn.LSTM(3, 5, batch_first=True)", ("torch.randn(2, 4, 3)",)),
    ],
)
def test_layers_of_torch_pass_without_advice(constructor: str, inputs: tuple[str, ...]) -> None:
    result = run_check(GradientFlow(), Holder, inputs, constructor=f"Holder({constructor})")
    assert result.verdict == "pass", result
    assert "without_gradient" not in result.evidence
    assert "advice" not in result.evidence["scale"]


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: torch.Tensor) -> Any:
        return self.inner(*args)
