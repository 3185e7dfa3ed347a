"""Functions that change what is not theirs fail at the line that does; caches and in-place work are no fault."""

from __future__ import annotations

import pytest
import torch
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.eval_side_effects import EvalSideEffects

from tests.fixtures.probe import effects_of_functions as effects
from tests.probe.checking import marked_faults, run_check

MASKED = ["torch.randn(3, 4)", "torch.tensor([True, False, True, True]).expand(3, 4)"]
INPUTS = {
    "writes_to_buffer": ["torch.randn(3, 4)", "torch.zeros(3, 4)"],
    "seeds_as_asked": ["torch.randn(3, 4)", "seed=7"],
    **dict.fromkeys(("clears_argument", "clears_copy", "clears_and_returns", "clear_", "documented", "fills"), MASKED),
}


def run(name: str) -> CheckResult:
    return run_check(EvalSideEffects(), getattr(effects, name), INPUTS.get(name, ["torch.randn(3, 4)"]))


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("effects_of_functions.py"))
def test_what_a_call_does_to_others_fails_at_its_line(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert (result.verdict, result.path, result.line) == ("fail", "effects_of_functions.py", line), result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


@pytest.mark.parametrize(
    "name",
    [
        *("clears_copy", "clear_", "documented", "fills", "writes_to_buffer"),
        *("seeds_its_own", "seeds_aside", "samples"),
        *("reads_constant", "keeps_by_shape", "counts", "Doubles", "uses_helper", "ramped"),
    ],
)
def test_what_changes_nothing_or_what_it_is_there_to_change_passes(name: str) -> None:
    result = run(name)
    assert result.verdict == "pass", result


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("clears_and_returns", "input_written"),
        ("helper", "input_written"),
        ("seeds_as_asked", "generator_reseeded"),
        ("remembers", "state_advances"),
        ("decays", "state_advances"),
        ("follows", "shared_tensor_written"),
    ],
)
def test_what_may_be_meant_is_named_but_no_failure(name: str, cause: str) -> None:
    result = run(name)
    assert result.verdict == "inconclusive", result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == cause


def test_what_a_call_keeps_is_put_back() -> None:
    before = effects.SCALES.clone(), effects.RUNNING.clone(), effects._LEVEL, effects._CALLS
    for name in ("wears_constant_out", "follows", "decays", "counts", "collects", "less_kept"):
        run(name)
    now = effects.SCALES, effects.RUNNING, effects._LEVEL, effects._CALLS
    assert torch.equal(before[0], now[0])
    assert torch.equal(before[1], now[1])
    assert (before[2:], effects._KEPT, effects.collects.__defaults__) == (now[2:], {}, ([],))


def test_settings_are_put_back() -> None:
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    for name in ("leaves_double", "leaves_gradients_off"):
        run(name)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before


def test_a_call_that_raises_says_so() -> None:
    result = run_check(EvalSideEffects(), effects.samples, ["'no tensor'"])
    assert result.verdict == "error"
    assert "raises" in result.summary
