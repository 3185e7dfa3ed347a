"""Functions that train get a model, an optimizer and a batch; those that talk to ranks are taken as declared."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gradproof_probe.harness.recipe import Recipe, build
from gradproof_probe.harness.synthesis import find_recipe
from gradproof_probe.harness.training_calls import NO_OUTPUT, training_recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Declared, Target

from tests.fixtures.probe import lone_steps, several_ranks, training_steps


def resolved(function: Any) -> Resolved:
    module = sys.modules[function.__module__]
    name = function.__qualname__
    target = Target(f"{module.__name__}:{name}", "function", Path(str(module.__file__)).name, 1, "", "", name)
    return Resolved(target, module, function)


def found(function: Any, *declared: str) -> Recipe:
    given = Declared(None, declared, "pyproject.toml:1") if declared else None
    return find_recipe(resolved(function), given, seed=0, deadline=time.monotonic() + 30)


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (training_steps.clipped, "(net := make_net())"),
        (training_steps.epoch, "(net := make_net())"),
        (training_steps.scheduled, "(net := make_net())"),
        (training_steps.Trainer.fit_batch, "Trainer((net := make_net()))"),
    ],
)
def test_a_step_is_called_with_a_model_of_its_file_and_what_belongs_to_it(function: Any, first: str) -> None:
    recipe = found(function)
    assert (recipe.source, recipe.grade, recipe.reason) == ("synthesised", "C", NO_OUTPUT)
    assert recipe.inputs[0] == first
    assert build(resolved(function), recipe, seed=0).args


def test_where_the_file_has_no_model_a_plain_one_is_given_with_targets_that_the_loss_takes() -> None:
    recipe = found(lone_steps.KeywordTrainer.fit_keyword)
    assert recipe.inputs[0].startswith("KeywordTrainer((net := torch.nn.Sequential(")


def test_what_is_declared_stays_as_it_is() -> None:
    inputs = (
        "net := make_net()",
        "torch.optim.SGD(net.parameters(), lr=0.1)",
        "torch.randn(2, 4)",
        "torch.randn(2, 1)",
    )
    recipe = found(training_steps.clipped, *inputs)
    assert (recipe.source, recipe.grade, recipe.inputs) == ("declared", "A", inputs)
    recipe = found(several_ranks.average_gradients, "make_net()")
    assert (recipe.source, recipe.inputs, recipe.reason) == ("declared", ("make_net()",), NO_OUTPUT)


def test_a_function_that_only_takes_a_model_and_talks_to_ranks_gets_one() -> None:
    assert found(several_ranks.synchronise_gradients).inputs == ("(net := make_net())",)


def test_what_does_not_train_is_left_to_the_general_search() -> None:
    assert training_recipe(resolved(training_steps.evaluate), None, seed=0, deadline=time.monotonic() + 9) is None
