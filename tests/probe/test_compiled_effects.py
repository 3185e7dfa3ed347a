"""What compiled code does beside its values: where generators stand after a call, and Functions under transforms."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.generators import moved_otherwise
from gradproof_probe.compiling.running import WHOLE, backend_named, observed, observed_compiled
from gradproof_probe.compiling.stages import CapturedStages
from gradproof_probe.compiling.transforms import under_transforms
from gradproof_probe.equivalence.generators import left_elsewhere, standing
from gradproof_probe.equivalence.observation import bitwise_differences
from gradproof_probe.harness.recipe import Built, Recipe
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Target

from tests.fixtures.probe import compiled as fixture


def context(name: str, root: Path | None = None) -> CheckContext:
    value: Any = getattr(fixture, name)
    kind: Any = "autograd_function" if issubclass(value, torch.autograd.Function) else "module"
    file = Path(str(fixture.__file__))
    recipe = Recipe("declared", "A", f"{name}()" if kind == "module" else None, ("torch.randn(3, 4)",), "test")
    target = Target(f"compiled:{name}", kind, file.name, 1, "", "compiled", name)
    return CheckContext(
        Resolved(target, sys.modules[fixture.__name__], value), recipe, root or file.parent, "cpu", 0,
        deadline=time.monotonic() + 60,
    )  # fmt: skip


def drawn(name: str, root: Path | None = None) -> Any:
    """What is said of generators, where all values are the same."""
    of = context(name, root)
    plain, compiled = observed(of, "train"), observed_compiled(of, "train", backend_named(WHOLE))
    assert not bitwise_differences(plain, compiled)
    return moved_otherwise(of, "train", WHOLE, plain, compiled)


def test_a_draw_that_compiled_code_leaves_out_is_told_with_its_line() -> None:
    lines = Path(str(fixture.__file__)).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# LINE DrawsInVain"))
    assert f"it draws at compiled.py:{line})" in drawn("DrawsInVain")


def test_it_is_no_failure_also_where_the_repository_compiles() -> None:
    stages = CapturedStages(context("DrawsInVain"))
    assert stages.run().verdict == "pass"
    assert "stands elsewhere" in stages.evidence["generators"]


@pytest.mark.parametrize("name", ["Dropping", "DroppingInCheckpoint", "OwnGenerator"])
def test_dropout_and_generators_of_its_own_end_where_they_do_in_eager(name: str) -> None:
    assert drawn(name) is None


def test_generators_are_found_in_attributes_and_arguments() -> None:
    module = torch.nn.Module()
    module.kept = {"noise": [torch.Generator()]}  # type: ignore[assignment]
    found = standing(Built(module, [torch.Generator()], {"draw": torch.Generator()}, module))
    assert set(found) == {"torch", "kept['noise'][0]", "argument 0", "draw"}


def test_a_generator_that_began_elsewhere_is_not_compared() -> None:
    one, other = (torch.Generator().manual_seed(seed).get_state() for seed in (1, 2))
    assert left_elsewhere({"g": (one, other)}, {"g": (other, other)}) == []
    assert left_elsewhere({"g": (one, other)}, {"g": (one, one)}) == ["g"]


@pytest.mark.parametrize(
    ("name", "transform", "said"),
    [
        ("MappedSnap", "torch.func.vmap", ("fail", "custom_backward_dropped")),
        ("MappedByRule", "torch.func.vmap", ("fail", "custom_vmap_dropped")),
        ("MappedTwice", "torch.func.vmap", ("pass", "equal")),
        ("MappedSnap", "torch.func.vjp", ("fail", "custom_backward_dropped")),
    ],
)
def test_what_compiling_drops_of_a_function_under_a_transform(name: str, transform: str, said: tuple[str, str]) -> None:
    answer = under_transforms(context(name))[transform]
    assert (answer.verdict, answer.cause) == said, answer


def test_a_function_without_a_rule_for_vmap_is_not_mapped() -> None:
    assert list(under_transforms(context("Twice"))) == ["torch.func.vjp"]


def test_a_dropped_rule_fails_only_where_both_are_used(tmp_path: Path) -> None:
    assert under_transforms(context("MappedByRule", tmp_path))["torch.func.vmap"].verdict == "pass"
