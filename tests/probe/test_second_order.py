"""Derivatives besides the first-order reverse one: second order, forward mode and vmap, right and silently wrong."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe import GradientReport, check_gradients
from gradproof_probe.gradients.examination import Examination
from gradproof_probe.gradients.whole_calls import FunctionCall

from tests.fixtures.probe import conditional, derivatives

ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
OTHER_ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def inputs_of(name: str) -> tuple[Any, ...]:
    if "Power" in name:
        return ROWS, 2
    return (ROWS, OTHER_ROWS) if "Product" in name else (ROWS,)


def checked(name: str) -> GradientReport:
    return check_gradients(getattr(derivatives, name), inputs_of(name))


def second_order(function: Any, *inputs: Any) -> Examination:
    """What the check of second derivatives alone says."""
    call = FunctionCall(function, inputs, source_root=Path("/"), seed=0, deadline=time.monotonic() + 60)
    return call.examine("second_order", thorough=False)


@pytest.mark.parametrize(
    "name",
    [
        "SavesAnIntermediate",
        "SavesTheInputAndAnIntermediate",
        "ReadsANumber",
        "DetachesTheIncomingGradient",
        "RootOfCubicThatDetaches",
    ],
)
def test_a_backward_that_is_differentiated_wrongly_and_silently_fails(name: str) -> None:
    report = checked(name)
    assert report.verdict == "fail", report.reason
    (failure,) = report.failures
    assert (failure.check, failure.cause) == ("gradgradcheck", "wrong_second_order")
    assert abs(failure.numbers["analytic"] - failure.numbers["numeric"]) > 1e3 * failure.numbers["error_estimate"]
    assert "the backward is right" in failure.text


def test_an_input_that_gets_no_second_derivative_at_all_is_named() -> None:
    assert "nothing comes back to x" in checked("SavesAnIntermediate").reason
    assert "nothing comes back" not in checked("SavesTheInputAndAnIntermediate").reason


@pytest.mark.parametrize("name", ["SineOfExponential", "SavesItsOutput", "Tripled", "Power", "RootOfCubic"])
def test_a_backward_that_is_differentiated_rightly_passes(name: str) -> None:
    report = checked(name)
    assert report.verdict == "pass", report.reason
    assert report.evidence["second_order"] in ("agrees", "unclear")


@pytest.mark.parametrize("name", ["Once", "WithoutGradients"])
def test_a_backward_that_says_it_cannot_be_differentiated_is_no_fault(name: str) -> None:
    report = checked(name)
    assert report.verdict == "pass", report.reason
    assert report.evidence["second_order"] == "not supported"
    assert report.evidence["second_order_reason"]


def test_a_second_derivative_that_is_wrong_for_other_arguments_only_is_found_there() -> None:
    report = checked("PowerThatDetachesCubes")
    assert report.verdict == "fail", report.reason
    assert report.evidence["situation"] == "with argument 1 = 3"


def test_the_check_of_second_derivatives_alone_says_nothing_of_first_order_circumstances() -> None:
    assert second_order(conditional.ReadsMemoryInOrder, ROWS).verdict == "pass"
    assert second_order(derivatives.SavesAnIntermediate, ROWS).cause == "wrong_second_order"


def test_where_the_first_derivative_is_wrong_the_second_is_not_looked_at() -> None:
    found = second_order(conditional.Doubled, ROWS)
    assert (found.verdict, found.cause) == ("fail", "scaled_gradient")
    assert "second_order" not in found.evidence


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ProductWithHalfAJvp", "jvp is not the transpose of backward"),
        ("ProductThatWantsBothTangents", "with a tangent for x alone"),
        ("ProductWithoutTangents", "jvp raises RuntimeError: there is no tangent here"),
    ],
)
def test_a_jvp_that_disagrees_with_a_right_backward_fails(name: str, said: str) -> None:
    report = checked(name)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == "forward_mode"
    assert said in report.reason


def test_a_vmap_that_disagrees_with_a_loop_fails() -> None:
    report = checked("BatchedSumOverTheBatch")
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == "batched"


@pytest.mark.parametrize("name", ["Product", "BatchedSum", "Generated"])
def test_right_rules_for_forward_mode_and_vmap_pass(name: str) -> None:
    report = checked(name)
    assert report.verdict == "pass", report.reason
