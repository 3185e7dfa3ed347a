"""Steps over micro-batches that do not follow the gradient of the whole batch fail at their line; right ones don't."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gradproof_probe.checks.accumulation_equivalence import AccumulationEquivalence

from tests.fixtures.probe import accumulating
from tests.probe.checking import run_check
from tests.probe.conftest import CASES, FIXTURES

LOADER = ("*with_loader()",)
BATCH = ("*with_batch()",)
TRAINER = ("Trainer(net())", "torch.randn(8, 4)", "torch.randn(8, 1)")


def check(name: str, inputs: tuple[str, ...]) -> Any:
    value: Any = accumulating
    for part in name.split("."):
        value = getattr(value, part)
    return run_check(AccumulationEquivalence(), value, inputs)


def marked(name: str) -> int:
    lines = (FIXTURES / "accumulating.py").read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# fault: {name}")]
    return found


@pytest.mark.parametrize(
    ("name", "cause", "inputs"),
    [
        ("undivided", "accumulation_not_divided", LOADER),
        ("undivided_constant", "accumulation_not_divided", LOADER),
        ("undivided_global", "accumulation_not_divided", ("*with_loader(6)",)),
        ("undivided_by_default_one", "accumulation_not_divided", LOADER),
        ("cleared_each_time", "gradients_cleared_before_step", LOADER),
        ("never_cleared", "gradients_not_cleared", LOADER),
        ("cleared_too_early", "gradients_cleared_before_step", LOADER),
        ("shifted", "window_shifted", LOADER),
        ("last_too_small", "last_window_divided_by_all", ("*with_loader(3)",)),
        ("mean_of_token_means", "unequal_weights", ("*with_words()",)),
        ("twice_divided", "divided_twice", LOADER),
        ("chunks_undivided", "accumulation_not_divided", BATCH),
        ("splits_undivided", "accumulation_not_divided", BATCH),
        ("unequal_splits", "unequal_weights", BATCH),
        ("gradients_only", "accumulation_not_divided", ("net()", "torch.randn(8, 4)", "torch.randn(8, 1)")),
        ("Trainer.undivided", "accumulation_not_divided", TRAINER),
    ],
)
def test_a_step_that_is_not_that_of_the_whole_batch_fails_at_its_line(
    name: str, cause: str, inputs: tuple[str, ...]
) -> None:
    result = check(name, inputs)
    assert (result.verdict, result.diagnosis and result.diagnosis.cause) == ("fail", cause), result
    assert (result.path, result.line) == ("accumulating.py", marked(name)), result


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("divided", LOADER),
        ("divided", ("*with_loader(sizes=[3, 2, 3, 1])",)),
        ("divided", ("*with_loader(5)",)),
        ("summed", LOADER),
        ("divided_rate", ("net()", "with_loader()[2]")),
        ("last_by_its_own", ("*with_loader(3)",)),
        ("by_all_tokens", ("*with_words()",)),
        ("ordinary", LOADER),
        ("chunks_divided", BATCH),
        ("chunks_divided", ("*with_batch(7)",)),
        ("Trainer.divided", TRAINER),
        ("mean_loss", ("torch.randn(6, 2)", "torch.randn(6, 2)")),
    ],
)
def test_a_step_that_is_that_of_the_whole_batch_passes(name: str, inputs: tuple[str, ...]) -> None:
    result = check(name, inputs)
    assert result.verdict == "pass", result


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("sharpness_aware", LOADER),
        ("sharpness_aware_by_helper", LOADER),
        ("by_closure", ("net()", "with_loader()[2]")),
        ("averaged_over_all", LOADER),
        ("noisy", LOADER),
        ("clipped_by_sample", BATCH),
        ("two_losses", LOADER),
        ("contrastive", ("*with_loader(classes=3)",)),
    ],
)
def test_what_is_no_mean_of_micro_batches_by_design_does_not_fail(name: str, inputs: tuple[str, ...]) -> None:
    result = check(name, inputs)
    assert result.verdict in ("inconclusive", "pass"), result


@pytest.mark.parametrize(
    ("name", "kind", "inputs"),
    [
        ("token_loss", "weighted", ("torch.randn(6, 4)", "torch.tensor([0, 0, 1, 2, 3, 1])")),
        ("pairwise_loss", "mixed", ("torch.randn(6, 4)", "torch.randn(6, 4)")),
    ],
)
def test_a_loss_that_is_no_mean_over_samples_is_told_as_that(name: str, kind: str, inputs: tuple[str, ...]) -> None:
    result = check(name, inputs)
    assert (result.verdict, result.evidence["loss"]) == ("inconclusive", kind), result


def test_what_is_no_training_step_is_skipped() -> None:
    assert check("prediction", ("net()", "torch.randn(8, 4)")).verdict == "skipped"
    result = check("net", ())
    assert (result.verdict, result.path) == ("skipped", None)


@pytest.fixture
def case(tmp_path: Path) -> Any:
    """A case alone in its folder: what else clears gradients is looked for around it."""

    def load(name: str) -> ModuleType:
        file = tmp_path / f"{name}.py"
        file.write_text((CASES / f"{name}.py").read_text(encoding="utf-8"), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load


LOOP = (
    "*(lambda net: (net, torch.optim.SGD(net.parameters(), lr=0.1), "
    "[(torch.randn(2, 4), torch.randn(2, 1)) for _ in range(4)]))(make_net())",
)
STEP = ("KeywordTrainer(make_net())", "torch.randn(8, 6)", "torch.randint(0, 3, (8,))")


@pytest.mark.parametrize(
    ("number", "names", "inputs", "line"), [(250, "train_epoch", LOOP, 17), (251, "KeywordTrainer.step", STEP, 17)]
)
def test_the_cases_fail_and_their_fixed_forms_pass(
    case: Any, number: int, names: str, inputs: tuple[str, ...], line: int
) -> None:
    for suffix, verdict, place in (("", "fail", line), ("_fixed", "pass", None)):
        value: Any = case(f"case_{number}{suffix}")
        for part in names.split("."):
            value = getattr(value, part)
        result = run_check(AccumulationEquivalence(), value, inputs)
        assert (result.verdict, result.line) == (verdict, place), result
