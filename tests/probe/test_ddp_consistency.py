"""Two real processes: what differs from one process fails at its line; what is meant so, and clean runs, do not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.ddp_consistency import DDPConsistency
from gradproof_probe.training.ranks import Found, Ranks, Work, run_ranks
from torch import distributed

from tests.fixtures.probe import several_ranks, training_steps
from tests.probe.checking import marked_faults, run_check

MODEL = "model := make_net()"
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
X, Y = "torch.randn(6, 4)", "torch.randint(0, 3, (6,))"
INPUTS = {
    **{name: [MODEL, X, X] for name in ("contrast", "contrast_detached", "contrast_scaled")},
    "contrast_with_keys": [MODEL, "make_net()", X, X],
    "contrast_embeddings_loss": [X, X],
    "contrast_embeddings_detached_loss": [X, X],
    "loss_that_is_logged": [MODEL, X, Y],
    **{name: ["torch.randn(3)"] for name in ("reduce_mean", "average_value", "reduce_total")},
    "average_in_one_bucket": [MODEL, "world_size=1"],
}


def run(name: str, seconds: float = 60.0) -> CheckResult:
    value = getattr(several_ranks, name)
    if isinstance(value, type):
        return run_check(DDPConsistency(), value, [X], seconds=seconds)
    inputs = INPUTS.get(name, [MODEL, SGD, X, Y] if name.startswith("step") else [MODEL])
    return run_check(DDPConsistency(), value, inputs, seconds=seconds)


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("several_ranks.py"))
def test_what_differs_from_one_process_fails_at_its_line(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", cause), result
    assert (result.path, result.line) == ("several_ranks.py", line), result


@pytest.mark.parametrize("name", ["average_gradients", "average_in_one_bucket", "contrast", "step_averaged", "Mixer"])
def test_a_clean_run_agrees_to_rounding(name: str) -> None:
    result = run(name)
    assert result.verdict == "pass", result
    numbers = result.evidence["numbers"]
    error = numbers.get("error", numbers.get("left_over", numbers.get("from_one_process")))
    assert error < 1e-4, numbers


@pytest.mark.parametrize(
    "name",
    [
        *("contrast_embeddings_loss", "contrast_with_keys", "loss_that_is_logged", "step_of_wrapped_model"),
        *("reduce_mean", "reduce_total", "sum_gradients", "Normed"),
    ],
)
def test_what_is_meant_so_passes(name: str) -> None:
    result = run(name)
    assert result.verdict == "pass", result


def test_by_design_is_noted() -> None:
    normed = run("Normed")
    assert normed.diagnosis is not None
    assert normed.diagnosis.cause == "depends_on_batch"
    assert "layers.1.running_mean" in normed.evidence["numbers"]["buffers_differ"]
    assert run("Mixer").evidence["unused_parameters"] == ["unused.bias", "unused.weight"]


def test_ranks_that_wait_for_each_other_end_with_the_deadline() -> None:
    result = run("stuck", seconds=2.0)
    assert result.verdict == "inconclusive", result


def test_a_rank_that_hangs_or_dies_is_told_from_one_that_raises() -> None:
    hung = _two_ranks(_hangs, 1.0)
    assert (hung.found, hung.hung) == (None, True)
    raised = _two_ranks(_raises, 20.0)
    assert not raised.hung
    assert "no such rank" in raised.why
    assert raised.place == ("test_ddp_consistency.py", _raises.__code__.co_firstlineno + 2)


def _two_ranks(work: Work, seconds: float) -> Ranks:
    return run_ranks(work, world=2, deadline=time.monotonic() + seconds, source_root=Path(__file__).parent)


def _hangs(rank: int, _found: Found) -> None:
    while rank:
        time.sleep(0.01)


def _raises(rank: int, _found: Found) -> None:
    if rank:
        raise ValueError("no such rank")
    distributed.barrier()


def test_functions_without_collectives_are_their_callers_affair() -> None:
    result = run_check(DDPConsistency(), training_steps.clipped, [MODEL])
    assert result.verdict == "skipped"
