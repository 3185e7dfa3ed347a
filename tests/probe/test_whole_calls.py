"""What goes through custom Functions is examined with them: wrappers as a whole, modules Function by Function."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe import GradientReport, check_gradients
from gradproof_probe.gradients.situations import Situation, Values
from gradproof_probe.gradients.subject import Subject
from gradproof_probe.gradients.whole_calls import CallableCall, argument_names, renumbered, wanted_positions

from tests.fixtures.probe import callers, conditional, innocent_functions

ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def checked(name: str) -> GradientReport:
    value = getattr(callers, name)
    if isinstance(value, type):
        torch.manual_seed(0)
        value = value()
    return check_gradients(value, (ROWS,))


@pytest.mark.parametrize(
    ("fn", "cause"),
    [
        (callers.half, "scaled_gradient"),
        (callers.doubled, "scaled_gradient"),
        (conditional.Doubled.apply, "scaled_gradient"),
        (callers.bound, "scaled_gradient"),
        (callers.through_what_was_bound, "scaled_gradient"),
        (callers.misreading, "grad_output_layout"),
        (callers.losing_the_tail, "size_dependent"),
        (callers.losing_the_tail_of_what_was_bound, "size_dependent"),
        (callers.second_power, None),
        (callers.through_two, "grad_output_layout"),
    ],
)
def test_a_wrapper_fails_as_its_function_does(fn: Any, cause: str | None) -> None:
    report = check_gradients(fn, (ROWS,))
    if cause is None:
        # The exponent isn't the wrapper's to change: what is wrong for others can't be reached through it.
        assert report.verdict == "pass", report.reason
        return
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == cause, report.reason


@pytest.mark.parametrize(
    "fn",
    [
        callers.square_by_lambda,
        callers.square,
        callers.by_keyword,
        callers.bound_right,
        callers.through_two_right,
        callers.without_functions,
    ],
)
def test_right_wrappers_pass(fn: Any) -> None:
    report = check_gradients(fn, (ROWS,))
    assert report.verdict == "pass", report.reason


def test_a_function_that_is_reached_past_the_oracle_is_not_held_against_itself() -> None:
    report = check_gradients(callers.right_of_what_was_bound, (ROWS,))
    assert report.verdict == "pass", report.reason
    assert "autograd through the forward" not in report.reason


def test_what_is_meant_inside_a_wrapper_does_not_fail() -> None:
    for name in ("rounding", "detaching"):
        report = checked(name)
        assert report.verdict == "inconclusive", report.reason


@pytest.mark.parametrize(
    ("name", "cause", "function"),
    [
        ("LayerThatMisreads", "grad_output_layout", "ReadsMemoryInOrder"),
        ("LayerWithoutASecondDerivative", "wrong_second_order", "SavesAnIntermediate"),
    ],
)
def test_a_module_that_is_right_by_itself_fails_for_a_function_that_its_surroundings_get_wrong(
    name: str, cause: str, function: str
) -> None:
    report = checked(name)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == cause
    assert report.evidence["function"] == function


def test_a_module_with_a_wrong_function_fails_and_its_parameters_with_it() -> None:
    report = checked("LayerWithHalfADerivative")
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == "scaled_gradient"


@pytest.mark.parametrize("name", ["Layer", "LayerOfOrdinarySizes"])
def test_inside_a_module_only_what_its_surroundings_may_do_is_tried(name: str) -> None:
    report = checked(name)
    assert report.verdict == "pass", report.reason


def test_seeing_through_a_wrapper_leaves_the_functions_as_they_were() -> None:
    before = dict(vars(conditional.Doubled))
    check_gradients(callers.doubled, (ROWS,))
    assert dict(vars(conditional.Doubled)) == before


def test_the_functions_of_a_call_are_told_each_once_in_order() -> None:
    def call(x: torch.Tensor) -> Any:
        return callers.through_two(x) + conditional.Square.apply(x)

    found = CallableCall(call, [ROWS], source_root=Path("/"), seed=0, deadline=time.monotonic() + 60).functions()
    assert [item.function for item in found] == [conditional.Square, conditional.ReadsMemoryInOrder]


def test_arguments_are_named_as_forward_names_them() -> None:
    assert argument_names(conditional.Power) == ["x", "exponent"]
    assert argument_names(innocent_functions.SeparateContext) == ["x", "power"]


def test_only_what_is_marked_is_differentiated_where_anything_is() -> None:
    plain, marked = ROWS.clone(), ROWS.clone().requires_grad_()
    assert wanted_positions([plain, 3, plain]) is None
    assert wanted_positions([plain, 3, marked]) == [2]
    assert wanted_positions([torch.tensor([1]), marked]) == [1]


def test_suggested_situations_speak_of_the_variables_that_are_wanted() -> None:
    subject = Subject(lambda a, b: a * b, None, [ROWS, ROWS], names=["a", "b"], seed=0, positions=[1])
    of_first = Situation(values=Values("constant", 2.0, only=0))
    of_second = Situation(values=Values("constant", 2.0, only=1))
    of_all = Situation(values=Values("constant", 2.0))
    second_alone = Situation(wanted=(1,))
    assert renumbered([of_first, of_second, of_all, second_alone], subject) == [
        Situation(values=Values("constant", 2.0, only=0)),
        of_all,
        Situation(wanted=(0,)),
    ]
