"""What the targets of a batch show of each other: a part is called as its parent calls it, whoever comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probe.conftest import Spoken, entry, speak

# Nothing tells from outside which word opens these.
SOURCE = """
import hashlib
import os
import torch
from torch import nn


def is_right(word):
    return hashlib.sha256(word.encode()).hexdigest().startswith("d0c04f4b1951e4ae")


class Inner(nn.Module):
    def __init__(self, word):
        super().__init__()
        if not is_right(word):
            raise ValueError("another word")
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return x @ self.weight


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner("".join(reversed("emases")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sin()


class Alone(nn.Module):
    def __init__(self, word):
        super().__init__()
        if not is_right(word):
            raise ValueError("another word")

    def forward(self, x):
        return x


class Deadly(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(9)
"""


def module(name: str, **changes: object) -> dict[str, object]:
    inputs = ["torch.randn(2, 5)"] if name == "Outer" else None
    return {**entry("module", f"parts:{name}", inputs=inputs), **changes}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("parts")
    (directory / "parts.py").write_text(SOURCE, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def late(source: Path) -> Spoken:
    return speak(source, [module("Inner"), module("Alone"), module("Deadly"), module("Outer")])


def kinds(spoken: Spoken, job: str) -> list[str]:
    return [line["type"] for line in spoken.lines if line.get("job") == job]


def test_a_part_that_nobody_could_call_is_called_as_its_parent_calls_it(late: Spoken) -> None:
    harness = late.harness("Inner")
    assert (harness["source"], harness["found_by"]) == ("mined", "parent")
    assert harness["constructor"] == "Inner('sesame')"
    assert late.result("Inner")["verdict"] == "pass"


def test_its_harness_is_only_told_when_it_is_settled(late: Spoken) -> None:
    assert kinds(late, "Inner") == [
        "target_started", "target_waiting", "target_started", "harness", "check_started", "check", "target_finished",
    ]  # fmt: skip
    finished = [line["job"] for line in late.lines if line["type"] == "target_finished"]
    assert finished.index("Inner") > finished.index("Outer")


def test_one_that_nothing_was_shown_of_keeps_its_reason(late: Spoken) -> None:
    assert late.not_run("Alone")["reason"] == "constructor unsolved"
    assert kinds(late, "Alone")[-2:] == ["harness", "target_finished"]


def test_a_part_after_its_parent_need_not_wait(source: Path) -> None:
    spoken = speak(source, [module("Outer"), module("Inner")])
    assert kinds(spoken, "Inner")[:2] == ["target_started", "harness"]
    assert spoken.harness("Inner")["found_by"] == "parent"


def test_after_the_time_of_the_batch_nothing_is_begun(source: Path) -> None:
    spoken = speak(source, [module("Outer"), module("Inner")], limits={"batch_s": 1e-6})
    for job in ("Outer", "Inner"):
        assert spoken.not_run(job)["reason"] == "budget spent"
        assert kinds(spoken, job) == ["harness", "target_finished"]


def test_a_kind_that_was_guessed_is_told_from_what_is_imported(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "class lower(torch.nn.Module):\n    def forward(self, x):\n        return x.sin()\n"
        "Upper = lambda x: x.sin()\n",
        encoding="utf-8",
    )
    batch = []
    for kind, name in (("function", "lower"), ("module", "Upper")):
        item = entry(kind, f"odd:{name}", inputs=["torch.randn(3)"], constructor=None)
        item["target"]["guessed"] = True
        batch.append(item)
    spoken = speak(tmp_path, batch)
    assert [spoken.of(job, "harness")[0]["kind"] for job in ("lower", "Upper")] == ["module", "function"]
    assert [spoken.result(job)["verdict"] for job in ("lower", "Upper")] == ["pass", "pass"]
