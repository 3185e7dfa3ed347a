"""Training steps: what has no effect, or another one, fails at its line; right steps that look like it stay silent."""

from __future__ import annotations

import pytest
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.training_step import TrainingStep

from tests.fixtures.probe import lone_steps, training_steps
from tests.probe.checking import marked_faults, run_check

NET = "net := make_net()"
SGD = "optimizer := torch.optim.SGD(net.parameters(), lr=0.1)"
X, Y = "torch.randn(6, 4)", "3 * torch.randn(6, 1)"
SCALER = "torch.amp.GradScaler('cpu')"
BATCHES = "[(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(4)]"

INPUTS = {
    "mixed": [NET, SGD, SCALER, X, Y],
    "mixed_clipped_scaled": [NET, SGD, SCALER, X, Y],
    "mixed_by_hand": [NET, SGD, SCALER, X, Y],
    "mixed_limit_scaled": [NET, SGD, SCALER, X, Y],
    "epoch": [NET, SGD, BATCHES],
    "epoch_cleared_each_time": [NET, SGD, BATCHES],
    "epoch_never_cleared": [NET, SGD, f"(batch for batch in {BATCHES})"],
    "epoch_cleared_too_early": [NET, SGD, BATCHES],
    "sharpness_aware": [NET, "SharpnessAware(net.parameters(), torch.optim.SGD)", X, Y],
    "adversaries": [
        "maker := torch.nn.Linear(3, 4)",
        "judge := make_net()",
        "torch.optim.Adam(maker.parameters())",
        "torch.optim.Adam(judge.parameters())",
        "torch.randn(6, 3)",
        X,
    ],
    "with_memory": ["net := torch.nn.Linear(4, 1)", SGD, X, Y],
    "with_freed_memory": ["Holder()", NET, SGD, X, Y],
    "with_detached_memory": ["Holder()", NET, SGD, X, Y],
    "scheduled": [NET, SGD, "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)", X, Y],
    "scheduled_first": [NET, SGD, "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)", X, Y],
}
RIGHT = (
    *("clipped", "clipped_by_value", "clipped_each_part", "mixed", "mixed_by_hand", "mixed_limit_scaled"),
    *("mixed_switched_off", "epoch", "adversarial", "sharpness_aware", "adversaries", "by_closure"),
    *("with_detached_memory", "scheduled"),
)


def run(name: str) -> CheckResult:
    return run_check(TrainingStep(), getattr(training_steps, name), INPUTS.get(name, [NET, SGD, X, Y]))


@pytest.mark.parametrize(("name", "cause", "line"), marked_faults("training_steps.py"))
def test_an_act_without_its_effect_fails_at_its_line(name: str, cause: str, line: int) -> None:
    result = run(name)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", cause), result
    assert (result.path, result.line) == ("training_steps.py", line), result


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_step_passes(name: str) -> None:
    result = run(name)
    assert result.verdict == "pass", result


def test_the_effect_of_clipping_scaled_gradients_is_in_numbers() -> None:
    result = run("mixed_clipped_scaled")
    assert result.diagnosis is not None
    numbers = result.diagnosis.numbers
    assert numbers["scale"] == 65536
    assert numbers["at_the_step"] == pytest.approx(0.1 / 65536, rel=1e-2)
    assert numbers["before_clipping"] > 0.1


def test_a_limit_that_ordinary_gradients_do_not_reach_is_tried_with_larger_ones() -> None:
    result = run("clipped_after_step_seldom")
    assert result.diagnosis is not None
    assert result.diagnosis.numbers["at_the_step"] > result.diagnosis.numbers["limit"] == 1e4


def test_methods_are_followed_and_the_order_is_told() -> None:
    method = training_steps.Trainer.fit_batch
    result = run_check(TrainingStep(), method, ["Trainer(make_net())", X, Y])
    assert result.verdict == "pass", result
    acts = [act.partition(" ")[0] for act in result.evidence["order"]]
    assert acts == ["zero_grad", "forward", "backward", "step"]


def test_gradients_that_nothing_in_the_file_clears_are_found_between_calls() -> None:
    method = lone_steps.KeywordTrainer.fit_keyword
    inputs = ["KeywordTrainer(torch.nn.Linear(6, 3))", "torch.randn(8, 6)", "torch.randint(0, 3, (8,))"]
    result = run_check(TrainingStep(), method, inputs)
    assert result.diagnosis is not None, result
    assert (result.diagnosis.cause, result.path, result.line) == ("gradients_not_cleared", "lone_steps.py", 15)


def test_a_scaler_that_nothing_updates_is_told_by_what_it_raises() -> None:
    net = "net := torch.nn.Linear(4, 1)"
    result = run_check(TrainingStep(), lone_steps.mixed_not_updated, [net, SGD, SCALER, X, Y])
    assert result.diagnosis is not None, result
    assert (result.diagnosis.cause, result.path, result.line) == ("scaler_update_missing", "lone_steps.py", 23)


def test_shapes_that_are_not_declared_are_not_judged_and_what_does_not_train_is_skipped() -> None:
    assert run_check(TrainingStep(), training_steps.evaluate, ["make_net()", X, Y]).verdict == "skipped"
    assert run_check(TrainingStep(), training_steps.Trainer, [X]).verdict == "skipped"
