"""A target of which only one part is declared: the other is looked for, and what is declared stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probe.conftest import Spoken, entry, speak

SOURCE = """
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.tanh(self.linear(x))
"""
PARTS: dict[str, tuple[str | None, list[str]]] = {
    "constructor": ("Mix(6)", []),
    "inputs": (None, ["torch.randn(3, 4)"]),
    "wrong constructor": ("Mix(absent)", []),
    "wrong inputs": (None, ["torch.randn(3, absent)"]),
}


def declaring(job: str) -> dict[str, Any]:
    constructor, inputs = PARTS[job]
    declared = {"constructor": constructor, "inputs": inputs, "provenance": "pyproject.toml:9"}
    return {**entry("module", "layers:Mix", job=job), "declared": declared}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    source = tmp_path_factory.mktemp("source")
    (source / "layers.py").write_text(SOURCE)
    return speak(source, [declaring(job) for job in PARTS])


def test_inputs_are_found_for_a_declared_constructor(spoken: Spoken) -> None:
    harness = spoken.harness("constructor")
    assert harness["constructor"] == "Mix(6)"
    assert harness["inputs"][0].endswith("6)")
    assert "constructor declared in pyproject.toml:9" in harness["provenance"]
    assert spoken.result("constructor")["verdict"] == "pass"


def test_a_constructor_is_found_for_declared_inputs(spoken: Spoken) -> None:
    harness = spoken.harness("inputs")
    assert (harness["constructor"], harness["inputs"]) == ("Mix(dim=4)", ["torch.randn(3, 4)"])
    assert "inputs declared in pyproject.toml:9" in harness["provenance"]


@pytest.mark.parametrize("part", ["constructor", "inputs"])
def test_a_declared_part_that_is_wrong_is_named_with_its_place(spoken: Spoken, part: str) -> None:
    not_run = spoken.not_run(f"wrong {part}")
    assert not_run["reason"] == f"{part} unsolved"
    assert "declared in pyproject.toml:9" in not_run["detail"]
    assert "name 'absent' is not defined" in not_run["detail"]


def test_what_was_only_partly_declared_is_not_called_the_authors_own(spoken: Spoken) -> None:
    assert {spoken.harness(job)["source"] for job in ("constructor", "inputs")} == {"synthesised"}
