"""Hessian-vector products: a wrong one fails where it is made; what has no Hessian, or says so, does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradproof_probe.checks.hvp import HessianVectorProduct
from torch import nn

from tests.fixtures.probe import curved
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

X = ("torch.randn(4, 3)",)


def test_a_saved_intermediate_fails_at_the_backward_that_is_differentiated_wrongly() -> None:
    result = run_check(HessianVectorProduct(), curved.Wrong, X)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", "wrong_second_order"), result
    lines = (FIXTURES / "curved.py").read_text(encoding="utf-8").splitlines()
    assert lines[(result.line or 1) - 1].endswith("# wrong when differentiated")
    assert "SavesIntermediate" in result.summary


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        (curved.Right, X),
        (curved.Shifted, X),
        (curved.energy, ("torch.randn(4, 3)", "torch.randn(3, 2)")),
    ],
)
def test_right_second_derivatives_pass_with_both_numbers(value: Any, inputs: tuple[str, ...]) -> None:
    result = run_check(HessianVectorProduct(), value, inputs)
    assert result.verdict == "pass", result
    for product in result.evidence["products"]:
        assert product["analytic"] == pytest.approx(product["numeric"], rel=1e-5)
        assert abs(product["analytic"]) > 1e-6


@pytest.mark.parametrize(
    ("value", "inputs", "words"),
    [
        (curved.Unsupported, X, "once_differentiable"),
        (curved.StraightThrough, X, "not the derivative"),
        (curved.Stopped, X, "not the derivative"),
        (curved.affine, X, "linear"),
        (curved.nearest, ("torch.randn(8, 2, 5)", "torch.randint(1, 5, (2, 3))"), "ctc_loss"),
    ],
)
def test_what_has_no_second_derivative_is_skipped_with_the_reason(
    value: Any, inputs: tuple[str, ...], words: str
) -> None:
    result = run_check(HessianVectorProduct(), value, inputs)
    assert (result.verdict, words in result.summary) == ("skipped", True), result


def test_a_corner_of_the_gradient_is_labelled() -> None:
    result = run_check(HessianVectorProduct(), curved.Bend, ("torch.zeros(3)",))
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("inconclusive", "kinks"), result


def test_a_second_derivative_that_is_not_finite_is_labelled() -> None:
    result = run_check(HessianVectorProduct(), curved.halved, ("torch.tensor([[0.5, -1.0, 2.0]])",))
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("inconclusive", "not_finite"), result


@pytest.mark.parametrize(
    ("constructor", "inputs"),
    [
        ("nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))", X),
        ("nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())", ("torch.randn(2, 3, 6, 6)",)),
        ("nn.LSTM(3, 5, batch_first=True)", ("torch.randn(2, 4, 3)",)),
    ],
)
def test_layers_of_torch_pass(constructor: str, inputs: tuple[str, ...]) -> None:
    result = run_check(HessianVectorProduct(), Holder, inputs, constructor=f"Holder({constructor})")
    assert result.verdict == "pass", result


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: torch.Tensor) -> Any:
        return self.inner(*args)


def test_a_gradient_with_a_corner_is_left_open_with_the_reason() -> None:
    result = run_check(HessianVectorProduct(), curved.squared_ramp, ("torch.zeros(4, 3)",))
    assert (result.verdict, result.diagnosis and result.diagnosis.cause) == ("inconclusive", "kinks"), result
    assert "corner" in result.summary
