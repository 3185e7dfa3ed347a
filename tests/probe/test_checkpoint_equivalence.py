"""Activation checkpoints that change what is trained fail at their line; those that don't stay silent."""

from __future__ import annotations

from typing import Any

import pytest
from gradproof_probe.checks.checkpoint_equivalence import CheckpointEquivalence

from tests.fixtures.probe import checkpointed
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

X = ("torch.randn(4, 8)",)
IDS = ("torch.randint(0, 10, (4,))",)


def check(name: str, inputs: tuple[str, ...]) -> Any:
    return run_check(CheckpointEquivalence(), getattr(checkpointed, name), inputs)


def marked(name: str) -> int:
    lines = (FIXTURES / "checkpointed.py").read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# fault: {name}")]
    return found


@pytest.mark.parametrize(
    ("name", "cause", "inputs"),
    [
        ("OtherMasks", "random_state_not_preserved", X),
        ("NormInside", "buffer_updated_twice", X),
        ("Warming", "state_changed", X),
        ("MovedAfterwards", "state_changed", X),
        ("WordsInside", "no_gradient_through_reentrant", IDS),
        ("FirstLayerInside", "no_gradient_through_reentrant", X),
        ("PythonNoise", "random_state_not_preserved", X),
        ("EndsWithRrelu", "recomputation_stopped_early", ("torch.randn(4, 64)",)),
        ("OwnGenerator", "recomputation_differs", X),
        ("KeepsTable", "state_changed", X),
        ("SwitchedOff", "random_state_not_preserved", X),
        ("noisy_product", "random_state_not_preserved", ("torch.randn(4, 4)", "torch.randn(4, 4)")),
    ],
)
def test_what_cannot_be_run_a_second_time_fails_at_its_line(name: str, cause: str, inputs: tuple[str, ...]) -> None:
    result = check(name, inputs)
    assert (result.verdict, result.diagnosis and result.diagnosis.cause) == ("fail", cause), result
    assert (result.path, result.line) == ("checkpointed.py", marked(name)), result


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("KeptMasks", X),
        ("NothingDrawn", X),
        ("NormOutside", X),
        ("Counted", X),
        ("Layer", X),
        ("Tower", IDS),
        ("Rotated", ("torch.randn(4, 8)", "torch.randn(8)", "torch.randn(8)")),
    ],
)
def test_what_can_be_repeated_passes(name: str, inputs: tuple[str, ...]) -> None:
    result = check(name, inputs)
    assert result.verdict == "pass", result


def test_a_part_of_a_model_is_told_what_would_be_without_gradient() -> None:
    result = check("Layer", X)
    assert "2 parameters get none" in result.summary
    assert result.evidence["without_gradient"] == ["fc.weight", "fc.bias"]


def test_a_switch_that_was_turned_on_is_named() -> None:
    result = check("SwitchedOff", X)
    assert "with use_checkpoint on" in result.summary
    assert result.evidence["turned_on"] == ["use_checkpoint"]


def test_a_target_without_a_checkpoint_is_skipped_with_the_reason() -> None:
    result = check("Plain", X)
    assert (result.verdict, result.summary) == ("skipped", "no call of it comes to torch.utils.checkpoint")
