"""Digits that a backward loses, and narrower types in which it is another function: found, and told from rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradproof_probe import check_gradients

from tests.fixtures.probe import innocent_functions, narrow


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ROWS = normal(3, 4)
INPUTS: dict[str, tuple[Any, ...]] = {
    "HalvedUnderAutocast": (ROWS, normal(4, 5, seed=1)),
    "KeepsItsTypesUnderAutocast": (ROWS, normal(4, 5, seed=1)),
    "Product": (ROWS, normal(3, 4, seed=1)),
    "ProductOfOneType": (ROWS, normal(3, 4, seed=1)),
    "OverflowsAtThirty": (40 * ROWS,),
}


def checked(name: str) -> Any:
    return check_gradients(getattr(narrow, name), INPUTS.get(name, (ROWS,)))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("ThroughSingle", "float32"), ("ThroughBfloat16", "bfloat16"), ("OneFactorThroughSingle", "float32")],
)
def test_a_float64_gradient_with_the_digits_of_a_narrower_type_fails(name: str, dtype: str) -> None:
    report = checked(name)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == "rounded"
    assert f"rounded to {dtype}" in report.reason
    assert "situation" not in report.evidence


@pytest.mark.parametrize(
    ("name", "cause", "situation"),
    [
        ("HalvedInSingle", "dtype_dependent", "in float32"),
        ("HalvedInBfloat16", "dtype_dependent", "in bfloat16"),
        ("ThroughHalfInSingle", "rounded", "in float32"),
        ("HalvedUnderAutocast", "autocast_dependent", "in float32, under autocast"),
        ("ProductOfOneType", "dtype_dependent", "when input 0 alone is float32"),
        ("OverflowsAtOne", "dtype_dependent", "in float16"),
    ],
)
def test_a_gradient_that_is_worse_in_a_narrower_type_than_that_type_makes_it_fails(
    name: str, cause: str, situation: str
) -> None:
    report = checked(name)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == cause, report.reason
    assert report.evidence["situation"] == situation


@pytest.mark.parametrize("name", ["Square", "SingleWhereHalf", "KeepsItsTypesUnderAutocast", "Product", "SingleAlone"])
def test_what_the_type_itself_costs_is_no_fault(name: str) -> None:
    report = checked(name)
    assert report.verdict == "pass", report.reason


def test_an_overflow_at_inputs_that_are_hardly_given_in_half_precision_is_no_fault() -> None:
    assert checked("OverflowsAtThirty").verdict == "pass"


def test_a_forward_in_float32_makes_the_rest_be_judged_by_its_rounding() -> None:
    report = check_gradients(innocent_functions.SingleInside, (ROWS,))
    assert report.verdict == "pass", report.reason
    assert "float32" in report.evidence["computes_in"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("SingleAloneAndSlightlyOff", "scaled_gradient"), ("SingleAloneAndMisreading", "grad_output_layout")],
)
def test_what_takes_float32_alone_is_examined_in_float32(name: str, cause: str) -> None:
    report = checked(name)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == cause
