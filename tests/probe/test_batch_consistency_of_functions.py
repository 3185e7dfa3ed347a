"""Functions that let samples or positions know each other fail where code says which axis is which, and only there."""

from __future__ import annotations

import pytest
import torch
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.batch_consistency import BatchConsistency

from tests.fixtures.probe import batched_functions as batched
from tests.probe.checking import marked_faults, run_check

ROWS = ["torch.randn(2, 6)"]
PAIR = ["torch.randn(4, 6)", "torch.randn(4, 6)"]
HEADS = ["torch.randn(2, 3, 5, 4)"]
ATTENDING = ["torch.randn(2, 3, 5, 4)"] * 3 + ["is_causal=True"]
SMOOTHED = ["torch.randn(2, 4, 9)", "torch.rand(4, 1, 3)"]
INPUTS = {
    **dict.fromkeys(("heads_merged", "heads_merged_rightly"), HEADS),
    **dict.fromkeys(("attention", "attention_of_the_past"), ATTENDING),
    **dict.fromkeys(("causal_smoothing", "causal_smoothing_of_the_past"), SMOOTHED),
    **dict.fromkeys(("contrastive_loss", "mean_error"), PAIR),
    "filtered": ["torch.randn(2, 4, 9)", "torch.randn(2, 4, 3)"],
    "batch_normalised": [*ROWS, "torch.zeros(6)", "torch.ones(6)", "True"],
}


def run(name: str, inputs: list[str] | None = None) -> CheckResult:
    return run_check(BatchConsistency(), getattr(batched, name), inputs or INPUTS.get(name, ROWS))


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("batched_functions.py"))
def test_what_reaches_another_fails_at_the_line_that_lets_it(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert (result.verdict, result.path, result.line) == ("fail", "batched_functions.py", line), result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


APART = ("weights_over_positions", "heads_merged_rightly", "Square", "filtered")


@pytest.mark.parametrize("name", [*APART, "attention_of_the_past", "causal_smoothing_of_the_past"])
def test_what_stays_apart_passes(name: str) -> None:
    result = run(name)
    assert result.verdict == "pass", result


def test_a_pass_says_that_later_positions_were_changed() -> None:
    assert "is_causal=True" in run("attention_of_the_past").evidence["causal"]


def test_what_is_asked_for_as_not_causal_may_see_everything() -> None:
    assert run("attention", [*ATTENDING[:3], "is_causal=False"]).verdict == "pass"


OF_ALL = ("normalised_advantages", "batch_normalised", "nearest_neighbours", "shuffled", "shares_of_batch")


@pytest.mark.parametrize("name", OF_ALL)
def test_a_figure_of_the_whole_batch_is_no_failure(name: str) -> None:
    assert run(name).verdict == "inconclusive"


@pytest.mark.parametrize("name", ["rows_of_anything", "contrastive_loss", "mean_error"])
def test_nothing_is_said_of_what_has_no_samples_to_keep_apart(name: str) -> None:
    assert run(name).verdict in ("skipped", "inconclusive")


@pytest.mark.parametrize("function", [torch.nn.functional.mse_loss, torch.nn.functional.cosine_similarity])
def test_functions_of_torch_are_no_failure(function: object) -> None:
    assert run_check(BatchConsistency(), function, PAIR).verdict in ("pass", "skipped")


def test_values_are_changed_within_what_the_code_takes() -> None:
    assert run("within_bounds", ["torch.ones(2, 6) - torch.eye(2, 6)"]).verdict == "pass"
