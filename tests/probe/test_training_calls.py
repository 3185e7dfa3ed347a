"""Functions that train get a model, an optimizer and a batch; those that talk to ranks are taken as declared."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gradproof_probe.harness.recipe import Recipe, build
from gradproof_probe.harness.synthesis import find_recipe
from gradproof_probe.harness.training_calls import NO_OUTPUT, TRAINING_CODE, training_recipe
from gradproof_probe.importing import NotRunnableError, Resolved
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


def written(tmp_path: Path, source: str) -> dict[str, Any]:
    """The names of a module of this source."""
    path = tmp_path / "written.py"
    path.write_text("import torch\nimport torch.nn.functional as F\nfrom torch import nn\n" + source)
    spec: Any = importlib.util.spec_from_file_location("written", path)
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["written"] = module
    spec.loader.exec_module(module)
    return dict(vars(module))


LOSS = "F.cross_entropy(model(x), y)"
STEP = "    optimizer.step()\n    optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            "def fit(args, model, device, train_loader, optimizer, epoch):\n    for x, y in train_loader:\n"
            f"        {LOSS}.backward()\n        if args.dry_run or args.log_interval > 9:\n            break\n" + STEP,
            "__import__('types').SimpleNamespace(dry_run=False, log_interval=2)",
            id="settings, switches off",
        ),
        pytest.param(
            "def fit(model, optimizer, batch):\n    x, y = batch['image'], batch['label']\n"
            + f"    {LOSS}.backward()\n"
            + STEP,
            "{'image': torch.randn(4, 8), 'label': torch.randint(0, 7, (4,))}",
            id="a batch by names",
        ),
        pytest.param(
            "def fit(model, optimizer, batch: torch.Tensor):\n    model(batch).square().mean().backward()\n" + STEP,
            "torch.randn(4, 8)",
            id="a batch that is a tensor",
        ),
        pytest.param(
            "def fit(m: nn.Module, o: torch.optim.Optimizer, x, y, *, micro_steps):\n    model, optimizer = m, o\n"
            f"    for _ in range(micro_steps):\n        ({LOSS} / micro_steps).backward()\n" + STEP,
            "micro_steps=2",
            id="annotations, by keyword",
        ),
        pytest.param(
            "def fit(model, teacher_model, optimizer, x, y):\n    with torch.no_grad():\n        t = teacher_model(x)\n"
            f"    ({LOSS} + (model(x) - t).square().mean()).backward()\n" + STEP,
            "torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 7))",
            id="another model",
        ),
        pytest.param(
            "class Pair(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.l = nn.Linear(6, 4)\n    def forward(self, x):\n        return self.l(x), x\n"
            "def fit(model, optimizer, x, y):\n    F.cross_entropy(model(x)[0], y).backward()\n" + STEP,
            "(net := Pair())",
            id="a model of the file that gives two things",
        ),
        pytest.param(
            "def fit(model, optimizer, x, y, calls=[]):\n    calls.append(1)\n"
            f"    ({LOSS} / 2).backward()\n    if len(calls) % 2 == 1:\n        return\n" + STEP,
            "torch.randint(0, 7, (4,))",
            id="a step in every second call",
        ),
    ],
)
def test_what_a_parameter_is_for_is_told_by_names_annotations_and_use(
    tmp_path: Path, source: str, expected: str
) -> None:
    assert expected in found(written(tmp_path, source)["fit"]).inputs


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        (
            f"def fit(world, agent, optimizer, memory, x):\n    model, y = agent, x\n    {LOSS}.backward()\n" + STEP,
            "world",
        ),
        (f"def fit(model, optimizer, x, y):\n    {LOSS}.backward()\n    x.missing()\n" + STEP, "missing"),
    ],
)
def test_what_trains_and_can_not_be_called_has_its_own_reason(tmp_path: Path, source: str, detail: str) -> None:
    with pytest.raises(NotRunnableError, match=detail) as raised:
        found(written(tmp_path, source)["fit"])
    assert raised.value.reason == TRAINING_CODE


def test_a_declared_call_that_does_not_run_is_told_as_such(tmp_path: Path) -> None:
    source = f"def fit(model, optimizer, x, y):\n    {LOSS}.backward()\n" + STEP
    with pytest.raises(NotRunnableError) as raised:
        found(written(tmp_path, source)["fit"], "nothing", "nothing", "nothing", "nothing")
    assert raised.value.reason == "inputs unsolved"
