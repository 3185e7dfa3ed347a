"""A wrong backward fails with its cause in the smallest circumstance that shows it; what is right doesn't fail."""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe import check_gradients

from tests.fixtures.probe import conditional, innocent_functions
from tests.probe.conftest import ROOT

Tensor = torch.Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


ROWS = normal(3, 4)
OTHER_ROWS = normal(3, 4, seed=1)
IMAGES = normal(2, 3, 4, 4)
TABLE = (normal(6, 3), torch.tensor([0, 4, 2]))
ONE: tuple[Any, ...] = (ROWS,)
TWO: tuple[Any, ...] = (ROWS, OTHER_ROWS)

# The Function, its inputs, the cause, and what the smallest situation that fails is said to be.
CONDITIONAL: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "ReadsMemoryInOrder": (ONE, "grad_output_layout", "for a transposed incoming gradient"),
    "ForgetsTheOffset": (ONE, "grad_output_layout", "for an offset (sliced) incoming gradient"),
    "ViewsTheGradient": (ONE, "grad_output_layout", "for a transposed incoming gradient"),
    "SumsChannelsInMemory": ((IMAGES,), "grad_output_layout", "for a channels_last incoming gradient"),
    "ClipsWhatComesIn": (ONE, "not_linear", "for an incoming gradient that is at and around"),
    "LosesNegativeGradients": (ONE, "grad_output_dependent", "for an incoming gradient that is negative"),
    "CountsWantedGradientsInstead": (TWO, "requires_grad_subset", "when only input 1 requires grad"),
    "TakesAnUnusedOutputForOnes": (TWO, "grad_output_dependent", "for an incoming gradient that is all zeros"),
    "TellsInputsApartByAddress": (TWO, "aliasing", "when the same tensor is given for several inputs"),
    "KeepsItsInputOnTheClass": (ONE, "state_outside_ctx", "when another forward comes between forward and backward"),
    "CachesByAddress": (ONE, "state_outside_ctx", "after a call with other values in the same tensor"),
    "CalibratesInInference": (ONE, "state_outside_ctx", "after a call under no_grad"),
    "CountsItsBackwards": (ONE, "backward_not_repeatable", "in a second backward over the same graph"),
    "KeepsATensorOnCtx": (ONE, "stale_saved_value", "when an input is written to in place before backward"),
    "KeepsItsOutputOnCtx": (ONE, "stale_saved_value", "when the output is written to in place before backward"),
    "DrawsItsMaskAgain": (ONE, "random_backward", "when random generators stand elsewhere as backward begins"),
    "AnotherWayUnderGradMode": (ONE, "mode_dependent", "with create_graph=True"),
    "AnotherWayInDeterministicMode": (ONE, "mode_dependent", "with torch.use_deterministic_algorithms(True)"),
    "ReadsItsInputInOrder": (ONE, "input_layout", "for a transposed input"),
    "LosesTheSignOfLargeValues": (ONE, "wrong_region", "for inputs at and around -2.5"),
    "LosesTheTail": (ONE, "size_dependent", "instead of 4"),
    "DividesByTheLength": (ONE, "size_dependent", "for size 1 instead of 4"),
    "SumsOverAxisOne": (ONE, "shape_dependent", "with one dimension more"),
    "DividesTheSumOfASingleBias": ((ROWS, normal(4)), "shape_dependent", "when input 1 has size 1 in axis 0"),
    "LookupThatOverwrites": (TABLE, "value_dependent", "when all indices are equal"),
    "PowerOfTwoOnly": ((ROWS, 2), "argument_dependent", "with argument 1 = 3"),
    "MagnitudeOfRealNumbers": (ONE, "dtype_dependent", "in complex128"),
}


@pytest.mark.parametrize("name", CONDITIONAL)
def test_a_backward_that_is_wrong_in_one_circumstance_fails_with_that_circumstance_and_its_cause(name: str) -> None:
    inputs, cause, situation = CONDITIONAL[name]
    report = check_gradients(getattr(conditional, name), inputs)
    assert report.verdict == "fail", report.reason
    (failure,) = report.failures
    assert (failure.check, failure.cause) == ("gradcheck", cause), failure.text
    assert situation in report.evidence["situation"]
    assert ", " not in report.evidence["situation"], "no more than the one circumstance"
    assert failure.worst is not None or "raises" in failure.text


RIGHT: dict[str, tuple[Any, ...]] = {
    "Square": ONE,
    "ReadsMemoryOfACopy": ONE,
    "TakesTheSameWayFasterForOnes": ONE,
    "Product": TWO,
    "SumAndDifference": TWO,
    "UnusedOutputsStayNone": TWO,
    "CachesAConstant": ONE,
    "SavesItsOutput": ONE,
    "SavesItsMask": ONE,
    "Huber": ONE,
    "WorksInBlocks": ONE,
    "SumsOverTheLastAxis": ONE,
    "SumsItsBias": (ROWS, normal(4)),
    "Lookup": TABLE,
    "Power": (ROWS, 2),
    "Magnitude": ONE,
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_same_done_right_passes(name: str) -> None:
    report = check_gradients(getattr(conditional, name), RIGHT[name])
    assert report.verdict == "pass", report.reason
    assert report.failures == ()
    assert report.evidence["situations"] > 30


ALWAYS = {
    "Doubled": "scaled_gradient",
    "WritesToItsInput": "input_mutated",
    "WritesToTheIncomingGradient": "grad_output_mutated",
    "ReturnsTheSameMemoryAgain": "state_outside_ctx",
    "IgnoresWhatComesIn": "ignores_grad_output",
    "NormalisesWhatComesIn": "not_linear",
    "DrawsInBackwardAlone": "random_backward",
}


@pytest.mark.parametrize("name", ALWAYS)
def test_what_is_wrong_in_every_call_is_told_without_a_circumstance(name: str) -> None:
    report = check_gradients(getattr(conditional, name), ONE)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == ALWAYS[name], report.reason
    assert "situation" not in report.evidence


def test_a_gradient_that_is_none_is_a_fault_only_for_what_was_marked_as_requiring_grad() -> None:
    assert check_gradients(conditional.ForgetsItsSecondInput, TWO).verdict == "pass"
    marked = [item.clone().requires_grad_() for item in TWO]
    report = check_gradients(conditional.ForgetsItsSecondInput, marked)
    assert report.verdict == "fail", report.reason
    assert report.failures[0].cause == "missing_gradient"
    assert "y" in report.failures[0].text


def test_of_two_circumstances_that_are_needed_together_both_are_named() -> None:
    report = check_gradients(conditional.NeedsTwoCircumstances, ONE)
    assert report.verdict == "fail", report.reason
    assert "instead of" in report.evidence["situation"]
    assert "inputs" in report.evidence["situation"]


def test_the_worst_coordinate_comes_with_both_values_and_their_error() -> None:
    worst = check_gradients(conditional.Doubled, ONE).failures[0].worst
    assert worst is not None
    value = float(ROWS[tuple(worst["index"])])
    assert worst["variable"] == "x"
    assert value == pytest.approx(float(ROWS.flatten()[ROWS.abs().argmax()]), abs=1), "one of the largest"
    assert worst["numeric"] == pytest.approx(2 * worst["analytic"], rel=1e-6)
    assert worst["error_estimate"] < 1e-6 * abs(worst["numeric"])


# What must not fail

POSITIVE = ROWS.abs() + 1.2
PROBABILITIES = normal(3, 4).softmax(-1)

INNOCENT: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "setup_context that marks": ("SeparateContextThatMarks", ONE, "pass"),
    "relu at its corner here and there": ("RectifierWithOneAtZero", (ROWS * (ROWS > 0),), "pass"),
    "straight-through": ("StraightThrough", ONE, "inconclusive"),
    "surrogate of a step": ("SurrogateSpike", ONE, "inconclusive"),
    "reversal": ("Flipped", ONE, "inconclusive"),
    "relu with the other subgradient": ("RectifierWithOneAtZero", ONE, "pass"),
    "relu at its corner": ("RectifierWithOneAtZero", (torch.zeros(3, 4),), "inconclusive"),
    "maximum": ("Maximum", ONE, "pass"),
    "maximum of equal ones": ("Maximum", (torch.ones(3, 4),), "inconclusive"),
    "bisection": ("CubeRootByBisection", ONE, "pass"),
    "in place, and says so": ("ExponentialInPlace", ONE, "pass"),
    "numpy": ("SineByNumpy", ONE, "pass"),
    "only what is wanted": ("Matmul", (ROWS, normal(4, 2), normal(2)), "pass"),
    "complex": ("ComplexProduct", tuple(torch.randn(4, dtype=torch.complex64) for _ in range(2)), "pass"),
    "sparse, with padding": ("SparseTable", (normal(5, 3), torch.tensor([0, 4, 2, 2])), "pass"),
    "an output without gradient": ("ValuesAndPlaces", ONE, "pass"),
    "of positive numbers alone": ("RootOfLogarithm", (POSITIVE,), "pass"),
    "float32 alone": ("Single", ONE, "pass"),
    "float32 inside": ("SingleInside", ONE, "pass"),
    "softmax": ("Softmax", ONE, "pass"),
    "softmax of one": ("Softmax", (normal(3, 1),), "inconclusive"),
    "setup_context": ("SeparateContext", (POSITIVE, 3), "pass"),
    "differences that see nothing": ("TremblesTooFast", ONE, "inconclusive"),
    "an exponent of 0 that nobody gives": ("ThroughANorm", (ROWS, 1), "pass"),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("what", INNOCENT)
def test_right_functions_of_unusual_kinds_do_not_fail(what: str) -> None:
    name, inputs, verdict = INNOCENT[what]
    report = check_gradients(getattr(innocent_functions, name), inputs)
    assert report.verdict == verdict, report.reason
    report.raise_for_failure()


def test_what_is_meant_says_so() -> None:
    assert "locally constant" in check_gradients(innocent_functions.StraightThrough, ONE).reason
    assert "identity" in check_gradients(innocent_functions.Flipped, ONE).reason


def test_a_forward_that_autograd_cannot_follow_is_judged_by_differences_alone() -> None:
    for function in (innocent_functions.SineByNumpy, innocent_functions.CubeRootByBisection):
        report = check_gradients(function, ONE)
        assert "agrees with finite differences" in report.reason
    assert "autograd through the forward" in check_gradients(innocent_functions.Softmax, ONE).reason


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("Flat", ONE, "every gradient is zero"),
        ("Noise", ONE, "two evaluations"),
        ("Reciprocal", (torch.zeros(3, 4),), "isn't finite"),
    ],
)
def test_where_nothing_can_be_told_the_verdict_is_inconclusive_and_says_why(
    name: str, inputs: tuple[Any, ...], said: str
) -> None:
    report = check_gradients(getattr(innocent_functions, name), inputs)
    assert report.verdict == "inconclusive"
    assert said in report.reason


# The report


def test_lines_of_backward_that_nothing_executed_are_told() -> None:
    lines, first = inspect.getsourcelines(conditional.HasAWayThatNothingTakes.backward)
    line = first + next(number for number, text in enumerate(lines) if text.strip() == "return grad")
    report = check_gradients(conditional.HasAWayThatNothingTakes, ONE)
    assert report.verdict == "pass"
    assert report.evidence["unexecuted_lines"] == [line]
    assert f"no situation executed line {line} " in report.reason
    assert "unexecuted_lines" not in check_gradients(conditional.TakesTheSameWayFasterForOnes, ONE).evidence


def test_errors_that_are_loud_are_reported_and_do_not_fail() -> None:
    report = check_gradients(conditional.SavesItsOutput, ONE)
    assert report.verdict == "pass"
    assert any(text.startswith("when the output is written to") for text in report.evidence["raises"])


def test_without_time_only_the_ordinary_call_is_looked_at() -> None:
    report = check_gradients(conditional.ReadsMemoryInOrder, ONE, budget_s=0)
    assert report.verdict == "pass"
    assert report.evidence["situations"] == 0
    assert "time limit" in report.evidence["stopped"]
    assert check_gradients(conditional.Doubled, ONE, budget_s=0).verdict == "fail"


@pytest.mark.parametrize("name", ["DrawsItsMaskAgain", "DrawsInBackwardAlone", "Square", "SavesItsMask"])
def test_random_numbers_that_are_drawn_leave_no_trace(name: str) -> None:
    torch.manual_seed(5)
    random.seed(5)
    states = torch.random.get_rng_state(), random.getstate()
    check_gradients(getattr(conditional, name), ONE)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_modes_and_inputs_are_left_as_they_were() -> None:
    inputs = (ROWS.clone(), OTHER_ROWS.clone())
    check_gradients(conditional.Product, inputs)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_anomaly_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(inputs[0], ROWS)
    assert torch.equal(inputs[1], OTHER_ROWS)
    assert all(item.grad is None and item.dtype == torch.float32 for item in inputs)


def test_the_same_call_gives_the_same_report() -> None:
    first, second = (check_gradients(conditional.LosesTheTail, ONE, seed=3) for _ in range(2))
    assert first.reason == second.reason
    assert first.failures == second.failures


def test_the_repro_shows_the_failure_by_itself(tmp_path: Path) -> None:
    text = check_gradients(conditional.LosesTheTail, ONE).repro()
    assert text is not None
    assert "gradproof" not in text
    script = tmp_path / "repro.py"
    script.write_text(text, encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-I", str(script), str(ROOT)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert shown.returncode == 1, shown.stderr
    assert "expected:" in shown.stdout


def test_what_passes_or_cannot_be_imported_has_no_repro() -> None:
    class Local(conditional.Doubled):  # type: ignore[misc]
        pass

    assert check_gradients(conditional.Square, ONE).repro() is None
    report = check_gradients(Local, ONE)
    assert report.verdict == "fail"
    assert report.repro() is None
